// The writing of the targets of reshard().
#pragma once

#include <thread>

#include "holdfast/base/mutex.h"
#include "holdfast/reshard/reshard.h"
#include "holdfast/store/owner.h"

namespace holdfast {

// Counts bytes of all threads, and fails with kUnavailable if somebody has asked to stop.
// The callback is called by one thread at a time.
class Counter {
 public:
  Counter(const Reading& reading, int64_t total, int64_t done = 0)
      : reading_(reading), total_(total), done_(done) {}
  Result<void> add(int64_t bytes);

 private:
  const Reading reading_;
  const int64_t total_;
  Mutex mutex_;
  int64_t done_ HOLDFAST_GUARDED_BY(mutex_);
};

// Renews the lease of a run three times in its duration, so that processes on other
// machines see that its owner is at work. Ignores failures: the owner is checked before
// anything is published.
class LeaseKeeper {
 public:
  LeaseKeeper(Env& env, const Owner& owner);
  ~LeaseKeeper();

 private:
  void keep(Instant renewed);
  // False if the keeper is being destroyed.
  bool sleep_until(Instant end);

  Env& env_;
  Owner owner_;
  Mutex mutex_;
  Condition stops_;
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  std::jthread thread_;  // the last member: it is joined before the others go
};

// A number that identifies the source and the target: files of an earlier call are kept
// only if theirs is the same.
Result<std::string> fingerprint_of(Env& env, const ReshardPlan& plan);

// The file in the hidden folder that has this number.
inline constexpr std::string_view kPlanName = "reshard.txt";

// How many files are written at once.
int writers_of(const ReshardOptions& options, int64_t files);

// How many bytes compare_seals() reads from the source. A step has recorded its seals;
// those of other sources are computed from their bytes, and their digests are checked.
int64_t bytes_to_seal(const ReshardPlan& plan);

// Writes the run directory of the target, except for its name.
Result<Resharded> write_native(Env& env, const ReshardPlan& plan, const Path& to,
                               const ReshardOptions& options);

// Writes a folder of DCP or of Megatron. Its files are in the folder "files" of the hidden
// run until all of them are finished.
Result<Resharded> write_folder(Env& env, const ReshardPlan& plan, const Path& to,
                               const ReshardOptions& options);

// Ranks of Megatron have copies of some tensors: norms, position embeddings and a tied output
// layer. Fails with kInvalid, naming the tensor, if copies differ: then no single tensor
// can stand for them.
Result<void> check_replicas(const Contents& contents, Counter& counter);

// The seal of the first bytes of a tensor.
Result<Seal> seal_of_tensor(const Contents& contents, TensorId tensor, int64_t bytes,
                            Counter& counter);
// The seal that the source has recorded for a tensor, if it has one.
std::optional<Seal> recorded_seal(const ReshardPlan& plan, TensorId tensor);

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
