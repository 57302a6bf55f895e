// Leaves the state of a job in the memory of its hosts, so that the next processes find
// it there, whatever their number and their split of the model (adopt.h).
//
// The protocol. All ranks make the call together, when training has stopped:
//
//   1. Room     Each rank makes the place of its host ((shared_place/shared_place.h)) and says
//               which place that is, how much room it has and how large its shard is.
//               Rank 0 also says the age of the step, (epoch, sequence), and checks that
//               it owns the run. If a place has no room for the shards of its ranks, all
//               ranks fail.
//   2. Write    Each rank writes its shard there, and says its files and the bytes of the
//               small ones: index and objects. Rank 0 looks again whether it owns the run.
//   3. Publish  The first rank of each place adds the small files of all ranks and the
//               manifest, and makes the step visible. They say that they have. If all
//               have, the step is left.               <- the commit point of each host
//   4. Older steps in the places are removed.
//
// A failure that is said in 1 to 3 makes all ranks fail, and each removes the new step
// again. A rank that dies in 3 may leave the step on some hosts only. The next processes
// then count its shards: the step counts only if every host has published it.
//
// Nothing here is durable, so the caller's handle to the run stays as it was.
#pragma once

#include "holdfast/checkpoint/saver.h"
#include "holdfast/handover/rounds.h"
#include "holdfast/shared_place/shared_place.h"

namespace holdfast {

struct LeaveRequest {
  const LocalState* state = nullptr;
  Result<SaveObjects> objects = SaveObjects{};  // if it has failed, all ranks fail
  // Step, metrics, parallel and parent of the step. On rank 0 also run, epoch, sequence,
  // time and software; a failure there says that the run has another owner.
  Result<Manifest> manifest = Manifest{};
  // Called on rank 0 before the commit: fails if the run has another owner by now.
  std::function<Result<void>()> check_owner{};
  CudaStream stream = nullptr;  // pieces on devices are read after the work in it
};

struct LeaveOptions {
  int64_t reserve = int64_t{64} << 20;  // bytes of a host's memory that stay free
  Duration timeout = std::chrono::seconds(60);       // for a decision
  Duration write_timeout = std::chrono::minutes(30);  // until all have written
};

struct LeftStep {
  Path folder;        // on this rank's host
  int64_t bytes = 0;  // of the shards of all ranks
  int places = 0;     // hosts that have a part of it
};

// Errors, the same on all ranks unless a rank is lost: kNoSpace if a host has no room,
// kDenied if a place belongs to somebody else, kConflict if the run has another owner,
// kTimeout and kUnavailable if a rank is not heard, and those of Env.
Result<LeftStep> leave_in_memory(const JobRanks& ranks, const SharedPlace& place,
                                 const LeaveRequest& request,
                                 const LeaveOptions& options = {});

}  // namespace holdfast
