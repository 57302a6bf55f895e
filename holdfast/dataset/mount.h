// Shows a MountTree as a folder of the system, by FUSE (libfuse3). Read only.
//
// A build without libfuse3 has a stub: mount_tree() fails with kUnsupported and names the
// package.
#pragma once

#include <functional>
#include <string>

#include "holdfast/dataset/mount_tree.h"

namespace holdfast {

struct MountOptions {
  // An empty folder.
  Path at{};
  // Called once, when the files can be read.
  std::function<void()> ready{};
  // Called with a sentence about each failed read; by several threads, but not at once.
  std::function<void(const std::string&)> report{};
};

// Serves the files until the folder is unmounted, or SIGINT, SIGTERM or SIGHUP comes;
// then unmounts it. Fails with kUnsupported without FUSE, and with kIo, with what libfuse
// says, if the folder cannot be mounted. At most one call at a time in a process.
Result<void> mount_tree(const MountTree& tree, const MountOptions& options);

// If a mount lies at the folder whose program is gone, unmounts it and returns true.
Result<bool> remove_dead_mount(const Path& at);

}  // namespace holdfast
