// An Env that tries a failed read again before it gives up. It passes every call on to
// another Env. If a call that reads, lists or asks for information fails with one of
// these codes, it repeats the call after a pause, up to twice:
//
//   kIo            a bad sector, or a cable: if the error stays, the bytes are lost, so
//                  it becomes kCorrupt and the caller takes an older copy
//   kUnavailable,  no memory, too many open files, a stale handle of a network file
//   kTimeout       system: the bytes may be fine, so the code stays
//
// Before it reads a file again it opens the file again, because a stale handle needs
// that. Calls that write are passed on unchanged. Its files refer to the other Env, so
// they may outlive this one.
#pragma once

#include "holdfast/env/env_wrapper.h"

namespace holdfast {

class PatientEnv : public EnvWrapper {
 public:
  // `inner` must outlive this Env and its files.
  using EnvWrapper::EnvWrapper;

  Result<std::unique_ptr<File>> open(const Path& path, OpenOptions options) override;
  Result<FileInfo> info(const Path& path) override;
  Result<std::vector<std::string>> list(const Path& folder) override;
};

}  // namespace holdfast
