// How the bytes of one layout become another with the least movement: the one question
// behind saving, restoring, resizing, recovering and repairing.
//
// plan() is pure and deterministic: the same inputs give the same plan on every rank and
// with every compiler, so ranks need no coordinator to agree on it.
//
//   bytes      Every byte that a holder shall have and has not is moved to it once, so the
//              bytes moved equal the lower bound, always.
//   hosts      A byte that several holders of a host need enters the host once; the others
//              take it from the one that got it. So the bytes that cross hosts equal their
//              lower bound too, and a plan is a DAG: a move may read what an earlier move
//              has filled.
//   nearness   A byte comes from the nearest tier that has it (holder.h).
//   balance    Within the tier it comes from the holders that leave the busiest sender,
//              by its bandwidth, as little busy as possible (balance.h).
//   relays     Where more holders want a byte than have it, those served first pass it
//              on, in chains, so that no source sends more than it holds.
//
// An executor keeps the old bytes readable until the last move is done, and makes the new
// pieces elsewhere; only what is in place is the same memory before and after.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "holdfast/base/xxh3.h"
#include "holdfast/state/collection.h"

namespace holdfast {

inline constexpr uint32_t kNoMove = UINT32_MAX;

// One box goes from one piece to another.
struct Move {
  TensorId tensor;  // of the target
  uint32_t box;     // index into Plan::boxes
  PieceId from;     // of the source layout; of the target layout if `after` is set
  PieceId to;       // of the target layout
  HolderId
      from_holder;  // in Plan::holders; equal to to_holder for a copy in one memory
  HolderId to_holder;
  uint32_t after;  // the move that fills `from`, always an earlier one; or kNoMove

  friend bool operator==(const Move&, const Move&) = default;
};

// Bytes over one link; host to itself is between the memories of one host.
struct LinkLoad {
  HostId from;
  HostId to;
  int64_t bytes;
};

struct HolderLoad {
  int64_t sent = 0;       // as a source
  int64_t forwarded = 0;  // passed on after receiving it
  int64_t received = 0;
};

// All in bytes, exact. needed = in_place + copied + moved.
struct Figures {
  int64_t needed = 0;          // what the target holders shall have, replicas counted
  int64_t in_place = 0;        // there already, at the same address
  int64_t copied = 0;          // there already, at another address of the same memory
  int64_t moved = 0;           // from another holder
  int64_t crossing = 0;        // of moved: between hosts
  int64_t forwarded = 0;       // of moved: from a holder that was itself just filled
  int64_t moved_bound = 0;     // the least that any plan can move
  int64_t crossing_bound = 0;  // the least that any plan can take across hosts
  // Time of the busiest source by its bandwidth, and the least possible, in nanoseconds.
  int64_t egress_ns = 0;
  int64_t egress_bound_ns = 0;
  // Most extra memory of any one memory holder beyond the larger of its old and its new
  // state: if all old pieces are kept until the end, and if tensors are exchanged one by
  // one in the target's order.
  int64_t extra_memory = 0;
  int64_t extra_memory_by_tensor = 0;
};

struct Plan {
  std::vector<Holder> holders;  // the source's, then the target's new ones
  std::vector<Box> boxes;
  std::vector<Move> moves;  // in an order in which they can be carried out
  Figures figures;
  std::vector<LinkLoad> links;    // those with bytes, in order
  std::vector<HolderLoad> loads;  // one a holder
};

struct PlanOptions {
  // Off: every move reads the source layout, for executors that have no peers (files to
  // ranks). Then a host may import the same byte more than once.
  bool forwarding = true;
};

// Fails with kNotFound, naming tensor and box, where the source has lost something, and
// with kInvalid where the two disagree on a tensor or a holder.
Result<Plan> plan(const Collection& source, const Collection& target,
                  const Topology& topology, const PlanOptions& options = {});

// Of everything that the plan says, layouts' numbers included: equal on all ranks, or they
// do not mean the same plan.
Digest128 fingerprint(const Plan& plan);

// The copy that carries a move out, between the bytes of its two holders.
StridedCopy copy_of(const Plan& plan, const Move& move, const Collection& source,
                    const Collection& target);

}  // namespace holdfast
