#include "holdfast/store/run_names.h"

#include "holdfast/env/file.h"
#include "holdfast/shard/step_name.h"

namespace holdfast {

Result<void> RunNames::sync() {
  MutexLock lock(mutex_);
  if (outcome_.ok()) {
    Result<void> synced = env_.sync_names(run_);
    // A folder that is gone has lost nothing that was not synced: it may be made anew.
    if (synced.ok() || !is_missing(synced.error())) outcome_ = synced;
    return synced;
  }
  return outcome_.error().within("an earlier sync failed");
}

Result<void> RunNames::replace(std::string_view name, ByteView bytes) {
  const Path path = run_ / name;
  Path beside = path;
  beside += fmt::format(".{}.tmp", hex64(env_.random64()));
  Result<void> replaced = env_.write_file(beside, bytes);
  if (replaced.ok()) replaced = env_.rename(beside, path);
  if (replaced.ok()) return sync();
  // If this fails too, the first failure is still the one to report.
  (void)env_.remove_file(beside);
  return replaced;
}

Result<void> RunNames::overwrite(std::string_view name, ByteView bytes) {
  const auto file =
      HOLDFAST_TRY(env_.open(run_ / name, OpenOptions{.mode = OpenMode::kUpdate}));
  HOLDFAST_TRY(file->write_at(0, bytes));
  HOLDFAST_TRY(file->truncate(std::ssize(bytes)));
  HOLDFAST_TRY(file->sync());
  return file->close();
}

}  // namespace holdfast
