// An Env that shows files as they will be when a patch is applied, to check the result
// before anything is written. It passes every other call on.
#pragma once

#include "holdfast/contents/patch.h"
#include "holdfast/env/env_wrapper.h"

namespace holdfast {

class PatchedEnv : public EnvWrapper {
 public:
  // `inner` and `patch` must outlive this Env, and this Env its files.
  PatchedEnv(Env& inner, const Patch& patch) : EnvWrapper(inner), patch_(patch) {}

  Result<std::unique_ptr<File>> open(const Path& path, OpenOptions options) override;
  Result<FileInfo> info(const Path& path) override;

 private:
  class OpenFile;
  const FilePatch* patch_of(const Path& path) const;

  const Patch& patch_;
};

}  // namespace holdfast
