// Tiers: places that keep whole checkpoints, behind one interface. A tier is a run
// directory on a disk, a run directory in shared memory (which survives the process but
// not the machine), or a prefix in an object store.
//
// Saves go to one tier, the run directory of the job (Saver). A step that is committed
// there is then copied to the other tiers. If a step is only in another tier, it is
// copied back before it is restored. A copy is the same checkpoint: its manifest is
// copied byte for byte, so its age, its digests and its attempt are those of the
// original.
//
// Safe from several threads. Errors are those of Env and of object_store.h.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "holdfast/store/records.h"

namespace holdfast {

class ObjectStore;
class ObjectStoreRun;
class Source;

// A committed step in a tier.
struct TierStep {
  // The tier's name for the step: "step-00000400", or the step's attempt in an object
  // store.
  std::string id;
  Manifest manifest;
  Bytes manifest_bytes;
  // Whether a pin mark stands beside the step. Object stores have no pin marks.
  bool pinned = false;
};

// Something in a tier that looks like a step and cannot be used.
struct UnusableStep {
  // The name of a folder, or a key in an object store.
  std::string id;
  // Says what is damaged, or why the step cannot be read now (is_damage() tells which).
  Error error;
  // The epoch of the step, if the name tells it.
  std::optional<int64_t> epoch{};
};

struct TierSteps {
  std::vector<TierStep> steps{};  // newest first
  std::vector<UnusableStep> unusable{};
};

// True for failures that reading again does not mend: wrong or missing bytes. All other
// failures (a full disk, a server that does not answer, a newer version) may pass.
bool is_damage(const Error& error);

using OpenFile =
    std::function<Result<std::shared_ptr<const Source>>(const ManifestFile& file)>;

class StorageTier {
 public:
  virtual ~StorageTier() = default;

  // The name for messages and reports: "/dev/shm/gpt", "s3://bucket/gpt".
  virtual const std::string& name() const = 0;
  // Lists everything that the tier holds. Fails if the tier cannot be reached.
  virtual Result<TierSteps> list() = 0;
  // Only the steps of list().
  Result<std::vector<TierStep>> steps();
  virtual Result<std::shared_ptr<const Source>> open(const TierStep& step,
                                                     const std::string& file) = 0;
  // Copies a step into the tier. `open` gives its files. Afterwards the whole step is
  // there and durable, or nothing of it. Checks every file against its digest on the
  // way; fails with kCorrupt, and keeps nothing, if one is wrong. Succeeds if the whole
  // step is there already.
  virtual Result<void> put(const TierStep& step, const OpenFile& open) = 0;
  virtual Result<void> remove(const TierStep& step) = 0;
  // Removes what killed copies and removals of this run have left. Only for a tier that
  // nobody but the caller writes to. Removes nothing from a tier that holds another run,
  // or a run directory that has an owner, and from an object store only what is older
  // than `before` by the server's clock. Returns how much was removed.
  virtual Result<int64_t> sweep(const std::string& run_id, WallTime before) = 0;
};

// A run directory as a tier. The first put() makes the directory, with the run id of
// that step. put() fails with kConflict for a step of another run. list() also finds
// steps if holdfast.json is lost, as long as they belong to one run; the lost file is
// listed as damage. `env` must outlive the tier.
std::unique_ptr<StorageTier> make_folder_tier(Env& env, Path run);
// A prefix in an object store as a tier. put() fails with kConflict for a step of
// another run, and with kCorrupt if the store has manifests and none can be read,
// because then nobody knows which run they belong to. The store behind `objects` must
// outlive the tier.
std::unique_ptr<StorageTier> make_object_tier(ObjectStoreRun objects);

// Opens the object store of a bucket. The store is shared by all users of the bucket.
using OpenBucket =
    std::function<Result<std::shared_ptr<ObjectStore>>(const std::string& bucket)>;

// Opens a tier by its name: "s3://bucket/prefix" is a prefix in an object store, which
// the tier opens and owns; any other name is a run directory. Fails with kInvalid if
// the name is not allowed (location.h), and with the error of `open_bucket`.
Result<std::shared_ptr<StorageTier>> open_tier(Env& env, const std::string& place,
                                               const OpenBucket& open_bucket);

// The same with a function that looks environment variables up: object stores are opened
// with the endpoint and the keys that the variables name (s3_store.h).
Result<std::shared_ptr<StorageTier>> open_tier(
    Env& env, const std::string& place,
    const std::function<std::optional<std::string>(const std::string&)>& variables);

// Copies a step from one tier to another and checks its digests on the way.
Result<void> copy_step(StorageTier& from, const TierStep& step, StorageTier& to);

// A tier that a job copies its committed steps to.
struct TierCopy {
  // Shared with the code that restores from the tier.
  std::shared_ptr<StorageTier> tier;
  int64_t every = 1;  // copy every n-th committed step
  // The rule for the steps that the tier keeps; not set: all. Steps that are pinned
  // in the run directory are always kept.
  std::optional<Keep> keep{};
};

// The tiers alone, for code that reads from them.
std::vector<std::shared_ptr<StorageTier>> tiers_of(const std::vector<TierCopy>& copies);

struct RetainOptions {
  // Numbers of steps that stay, in addition to those with a pin mark.
  std::set<int64_t> pinned{};
  // Called for each removed step, with the newest step that stays.
  std::function<void(const TierStep& gone, const TierStep& newest)> on_removed{};
};

// Removes the steps that the rules do not keep. Only for a tier that nobody but the
// caller writes to. All steps of the tier count as whole. Damaged steps stay.
Result<void> retain(StorageTier& tier, const Keep& keep,
                    const RetainOptions& options = {});

}  // namespace holdfast
