// An Env that reads checkpoints in object stores under names of their own, so that all that
// reads a run directory reads them too:
//
//   s3://bucket/gpt                              a run: the steps below that prefix
//   s3://bucket/gpt/step-00000400/manifest.json  a file of one of its steps
//   s3://bucket                                  a folder of runs
//
// Everything else passes on to another Env, except for names with other schemes ("gs://"):
// kInvalid. Object stores cannot be written to here:
// kUnsupported; jobs copy steps there (tier.h). A step that was saved several times is
// step-00000400, step-00000400.g2 and so on, oldest first. Nobody knows the number of a step
// whose manifest is damaged: it is a folder with the name of the manifest's key.
//
// A run is looked at, with a bucket opened anew, by list() and by who asks whether it is
// one (holdfast.json); in between it is as it was then. Errors of reading are those of
// object_store.h. Safe from several threads.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "holdfast/env/env.h"
#include "holdfast/remote/object_store.h"
#include "holdfast/store/location.h"

namespace holdfast {

class ObjectStoreEnv : public Env {
 public:
  // `inner` must outlive it.
  ObjectStoreEnv(Env& inner, OpenBucket open_bucket);
  ~ObjectStoreEnv() override;

  Result<std::unique_ptr<File>> open(const Path& path, OpenOptions options) override;
  Result<std::unique_ptr<File>> create_unnamed(const Path& folder) override;
  Result<void> name_file(File& file, const Path& to) override;
  Result<FileInfo> info(const Path& path) override;
  Result<void> remove_file(const Path& path) override;
  Result<void> rename(const Path& from, const Path& to) override;
  Result<void> rename_new(const Path& from, const Path& to) override;
  Result<void> link(const Path& from, const Path& to) override;
  Result<void> create_folder(const Path& path) override;
  Result<void> remove_folder(const Path& path) override;
  Result<std::vector<std::string>> list(const Path& folder) override;
  Result<void> sync_folder(const Path& folder) override;
  Result<int64_t> free_space(const Path& folder) override;

  Instant now() override { return inner_.now(); }
  WallTime wall_now() override { return inner_.wall_now(); }
  void sleep_for(Duration duration) override { inner_.sleep_for(duration); }
  void wait_until(Condition& condition, Mutex& mutex, Instant deadline) override
      HOLDFAST_REQUIRES(mutex) {
    inner_.wait_until(condition, mutex, deadline);
  }
  uint64_t random64() override { return inner_.random64(); }

 private:
  struct Place;
  struct Step;
  struct Run;

  static Place locate(const Path& path);
  // `before` is what the last look saw, or null.
  Result<std::unique_ptr<Run>> look(const Place& place, const Run* before)
      HOLDFAST_REQUIRES(mutex_);
  // The run at the place, looked at anew if `again`. kNotFound if nothing is there.
  Result<Run*> run_at(const Place& place, bool again) HOLDFAST_REQUIRES(mutex_);
  Result<Step*> step_at(const Place& place) HOLDFAST_REQUIRES(mutex_);
  Result<std::shared_ptr<const Source>> source_at(const Place& place)
      HOLDFAST_REQUIRES(mutex_);

  Env& inner_;
  const OpenBucket open_bucket_;
  Mutex mutex_;
  std::map<std::string, std::unique_ptr<Run>> runs_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast
