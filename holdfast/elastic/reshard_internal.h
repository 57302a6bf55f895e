// The writing of the native target of reshard().
#pragma once

#include "holdfast/base/mutex.h"
#include "holdfast/elastic/reshard.h"

namespace holdfast {

// Counts bytes of all threads, and fails with kUnavailable if somebody has asked to stop.
// The callback is called by one thread at a time.
class Counter {
 public:
  Counter(const Reading& reading, int64_t total, int64_t done = 0)
      : reading_(reading), total_(total), done_(done) {}
  Result<void> add(int64_t bytes);

 private:
  const Reading& reading_;
  const int64_t total_;
  Mutex mutex_;
  int64_t done_ HOLDFAST_GUARDED_BY(mutex_);
};

// How many bytes compare_seals() reads from the source. A step has recorded its seals;
// those of other sources are computed from their bytes, and their digests are checked.
int64_t bytes_to_seal(const ReshardPlan& plan);

// Writes the run directory of the target, except for its name.
Result<Resharded> write_native(Env& env, const ReshardPlan& plan, const Path& to,
                               const ReshardOptions& options);

// Fails, naming the tensor, unless target and source have the same seals. `of_target` has
// the seals by the numbers of plan.files. Returns how many were compared. What is read
// from the source is counted.
Result<int64_t> compare_seals(const ReshardPlan& plan, std::span<const Seal> of_target,
                              Counter& counter);

// The hidden folders that hold the files of a target until it is whole.
struct WorkFolder {
  Path run;    // the run while it is written
  Path files;  // its finished shards
};
WorkFolder work_folder(const Path& to);

// The number of the target's tensor in the source.
TensorId source_tensor(const ReshardPlan& plan, TensorId of_target);

}  // namespace holdfast
