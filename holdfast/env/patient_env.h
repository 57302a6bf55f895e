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

#include "holdfast/env/env.h"

namespace holdfast {

class PatientEnv : public Env {
 public:
  // `inner` must outlive this Env and its files.
  explicit PatientEnv(Env& inner) : inner_(inner) {}

  Result<std::unique_ptr<File>> open(const Path& path, OpenOptions options) override;
  Result<FileInfo> info(const Path& path) override;
  Result<std::vector<std::string>> list(const Path& folder) override;

  Result<void> remove_file(const Path& path) override {
    return inner_.remove_file(path);
  }
  Result<void> rename(const Path& from, const Path& to) override {
    return inner_.rename(from, to);
  }
  Result<void> rename_new(const Path& from, const Path& to) override {
    return inner_.rename_new(from, to);
  }
  Result<void> link(const Path& from, const Path& to) override {
    return inner_.link(from, to);
  }
  Result<void> create_folder(const Path& path) override {
    return inner_.create_folder(path);
  }
  Result<void> remove_folder(const Path& path) override {
    return inner_.remove_folder(path);
  }
  Result<void> sync_folder(const Path& folder) override {
    return inner_.sync_folder(folder);
  }
  Result<int64_t> free_space(const Path& folder) override {
    return inner_.free_space(folder);
  }
  Result<std::unique_ptr<File>> create_unnamed(const Path& folder) override {
    return inner_.create_unnamed(folder);
  }
  Result<void> name_file(File& file, const Path& to) override {
    return inner_.name_file(file, to);
  }

  Instant now() override { return inner_.now(); }
  WallTime wall_now() override { return inner_.wall_now(); }
  void sleep_for(Duration duration) override { inner_.sleep_for(duration); }
  void wait_until(Condition& condition, Mutex& mutex, Instant deadline) override
      HOLDFAST_REQUIRES(mutex) {
    inner_.wait_until(condition, mutex, deadline);
  }
  uint64_t random64() override { return inner_.random64(); }

 private:
  Env& inner_;
};

}  // namespace holdfast
