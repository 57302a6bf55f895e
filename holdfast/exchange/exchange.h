// Carries out a plan between the memories of ranks: the state of a job gets another
// layout while the job lives. docs/exchange.md tells what it is for.
//
// The protocol. All ranks of the transport take part, those that hold the state before
// and those that hold it after:
//
//   1. Prepare  The ranks compare the digests of the plan and of both layouts, and
//               agree on the earliest deadline. Each seals its old pieces; in shadow mode
//               it makes all new ones. They tell each other the seals, or why they
//               cannot go on. Replicas must be equal.
//               (With ExchangeProof::kMoved, only what is sent is sealed, in 2.)
//   2. Copy     Each rank sends, receives, passes on and copies its boxes
//               (move_pieces.h).
//   3. Verify   Each rank seals its new pieces from the memory in which they stay. They
//               tell each other the seals, or what failed. Replicas must be equal, and
//               the seal of every tensor must be the one before.
//   4. Commit   A rank that has heard all others in 3, and nothing bad, says "commit" to
//               all, else "abort". A rank commits if it has said "commit" itself and
//               hears no "abort".   <- the commit point
//   5. Release  Old pieces are released.
//
// What fails before 4 makes all ranks drop their new pieces. A message that is lost or a
// rank that dies in 3 keeps some rank from "commit", and its "abort" reaches the others.
// If that happens in 4, all ranks had heard all others in 3, so that all commit. So after
// any one fault all ranks that are left do the same; two faults at once in 3 and 4 may
// divide them.
//
// Nobody waits longer than the deadline.
#pragma once

#include <array>
#include <string>

#include "holdfast/exchange/carrier.h"
#include "holdfast/exchange/storage.h"
#include "holdfast/plan/plan.h"
#include "holdfast/state/seal.h"

namespace holdfast {

enum class ExchangeMode {
  // New pieces are made beside the old ones, which stay valid until the commit. A rank
  // needs memory for both.
  kShadow,
  // New pieces of a tensor are made when the tensor comes up, and old ones are released
  // after their last reader. After a failure in 2 or later the state of this job is lost
  // and must come from a checkpoint.
  kWindowed,
};
std::string_view name_of(ExchangeMode mode);  // "shadow", "windowed"

// What is sealed to prove that all bits arrived.
enum class ExchangeProof {
  // All tensors, before and after, also what stays where it is. Finds replicas that
  // differ, and takes as long as to read the state twice.
  kState,
  // Each box that is sent, by its sender and by its receiver.
  kMoved,
};

struct ExchangeOptions {
  ExchangeMode mode = ExchangeMode::kShadow;
  ExchangeProof proof = ExchangeProof::kState;
  // A rank waits for the others to come, and from then on the call ends, within
  // `patience` and so much more as the busiest rank needs to move and seal its bytes at
  // `slowest` bytes a second; or at `deadline` if that is earlier.
  Duration patience = std::chrono::seconds(30);
  int64_t slowest = 50'000'000;
  Instant deadline = kNoDeadline;
  // How many bytes may be on their way to this rank; and in windowed mode, how many bytes
  // of new pieces may wait for the old ones of their tensors to be released. There is
  // always room for 1 MiB from each sender and for one tensor.
  int64_t on_the_way = int64_t{256} << 20;
  // Carriers that may be used besides the transport, where they are possible. Direct is
  // not possible with ExchangeProof::kMoved: nothing is sent there.
  bool direct = true;
  bool shared_memory = true;
  // Pieces on CUDA devices are read and written after the work that is in this stream
  // when the call is made.
  CudaStream stream = nullptr;
};

struct ExchangeTask {
  // The state before and after, and the plan between the two, the same on all ranks. All
  // holders that have pieces are memories of ranks. They must outlive the call.
  const Collection* source = nullptr;
  const Collection* target = nullptr;
  const Plan* plan = nullptr;
  std::string holder{};  // the holder that this rank is; the rank may also be none
  LocalPieces old{};     // this rank's pieces in the source
};

struct Exchanged {
  ExchangeMode mode = ExchangeMode::kShadow;
  LocalPieces pieces{};  // this rank's pieces in the target
  // Numbers of bytes of this rank. What was received and sent is counted by the
  // carriers.
  std::array<int64_t, kCarriers> received{};
  std::array<int64_t, kCarriers> sent{};  // boxes that were passed on are included
  int64_t copied = 0;                     // inside the rank's memory
  int64_t kept = 0;                       // in boxes that stayed where they are
  // The most that old and new pieces and buffers had at one time.
  int64_t peak = 0;
  int64_t moved = 0;  // what the plan moves between all ranks together
  int64_t bound = 0;  // the least that any plan could move
  // Of the target's tensors; the same before and after. Empty with ExchangeProof::kMoved.
  std::vector<Seal> seals{};
  Duration prepared{}, copied_for{}, verified{};  // how long the phases took
};

// Called by all ranks of the transport together. New pieces get their memory from the
// storage; if the call fails, they are discarded, and in shadow mode the old pieces are
// as they were. Errors:
//
//   kInvalid      Ranks have different plans, or a rank's pieces are not those of the
//                 source. Nothing was sent.
//   kUnsupported  A holder is not a rank's memory.
//   kNoSpace      A rank has no memory for its new pieces.
//   kCorrupt      Replicas differ before or after, or a tensor is not what it was.
//   kUnavailable  A rank is gone, or the system refuses a thread.
//   kTimeout      The deadline passed.
//
// All ranks return the same error, as far as they can hear each other. After one of the
// last two, connect another transport to try again.
Result<Exchanged> exchange(Env& env, Transport& transport, const ExchangeTask& task,
                           PieceStorage& storage, const ExchangeOptions& options = {});

}  // namespace holdfast
