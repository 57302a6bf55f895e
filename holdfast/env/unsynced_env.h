// An Env that makes nothing durable: for scratch files, which nobody needs after a crash.
// A sync takes milliseconds on many disks, and copies of small files are made of syncs.
#pragma once

#include "holdfast/env/env_wrapper.h"

namespace holdfast {

class UnsyncedEnv : public EnvWrapper {
 public:
  using EnvWrapper::EnvWrapper;

  Result<std::unique_ptr<File>> open(const Path& path, OpenOptions options) override;
  // Only checks that it is a folder.
  Result<void> sync_folder(const Path& folder) override;
};

}  // namespace holdfast
