// Fills the memory of some ranks from the memories of others that hold the same
// tensors: a replacement of a lost rank gets its state from the replicas.
//
//   1. The ranks tell each other which pieces they have and who is whole (exchange_agreement.h).
//   2. Each rank makes the same plan (plan/plan.h): from the pieces of the whole ranks
//      to those of the ranks that are to be filled. The load is spread over all
//      replicas that are equally near.
//   3. For each pair of ranks, a thread of the sender sends the boxes and a thread of
//      the receiver puts them into place. On one machine they go through shared
//      memory, else over the transport. At most 16 MiB are under way between two
//      ranks.
//   4. The sender says the seal of each box. The receiver compares it with the seal of
//      what is in its own memory.
//   5. The ranks tell each other how it went. If anything failed, the call fails on all
//      ranks with the same error.
//
// The memory of a whole rank is only read. The memory of a rank that is to be filled is
// undefined after a failure.
#pragma once

#include "holdfast/env/env.h"
#include "holdfast/memory/local_state.h"
#include "holdfast/transport/transport.h"

namespace holdfast {

struct FillOptions {
  // True if the pieces hold the state; false if they are to be filled.
  bool is_whole = false;
  // When the call must have ended. If ranks have different times left when they have
  // met, the shortest counts for all.
  Instant deadline = kNoDeadline;
  // Pieces on CUDA devices are read and written after the work that is in this stream
  // when the call is made.
  CudaStream stream = nullptr;
  // False: the bytes of this rank go over the transport also if the other rank is on the
  // same machine.
  bool shared_memory = true;
};

// Numbers of bytes.
struct Filled {
  int64_t received = 0;  // by this rank
  int64_t sent = 0;      // by this rank
  int64_t moved = 0;     // between all ranks together
  int64_t shared = 0;    // the part of this rank that went through shared memory
};

// Called by all ranks of the transport together; it makes collective calls. Any number
// of ranks may be whole, and a whole rank may hold more than the others need.
//
//   kInvalid      Two ranks disagree on a tensor, or a rank's pieces are wrong.
//   kNotFound     No whole rank has a box that is needed. Names tensor and box.
//   kCorrupt      What arrived differs from what was sent. Names tensor and ranks.
//   kUnavailable  A rank is gone.
//   kTimeout      The deadline passed.
//
// All ranks return the same error, unless a rank is lost, or a message about the
// outcome is. After an error other than kInvalid and kNotFound, messages may be left in
// the transport, and another transport is needed to try again.
Result<Filled> fill_from_peers(Env& env, Transport& transport,
                               const LocalPieces& pieces, const FillOptions& options);

}  // namespace holdfast
