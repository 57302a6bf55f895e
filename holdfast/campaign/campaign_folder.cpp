#include "holdfast/campaign/campaign_folder.h"

#include <sstream>

#include "holdfast/store/process.h"

namespace holdfast {

namespace {

constexpr const char* kOwnerName = "running";  // as in owner_path()
constexpr const char* kWorkPrefix = "work.";

bool is_temporary(std::string_view name) {
  return name.ends_with(".tmp") &&
         (name.starts_with(fmt::format("{}.", kOwnerName)) ||
          name.starts_with(fmt::format("{}.", kCampaignFile)));
}

// One line: the process number, its start, the boot, and the host, which comes last
// because nothing is known about its form.
std::string mark_of(const Identity& who) {
  return fmt::format("{} {} {} {}\n", who.pid, who.started, who.boot, who.host);
}

// nullopt for a mark that was not written as a whole.
std::optional<Identity> read_mark(const std::string& text) {
  if (!text.ends_with('\n')) return std::nullopt;
  std::istringstream words(text);
  Identity who;
  words >> who.pid >> who.started >> who.boot;
  std::getline(words >> std::ws, who.host);
  if (!words || who.pid <= 0) return std::nullopt;
  return who;
}

}  // namespace

CampaignFolder::CampaignFolder(Env& env, Path folder)
    : env_(env),
      folder_(std::move(folder)),
      work_(folder_ / fmt::format("{}{:016x}", kWorkPrefix, env.random64())) {}

Result<std::unique_ptr<CampaignFolder>> CampaignFolder::enter(
    Env& env, const Path& folder, const CampaignFile& wanted) {
  // A campaign's name has no slash at its end.
  const Path name = folder.has_filename() ? folder : folder.parent_path();
  std::unique_ptr<CampaignFolder> entered(new CampaignFolder(env, name));
  const Result<FileInfo> info = env.info(name);
  if (info.ok()) {
    if (!info->folder) {
      return conflict("{}: is a file; expected a folder, or a new name", name.native());
    }
    HOLDFAST_TRY(entered->check_contents(wanted));
  } else {
    HOLDFAST_TRY(env.create_folders(name));
    entered->created_ = true;
  }
  HOLDFAST_TRY(entered->take_ownership());
  HOLDFAST_TRY(entered->remove_leftovers());
  HOLDFAST_TRY(env.create_folder(entered->work()));
  return entered;
}

CampaignFolder::~CampaignFolder() {
  if (!owned_) return;
  (void)env_.remove_all(work());
  (void)env_.remove_file(owner_path());
  if (created_) (void)env_.remove_all(folder_);
}

Result<void> CampaignFolder::check_contents(const CampaignFile& wanted) {
  Result<CampaignFile> there = read_campaign(env_, folder_);
  if (there.ok()) {
    HOLDFAST_TRY(check_same_campaign(*there, wanted, folder_));
    found_ = std::move(*there);
    return {};
  }
  if (there.error().code() != ErrorCode::kNotFound) return there.error();
  for (const std::string& name : HOLDFAST_TRY(env_.list(folder_))) {
    // A process that was killed during its first golden runs leaves just these.
    if (name.starts_with(kWorkPrefix) || name == kOwnerName || is_temporary(name) ||
        folder_ / name == golden_state()) {
      continue;
    }
    return conflict("{}: holds {} and is no campaign; expected an empty or new folder",
                    folder_.native(), name);
  }
  return {};
}

Result<void> CampaignFolder::take_ownership() {
  const Identity self = HOLDFAST_TRY(this_process(env_));
  const Result<std::string> there = env_.read_text(owner_path());
  if (there.ok()) {
    HOLDFAST_TRY(check_dead(*there, self));
    HOLDFAST_TRY(remove_dead_mark(*there));
  }
  Path fresh = owner_path();
  fresh += fmt::format(".{:016x}.tmp", env_.random64());
  HOLDFAST_TRY(env_.write_file(fresh, bytes_of(mark_of(self))));
  const Result<void> renamed = env_.rename_new(fresh, owner_path());
  if (!renamed.ok()) {
    (void)env_.remove_file(fresh);
    if (renamed.error().code() != ErrorCode::kConflict) return renamed;
    return conflict("{}: another process has just begun to work in it; expected only one",
                    folder_.native());
  }
  owned_ = true;
  return {};
}

Result<void> CampaignFolder::check_dead(const std::string& mark,
                                        const Identity& self) const {
  const auto who = read_mark(mark);
  if (!who) return {};
  if (who->host != self.host) {
    return conflict(
        "{}: process {} on {} works in it; expected that it has ended, and then that {} is "
        "removed",
        folder_.native(), who->pid, who->host, owner_path().native());
  }
  if (who->boot != self.boot) return {};
  const auto alive = start_of_process(env_, who->pid);
  if (alive.ok() && *alive != who->started) return {};
  return conflict("{}: process {} works in it; expected that it has ended",
                  folder_.native(), who->pid);
}

// Another process may have replaced the dead mark in the meantime. So the mark is first
// moved away, and moved back if it is not the dead one.
Result<void> CampaignFolder::remove_dead_mark(const std::string& mark) {
  Path aside = owner_path();
  aside += fmt::format(".{:016x}.tmp", env_.random64());
  const Result<void> moved = env_.rename(owner_path(), aside);
  if (!moved.ok()) {
    if (moved.error().code() == ErrorCode::kNotFound) return {};
    return moved;
  }
  if (HOLDFAST_TRY(env_.read_text(aside)) == mark) return env_.remove_file(aside);
  (void)env_.rename_new(aside, owner_path());
  return conflict("{}: another process has just begun to work in it; expected only one",
                  folder_.native());
}

Result<void> CampaignFolder::remove_leftovers() {
  for (const std::string& name : HOLDFAST_TRY(env_.list(folder_))) {
    const Path path = folder_ / name;
    // A program that still writes may put a file into a folder that is being removed.
    // The next call removes the rest.
    if (name.starts_with(kWorkPrefix)) (void)env_.remove_all(path);
    if (is_temporary(name)) HOLDFAST_TRY(env_.remove_all(path));
    if (!found_ && path == golden_state()) HOLDFAST_TRY(env_.remove_all(path));
  }
  return {};
}

Result<void> CampaignFolder::keep(const CampaignFile& file) {
  HOLDFAST_TRY(
      env_.replace_file(folder_ / kCampaignFile, bytes_of(encode_campaign(file))));
  created_ = false;
  return {};
}

}  // namespace holdfast
