// The files of what a path names, and their locks.
#pragma once

#include <string>
#include <vector>

#include "holdfast/contents/file_locks.h"
#include "holdfast/inspect/open_any.h"

namespace holdfast {

// A file of a checkpoint.
struct NamedFile {
  std::string name{};
  Path path{};
};

// The files of what was found. A single file has its own name, the files of a folder have
// their names in it, and those of a TensorFlow checkpoint have their names after its prefix.
Result<std::vector<NamedFile>> files_of(Env& env, const Found& found);

// Locks all files of what was found (contents/file_locks.h): a command that changes them
// needs the exclusive locks, and one that reads all of them the shared ones.
Result<void> lock_files_of(Env& env, const Found& found, LockKind kind, FileLocks& locks);

}  // namespace holdfast
