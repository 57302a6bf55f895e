#include "holdfast/store/run_names.h"

#include "holdfast/shard/step_name.h"

namespace holdfast {

Result<void> RunNames::sync() {
  MutexLock lock(mutex_);
  if (outcome_.ok()) {
    outcome_ = env_.sync_names(run_);
    return outcome_;
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

}  // namespace holdfast
