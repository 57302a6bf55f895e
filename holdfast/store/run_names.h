// The names in a run folder: made durable, or known not to be.
//
// After a failed sync the system may have dropped what it was to write and would report
// success the next time. A file is then written anew under another name; a folder cannot
// be. So after one failure every later sync of this object fails too: what is committed
// afterwards is never called durable, and retention removes nothing, until a new process
// starts afresh.
#pragma once

#include <string_view>

#include "holdfast/base/mutex.h"
#include "holdfast/env/env.h"

namespace holdfast {

// Safe from several threads. Env must outlive it.
class RunNames {
 public:
  RunNames(Env& env, Path run) : env_(env), run_(std::move(run)) {}

  // Success also where the file system does not sync folders: names there are as durable
  // as they get.
  Result<void> sync();
  // Env::replace_file of a name in the run.
  Result<void> replace(std::string_view name, ByteView bytes);

 private:
  Env& env_;
  const Path run_;
  Mutex mutex_;
  Result<void> outcome_ HOLDFAST_GUARDED_BY(mutex_);
};

// Env::sync_names of any folder.
inline Result<void> sync_names(Env& env, const Path& folder) {
  return env.sync_names(folder);
}

}  // namespace holdfast
