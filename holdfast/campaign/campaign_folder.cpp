#include "holdfast/campaign/campaign_folder.h"

#include <charconv>

#include "holdfast/store/process.h"

namespace holdfast {

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
  HOLDFAST_TRY(env.remove_all(entered->work()));
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
    // A process that was killed during its first golden run leaves just these.
    if (name == "work" || name == "running") continue;
    return conflict("{}: holds {} and is no campaign; expected an empty or new folder",
                    folder_.native(), name);
  }
  return {};
}

Result<void> CampaignFolder::take_ownership() {
  const Identity self = HOLDFAST_TRY(this_process(env_));
  const Result<std::string> text = env_.read_text(owner_path());
  if (text.ok()) {
    int64_t pid = 0, started = 0;
    const char* end = text->data() + text->size();
    const auto first = std::from_chars(text->data(), end, pid);
    if (first.ptr != end) std::from_chars(first.ptr + 1, end, started);
    const auto alive = start_of_process(env_, pid);
    if (pid > 0 && alive.ok() && *alive == started) {
      return conflict("{}: process {} works in it; expected that it has ended",
                      folder_.native(), pid);
    }
  }
  const std::string mark = fmt::format("{} {}\n", self.pid, self.started);
  HOLDFAST_TRY(env_.replace_file(owner_path(), bytes_of(mark)));
  owned_ = true;
  return {};
}

Result<void> CampaignFolder::keep(const CampaignFile& file) {
  HOLDFAST_TRY(
      env_.replace_file(folder_ / kCampaignFile, bytes_of(encode_campaign(file))));
  created_ = false;
  return {};
}

}  // namespace holdfast
