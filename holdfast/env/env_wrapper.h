// An Env that passes every call on to another Env. Classes that change some calls derive
// from it and override just those.
#pragma once

#include "holdfast/base/mutex.h"
#include "holdfast/env/env.h"
#include "holdfast/env/file.h"

namespace holdfast {

class EnvWrapper : public Env {
 public:
  // `inner` must outlive this Env.
  explicit EnvWrapper(Env& inner) : inner_(inner) {}

  Result<std::unique_ptr<File>> open(const Path& path, OpenOptions options) override {
    return inner_.open(path, options);
  }
  Result<FileInfo> info(const Path& path) override { return inner_.info(path); }
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
  Result<std::unique_ptr<File>> create_unnamed(const Path& folder) override {
    return inner_.create_unnamed(folder);
  }
  Result<void> name_file(File& file, const Path& to) override {
    return inner_.name_file(file, to);
  }
  Result<void> create_folder(const Path& path) override {
    return inner_.create_folder(path);
  }
  Result<void> remove_folder(const Path& path) override {
    return inner_.remove_folder(path);
  }
  Result<std::vector<std::string>> list(const Path& folder) override {
    return inner_.list(folder);
  }
  Result<void> sync_folder(const Path& folder) override {
    return inner_.sync_folder(folder);
  }
  Result<int64_t> free_space(const Path& folder) override {
    return inner_.free_space(folder);
  }

  Instant now() override { return inner_.now(); }
  WallTime wall_now() override { return inner_.wall_now(); }
  void sleep_for(Duration duration) override { inner_.sleep_for(duration); }
  void wait_until(Condition& condition, Mutex& mutex, Instant deadline) override
      HOLDFAST_REQUIRES(mutex) {
    inner_.wait_until(condition, mutex, deadline);
  }
  uint64_t random64() override { return inner_.random64(); }

 protected:
  Env& inner_;
};

}  // namespace holdfast
