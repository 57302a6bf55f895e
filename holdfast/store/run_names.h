// Makes the names of the files in a run folder durable, and remembers if that failed.
//
// After a failed sync the operating system may have dropped the data that it could not
// write, and would report success for the next sync. A file can then be written anew
// under another name; a folder cannot. So after one failure every later sync through
// this object fails too. What is committed afterwards is never called durable, and
// retention removes nothing, until a new process opens the run. A folder that is not
// there is another matter: it can be made anew (Run::remake_if_gone()).
#pragma once

#include <string_view>

#include "holdfast/base/mutex.h"
#include "holdfast/env/env.h"

namespace holdfast {

// Safe from several threads. Env must outlive it.
class RunNames {
 public:
  RunNames(Env& env, Path run) : env_(env), run_(std::move(run)) {}

  // Makes all names durable. Also succeeds if the file system cannot sync folders: then
  // names are as durable as that file system can make them.
  Result<void> sync();
  // Replaces or makes the file `name` in one step, as Env::replace_file() does, and
  // makes its name durable.
  Result<void> replace(std::string_view name, ByteView bytes);
  // Writes the file `name`, which exists, in place: a full disk has no room for another
  // file. A crash may leave a part of it.
  Result<void> overwrite(std::string_view name, ByteView bytes);

 private:
  Env& env_;
  const Path run_;
  Mutex mutex_;
  Result<void> outcome_ HOLDFAST_GUARDED_BY(mutex_);
};

// Makes the names of the files in any folder durable (Env::sync_names()).
inline Result<void> sync_names(Env& env, const Path& folder) {
  return env.sync_names(folder);
}

}  // namespace holdfast
