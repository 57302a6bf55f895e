#include "holdfast/shared_place/shared_place.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "holdfast/base/json_fields.h"
#include "holdfast/env/errno_error.h"
#include "holdfast/store/location.h"
#include "holdfast/store/process.h"

namespace holdfast {
namespace {

constexpr std::string_view kPrefix = "holdfast-";
constexpr std::string_view kPlaceFile = "place.json";
constexpr int64_t kPlaceFileLimit = int64_t{1} << 16;
constexpr mode_t kOwnerOnly = 0700;
constexpr std::chrono::hours kUnusedFor(24);

// Whose place it is. `folder` tells the folder that the run is in from another one of
// the same path, as in another container.
struct PlaceRecord {
  std::string boot{};
  std::string run{};
  std::string folder{};
  std::string id{};

  static void fields(auto& self, auto&& field) {
    field("boot", self.boot);
    field("run", self.run);
    field("folder", self.folder);
    field("id", self.id);
    field.allow_unknown();
  }
};

Result<PlaceRecord> read_place(Env& env, const Path& place) {
  const Path file = place / kPlaceFile;
  return from_json<PlaceRecord>(HOLDFAST_TRY(env.read_text(file, kPlaceFileLimit)),
                                file.native());
}

// Device and inode of a folder; empty if they are not known.
std::string folder_number(Env& env, const Path& folder) {
  const Result<FileInfo> info = env.info(folder);
  if (!info.ok() || info->inode == 0) return "";
  return fmt::format("{}:{}", info->device, info->inode);
}

Result<std::string> boot_of(Env& env) {
  Identity self = HOLDFAST_TRY(this_process(env));
  if (self.boot.empty()) {
    return unavailable("boot of this host: is not known; expected it of the system");
  }
  return std::move(self.boot);
}

// Fails unless the path is a folder of this user that nobody else may enter. It asks the
// system and not Env, which follows links and does not tell whose a folder is.
Result<void> check_own(const Path& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return errno_error(errno, "lstat", path);
  if (!S_ISDIR(info.st_mode)) {
    return denied("{}: is no folder; expected a folder of this user", path.native());
  }
  if (info.st_uid != ::geteuid()) {
    return denied("{}: belongs to user {}; expected user {}", path.native(), info.st_uid,
                  ::geteuid());
  }
  if ((info.st_mode & 077) == 0) return {};
  return denied("{}: has mode {:04o}; expected {:04o}", path.native(),
                info.st_mode & 07777, kOwnerOnly);
}

// True if nothing was put into the place or taken out of it for a day. A run that is
// moved to another folder cannot be told from one that is deleted, and whoever moves it
// resumes it soon.
bool is_unused(const Path& place) {
  std::error_code error;
  const auto changed = std::filesystem::last_write_time(place, error);
  if (error) return false;
  return std::filesystem::file_time_type::clock::now() - changed > kUnusedFor;
}

// True unless the folder is surely another run than this one, or none.
bool may_be_run(Env& env, const Path& folder, const std::string& id) {
  const Result<FileInfo> info = env.info(folder);
  if (info.ok() && !info->folder) return false;
  const Result<Run> run = Run::open(env, folder);
  return run.ok() ? run->id() == id : !is_missing(run.error());
}

// True if the run of a place is gone: its folder is the one that it was, and the run is
// not in it any more, under no name. If in doubt it is not.
bool is_run_gone(Env& env, const PlaceRecord& place) {
  if (place.folder.empty() || is_object_path(place.run)) return false;
  const Path folder = folder_of(place.run);
  if (folder_number(env, folder) != place.folder) return false;
  if (may_be_run(env, place.run, place.id)) return false;
  const Result<std::vector<std::string>> names = env.list(folder);
  return names.ok() && std::ranges::none_of(*names, [&](const std::string& name) {
    return may_be_run(env, folder / name, place.id);
  });
}

bool is_old(Env& env, const Path& place, const std::string& boot, bool own) {
  if (!check_own(place).ok()) return false;
  const Result<PlaceRecord> record = read_place(env, place);
  if (!record.ok()) return false;  // it may be one that is being made
  if (!record->boot.empty() && record->boot != boot) return true;
  return !own && is_unused(place) && is_run_gone(env, *record);
}

// Fails with kDenied if the place belongs to another run directory that has the same id:
// `run` is a copy of that one. A run that was renamed or moved is not where it was. Fails,
// too, if that cannot be told now: the other one may be on storage that does not answer.
Result<void> check_not_copy(Env& env, const Path& place, const PlaceRecord& record,
                            const Path& run) {
  if (record.run == run.native() || is_object_path(record.run)) return {};
  const Result<FileInfo> info = env.info(record.run);
  if (!info.ok()) return is_missing(info.error()) ? Result<void>() : info.error();
  const std::string there = folder_number(env, record.run);
  const std::string here = folder_number(env, run);
  if (there.empty() || here.empty() || there == here) return {};
  const Result<Run> other = Run::open(env, record.run);
  if (!other.ok()) return is_missing(other.error()) ? Result<void>() : other.error();
  if (other->id() != record.id) return {};
  return denied("{}: belongs to the run in {}, of which {} is a copy; expected the "
                "original run",
                place.native(), record.run, run.native());
}

bool is_damaged(const Error& error) {
  return error.code() == ErrorCode::kCorrupt || is_missing(error);
}

bool has_step(const std::vector<std::string>& names) {
  return std::ranges::any_of(names, [](const std::string& name) {
    return parse_step_name(name) || parse_attempt_name(name);
  });
}

constexpr std::string_view kTakenSuffix = ".tmp";

// The name of a place while it is removed.
std::string taken_name(const std::string& place, uint64_t mark) {
  return fmt::format("{}.{}{}", place, hex64(mark), kTakenSuffix);
}

// The name that the place had before; nullopt if it is not being removed.
std::optional<std::string> name_before(std::string_view name) {
  if (!name.ends_with(kTakenSuffix)) return std::nullopt;
  name.remove_suffix(kTakenSuffix.size());
  const size_t dot = name.rfind('.');
  if (dot == name.npos || !parse_hex64(name.substr(dot + 1))) return std::nullopt;
  return std::string(name.substr(0, dot));
}

// Finishes the removal of a place that has lost its name already. Returns true if it is
// gone. If a step is in it, it gets its name back, as remove_if_empty() would have done.
bool finish_removal(Env& env, const Path& taken, const Path& place, bool dry_run) {
  if (!check_own(taken).ok()) return false;
  const Result<std::vector<std::string>> names = env.list(taken);
  if (!names.ok()) return false;
  if (!has_step(*names)) return dry_run || env.remove_all(taken).ok();
  if (!dry_run) static_cast<void>(env.rename_new(taken, place));
  return false;
}

}  // namespace

std::vector<std::string> shards_of(const Manifest& manifest) {
  std::vector<std::string> names;
  for (const ManifestFile& file : manifest.files) {
    const Result<DigestKind> kind = parse_file_digest(file.digest);
    if (kind.ok() && *kind == DigestKind::kCrc32c) names.push_back(file.name);
  }
  return names;
}

SharedPlace::SharedPlace(Env& env, const Path& memory, Path run, std::string id)
    : env_(env),
      memory_(memory),
      path_(memory / (std::string(kPrefix) + id)),
      run_(std::move(run)),
      id_(std::move(id)) {}

Result<void> SharedPlace::make() const {
  HOLDFAST_TRY(check_file_name(path_.filename().native()));
  if (::mkdir(path_.c_str(), kOwnerOnly) != 0 && errno != EEXIST) {
    return errno_error(errno, "mkdir", path_);
  }
  HOLDFAST_TRY(check_own(path_));
  const PlaceRecord record{.boot = HOLDFAST_TRY(boot_of(env_)),
                           .run = run_.native(),
                           .folder = folder_number(env_, folder_of(run_)),
                           .id = id_};
  if (const Result<PlaceRecord> before = read_place(env_, path_); before.ok()) {
    HOLDFAST_TRY(check_not_copy(env_, path_, *before, run_));
    // Otherwise the new record would make them steps of this boot.
    if (before->boot != record.boot) HOLDFAST_TRY(remove_all_steps());
  }
  const std::string text = to_json_text(record, {.indent = 1}) + "\n";
  return env_.replace_file(path_ / kPlaceFile, bytes_of(text));
}

Result<std::string> SharedPlace::identity() const {
  HOLDFAST_TRY(check_own(path_));
  return fmt::format("{}:{}", HOLDFAST_TRY(boot_of(env_)), folder_number(env_, path_));
}

Result<StepList> SharedPlace::list_steps() const {
  const Result<void> own = check_own(path_);
  if (!own.ok() && is_missing(own.error())) return StepList();
  HOLDFAST_TRY(own);
  const Result<PlaceRecord> record = read_place(env_, path_);
  const Result<Run> run = Run::open(env_, path_);
  // A process that was killed while it made the place has put no step into it.
  for (const bool missing : {!record.ok() && is_missing(record.error()),
                             !run.ok() && is_missing(run.error())}) {
    if (missing) return StepList();
  }
  HOLDFAST_TRY(record);
  HOLDFAST_TRY(run);
  if (record->boot != HOLDFAST_TRY(boot_of(env_))) return StepList();
  HOLDFAST_TRY(check_not_copy(env_, path_, *record, run_));
  if (run->id() != id_) {
    return corrupt("{}: is of the run {}; expected {}", path_.native(), run->id(), id_);
  }
  return run->steps();
}

Result<std::vector<Step>> SharedPlace::steps() const {
  StepList list = HOLDFAST_TRY(list_steps());
  if (list.skipped.empty()) return std::move(list.steps);
  return list.skipped.front().error;
}

Result<int64_t> SharedPlace::free_bytes() const { return env_.free_space(path_); }

Result<Path> SharedPlace::begin(int64_t step, uint64_t attempt) const {
  const Path folder = path_ / AttemptName{.step = step, .attempt = attempt}.text();
  const Result<void> made = env_.create_folder(folder);
  if (!made.ok() && made.error().code() != ErrorCode::kConflict) return made.error();
  return folder;
}

// Writes the files that the folder lacks. Ranks that do it at the same time write the
// same bytes.
Result<void> SharedPlace::write_all(const Path& folder, const Manifest& manifest,
                                    const SmallFiles& files) const {
  for (const auto& [name, bytes] : files) {
    HOLDFAST_TRY(check_file_name(name));
    HOLDFAST_TRY(env_.replace_file(folder / name, bytes));
  }
  return env_.replace_file(folder / kManifestName, encode_manifest(manifest));
}

// A folder that another process has removed is made again by a rank that begins later,
// without the shards of those that had begun before.
Result<void> SharedPlace::check_shards(const Path& folder, const Manifest& manifest,
                                       const std::vector<std::string>& shards) const {
  for (const ManifestFile& file : manifest.files) {
    if (std::ranges::count(shards, file.name) == 0) continue;
    const Result<FileInfo> info = env_.info(folder / file.name);
    if (info.ok() && info->size == file.bytes) continue;
    return conflict("{}: is not there any more; expected {} bytes, or no other process",
                    (folder / file.name).native(), file.bytes);
  }
  return {};
}

Result<Path> SharedPlace::publish(const Path& begun, const Manifest& manifest,
                                  const SmallFiles& files,
                                  const std::vector<std::string>& shards) const {
  const Run run = HOLDFAST_TRY(Run::create_or_open(env_, path_, id_));
  HOLDFAST_TRY(check_shards(begun, manifest, shards));
  const Result<void> written = write_all(begun, manifest, files);
  for (StepName name{.step = manifest.step};; ++name.generation) {
    const Result<void> renamed =
        written.ok() ? env_.rename_new(begun, path_ / name.text()) : written;
    if (renamed.ok()) return path_ / name.text();
    // Another rank may have been faster.
    const Result<Step> there = run.committed(manifest.step, manifest.attempt);
    if (there.ok()) {
      static_cast<void>(discard(begun));
      return there->folder;
    }
    if (renamed.error().code() != ErrorCode::kConflict) return renamed.error();
  }
}

// Takes the name of a step from it first, so that a process that is killed meanwhile
// leaves no half of a step, and one that is about to publish it fails.
Result<void> SharedPlace::remove(const std::string& name) const {
  Path folder = path_ / name;
  const std::optional<StepName> step = parse_step_name(name);
  const std::optional<AttemptName> attempt = parse_attempt_name(name);
  if (step || attempt) {
    const AttemptName taken{.step = step ? step->step : attempt->step,
                            .attempt = env_.random64()};
    const Result<void> renamed = env_.rename_new(folder, path_ / taken.text());
    if (!renamed.ok() && is_missing(renamed.error())) return {};  // another rank did it
    HOLDFAST_TRY(renamed);
    folder = path_ / taken.text();
  }
  return env_.remove_all(folder);
}

Result<void> SharedPlace::discard(const Path& folder) const {
  return folder.empty() ? Result<void>() : remove(folder.filename().native());
}

Result<void> SharedPlace::remove_all_steps() const {
  for (const std::string& name : HOLDFAST_TRY(names())) {
    if (has_step({name})) HOLDFAST_TRY(remove(name));
  }
  return {};
}

Result<void> SharedPlace::remove_older(const std::pair<int64_t, int64_t>& age,
                                       bool damaged) const {
  for (const std::string& name : HOLDFAST_TRY(names())) {
    if (!parse_step_name(name)) continue;
    const Result<Manifest> manifest = read_manifest(env_, path_ / name);
    const bool goes = manifest.ok() ? age_of(*manifest) < age
                                    : damaged && is_damaged(manifest.error());
    if (goes) HOLDFAST_TRY(remove(name));
  }
  return {};
}

Result<void> SharedPlace::remove_attempts() const {
  for (const std::string& name : HOLDFAST_TRY(names())) {
    if (parse_attempt_name(name)) HOLDFAST_TRY(remove(name));
  }
  return {};
}

Result<void> SharedPlace::remove_all_but(const Manifest& newest) const {
  for (const std::string& name : HOLDFAST_TRY(names())) {
    if (name == kPlaceFile || name == kRunFile) continue;
    const Result<Manifest> manifest = read_manifest(env_, path_ / name);
    // A step that cannot be read may be the newest.
    const bool stays = manifest.ok() ? manifest->attempt == newest.attempt ||
                                           age_of(*manifest) > age_of(newest)
                                     : !is_damaged(manifest.error());
    if (!stays || !parse_step_name(name)) HOLDFAST_TRY(remove(name));
  }
  return {};
}

// Takes the name from the place first, and looks again: another process, whose files are
// found by this name, may have put a step into it since the first look.
Result<void> SharedPlace::remove_if_empty() const {
  if (has_step(HOLDFAST_TRY(names()))) return {};
  const Path taken = memory_ / taken_name(path_.filename().native(), env_.random64());
  const Result<void> renamed = env_.rename_new(path_, taken);
  if (!renamed.ok() && is_missing(renamed.error())) return {};  // another rank did it
  HOLDFAST_TRY(renamed);
  if (has_step(HOLDFAST_TRY(env_.list(taken)))) return env_.rename_new(taken, path_);
  return env_.remove_all(taken);
}

// What is in the place. Empty if there is no place. Fails with kDenied if it is not for
// this run, so that nothing of it is removed.
Result<std::vector<std::string>> SharedPlace::names() const {
  const Result<void> own = check_own(path_);
  if (!own.ok() && is_missing(own.error())) return std::vector<std::string>();
  HOLDFAST_TRY(own);
  if (const Result<PlaceRecord> record = read_place(env_, path_); record.ok()) {
    HOLDFAST_TRY(check_not_copy(env_, path_, *record, run_));
  }
  return env_.list(path_);
}

std::vector<std::string> remove_old_places(Env& env, const Path& memory,
                                           const Path& own, bool dry_run) {
  std::vector<std::string> removed;
  const Result<std::vector<std::string>> names = env.list(memory);
  const Result<std::string> boot = boot_of(env);
  if (!names.ok() || !boot.ok()) return removed;
  for (const std::string& name : *names) {
    if (!name.starts_with(kPrefix)) continue;
    if (const auto before = name_before(name);
        before && finish_removal(env, memory / name, memory / *before, dry_run)) {
      removed.push_back((memory / name).native());
      continue;
    }
    if (!is_old(env, memory / name, *boot, memory / name == own)) continue;
    if (dry_run || env.remove_all(memory / name).ok()) {
      removed.push_back((memory / name).native());
    }
  }
  return removed;
}

}  // namespace holdfast
