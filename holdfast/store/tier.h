// Places that keep whole checkpoints, behind one interface: a run directory on a disk, a
// run directory in shared memory (which survives the process, not the machine), a prefix
// of an object store.
//
// Saving goes to one of them, the run directory (Saver); a step that is committed there
// is then copied to others, and a step that is nowhere else is copied back before it is
// restored. A copy is the same checkpoint: its manifest is copied byte for byte, so its
// age, its digests and its attempt are those of the original.
//
// Safe from several threads. Errors are those of Env and of object_store.h.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "holdfast/env/source_sink.h"
#include "holdfast/store/manifest.h"
#include "holdfast/store/object_store_run.h"
#include "holdfast/store/retention.h"

namespace holdfast {

// A committed step of a tier.
struct TierStep {
  std::string id;  // what the tier calls it: "step-00000400", a manifest's name
  Manifest manifest;
  Bytes manifest_bytes;
  bool pinned = false;  // a mark beside it says so; object stores have none
};

// What looks like a step of a tier and cannot be used.
struct UnusableStep {
  std::string id;                  // a folder's name, a key
  Error error;                     // damage, or why it cannot be read now (is_damage)
  std::optional<int64_t> epoch{};  // of the step, where the name tells
};

struct TierSteps {
  std::vector<TierStep> steps{};  // newest first
  std::vector<UnusableStep> unusable{};
};

// True for what reading again does not mend: bytes that are wrong or missing. All else (a
// full disk, a server that is silent, a newer version) is trouble that may pass.
bool is_damage(const Error& error);

using OpenFile =
    std::function<Result<std::shared_ptr<const Source>>(const ManifestFile& file)>;

class StorageTier {
 public:
  virtual ~StorageTier() = default;

  // For messages and reports: "/dev/shm/gpt", "s3://bucket/gpt".
  virtual const std::string& name() const = 0;
  // Everything that it holds. Fails where the tier cannot be asked.
  virtual Result<TierSteps> list() = 0;
  // The steps of list() alone.
  Result<std::vector<TierStep>> steps();
  virtual Result<std::shared_ptr<const Source>> open(const TierStep& step,
                                                     const std::string& file) = 0;
  // Takes a step whose files `open` gives. All of it is there and durable afterwards, or
  // none of it. Every file is held against its digest on the way: kCorrupt, and nothing is
  // taken, if one is wrong. A step that is there already, whole, is success.
  virtual Result<void> put(const TierStep& step, const OpenFile& open) = 0;
  virtual Result<void> remove(const TierStep& step) = 0;
  // Removes what copies and removals that were killed have left, of a tier that is written
  // by its caller alone; nothing of a run directory that somebody owns. Of an object store
  // only what is from before `before`, by the server's clock. How much went.
  virtual Result<int64_t> sweep(WallTime before) = 0;
};

// A run directory. It is made when a step is put into it, as the run of that step;
// kConflict for steps of another run. Steps are listed also where holdfast.json is lost, as
// long as they are of one run; that counts as damage. `env` must outlive the tier.
std::unique_ptr<StorageTier> make_folder_tier(Env& env, Path run);
// kConflict for steps of another run, kCorrupt where no manifest of the store can be read,
// so that nobody knows whose they are. The store behind `objects` must outlive the tier.
std::unique_ptr<StorageTier> make_object_tier(ObjectStoreRun objects);

// A tier by name: of an object store for "s3://bucket/prefix", which it opens and owns,
// else a run directory. kInvalid for a name that cannot be (location.h); else as `open_bucket`
// fails.
Result<std::shared_ptr<StorageTier>> open_tier(Env& env, const std::string& place,
                                               const OpenBucket& open_bucket);

// Copies a step, checked on the way.
Result<void> copy_step(StorageTier& from, const TierStep& step, StorageTier& to);

struct RetainOptions {
  std::set<int64_t> pinned{};  // numbers of steps that stay, beside those with a mark
  // Called for each step that is gone, with the newest that stays.
  std::function<void(const TierStep& gone, const TierStep& newest)> on_removed{};
};

// Removes the steps that the rules do not keep, of a tier that is written by its caller
// alone. All of its steps count as whole; what is damaged stays.
Result<void> retain(StorageTier& tier, const Keep& keep,
                    const RetainOptions& options = {});

}  // namespace holdfast
