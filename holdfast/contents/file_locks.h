// Locks of files whose bytes are changed in place, so that no two processes change one
// file at the same time, and none reads it meanwhile.
//
// A lock is one of the system (flock), on the file itself: it ends with the process,
// however the process ends, and leaves nothing behind. It binds only callers who ask for
// it. A file system without locks gives none; callers then go on as if they were alone.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "holdfast/env/file.h"

namespace holdfast {

// The locks of some files. They end with this object.
class FileLocks {
 public:
  // Takes the lock of a file, unless this object has it. Fails with kConflict, naming the
  // process, if somebody else has it, and with the errors of opening the file.
  Result<void> add(Env& env, const Path& file, LockKind kind = LockKind::kExclusive);

 private:
  struct Locked {
    uint64_t device = 0;
    uint64_t inode = 0;
    std::unique_ptr<File> file{};  // null where the file system has no locks
  };
  std::vector<Locked> locked_;
};

// Tells who holds a lock of the file, in words: "process 4711 (holdfast)". Returns nullopt if
// nobody does, or if this system does not tell.
std::optional<std::string> who_locks(Env& env, const Path& file);

}  // namespace holdfast
