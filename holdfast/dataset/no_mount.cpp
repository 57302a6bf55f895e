// Replaces mount.cpp in a build without libfuse3: nothing can be mounted.
#include "holdfast/dataset/mount.h"

namespace holdfast {

Result<void> mount_tree(const MountTree&, const MountOptions& options) {
  return unsupported(
      "{}: this build has no FUSE; expected one with libfuse3 (the package libfuse3-dev) and "
      "the option HOLDFAST_FUSE=ON, and /dev/fuse on the machine",
      options.at.native());
}

Result<bool> remove_dead_mount(const Path&) { return false; }

}  // namespace holdfast
