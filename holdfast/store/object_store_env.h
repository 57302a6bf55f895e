// An Env that shows checkpoints in object stores as run directories with files, so that
// all code that reads a run directory can read them too, and other objects as files:
//
//   s3://bucket/gpt                              a run: the steps below that prefix
//   s3://bucket/gpt/step-00000400/manifest.json  a file of one of its steps
//   s3://bucket                                  a folder of runs
//   s3://bucket/c4/a.jsonl                       an object that belongs to no run: a file
//
// list() shows other objects only where there are no runs. It looks at all objects below
// the folder, however deep.
//
// Calls for all other paths go to another Env, except that paths with other schemes
// ("gs://") fail with kInvalid. Object stores cannot be written to through this Env:
// such calls fail with kUnsupported. Jobs copy steps to object stores as tiers
// (tier.h).
//
// A step that was saved several times is shown as step-00000400, step-00000400.g2 and
// so on, oldest first. If a manifest is damaged, the number of its step is unknown; the
// step is then shown as a folder with the name of the manifest's key.
//
// list() and reading holdfast.json ask the store again, with the bucket opened anew.
// All other calls about runs use what the last of these two calls saw; calls about other
// objects always ask the store. Errors of reading are those of object_store.h. Safe from
// several threads.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>

#include "holdfast/env/env_wrapper.h"
#include "holdfast/remote/object_store.h"
#include "holdfast/store/location.h"
#include "holdfast/store/tier.h"

namespace holdfast {

class ObjectStoreEnv : public EnvWrapper {
 public:
  // `inner` gets all calls for paths outside object stores. It must outlive this Env.
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

 private:
  struct Place;
  struct Step;
  struct Run;

  static Place locate(const Path& path);
  // Reads from the store which steps the run at `place` has. `before` is the result of
  // the last such call for this run, or null.
  Result<std::unique_ptr<Run>> read_run(const Place& place, const Run* before)
      HOLDFAST_REQUIRES(mutex_);
  // The run at the place. Asks the store again if `again` is true. Fails with kNotFound
  // if there is neither a run nor a folder of runs.
  Result<Run*> run_at(const Place& place, bool again) HOLDFAST_REQUIRES(mutex_);
  Result<Step*> step_at(const Place& place) HOLDFAST_REQUIRES(mutex_);
  Result<std::shared_ptr<const Source>> source_at(const Place& place)
      HOLDFAST_REQUIRES(mutex_);
  // The bucket of objects that belong to no run. Opens it anew if `again` is true.
  Result<std::shared_ptr<ObjectStore>> bucket_at(const Place& place, bool again)
      HOLDFAST_REQUIRES(mutex_);
  // Size and time of an object that belongs to no run. Fails with kNotFound if there is
  // none.
  Result<FileInfo> object_info(const Place& place) HOLDFAST_REQUIRES(mutex_);
  // The names of the objects, and the parts of longer keys, directly below the place.
  Result<std::vector<std::string>> objects_below(const Place& place)
      HOLDFAST_REQUIRES(mutex_);

  const OpenBucket open_bucket_;
  Mutex mutex_;
  std::map<std::string, std::shared_ptr<ObjectStore>> buckets_
      HOLDFAST_GUARDED_BY(mutex_);
  // Objects that list() saw, by Place::run(). No run is looked for at these places.
  std::set<std::string> objects_ HOLDFAST_GUARDED_BY(mutex_);
  std::map<std::string, std::unique_ptr<Run>> runs_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast
