// An Env for reading what is not to be given up lightly. It passes every call on to another
// Env, and makes one that looks or reads again, after a pause, where its failure may pass:
//
//   kIo            a bad sector, or a cable: if it stays, the bytes are lost, and the
//                  answer is kCorrupt, so that the caller takes an older copy
//   kUnavailable,  no memory, too many open files, a stale handle of a network file system:
//   kTimeout       the bytes may be fine, so the answer stays what it is
//
// A file is opened anew before it is read again, which a stale handle needs. What writes is
// passed on untouched. Files hold on to the other Env, not to this one.
#pragma once

#include "holdfast/env/env.h"

namespace holdfast {

class PatientEnv : public Env {
 public:
  // `inner` must outlive it, and its files.
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
