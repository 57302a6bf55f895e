// A plan: the moves that turn one layout into another with the fewest bytes. Saving,
// restoring, resizing, recovering and repairing all need one.
//
// plan() is pure and deterministic: the same inputs give the same plan on every rank
// and with every compiler, so ranks agree on it without messages.
//
//   bytes      Every byte that a holder needs and does not have is moved to it once. So
//              the bytes moved always equal the lower bound.
//   hosts      A byte that several holders of a host need enters the host once; the
//              other holders get it from the one that received it. So the bytes that
//              cross hosts equal their lower bound too. A move may read what an earlier
//              move has written; Move::after names that earlier move.
//   nearness   A byte comes from the nearest holders that have it (Distance in
//              layout.h).
//   balance    Among equally near holders, bytes are shared out so that the busiest
//              sender, by its bandwidth, is done as early as possible (balance.h).
//   relays     If more holders need a byte than have it, those served first pass it on,
//              in chains, so that no source sends more than it holds.
//
// Whoever carries a plan out keeps the old bytes readable until the last move is done,
// and creates the new pieces in other memory. Only bytes that are in place have the
// same memory before and after.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "holdfast/state/collection.h"

namespace holdfast {

struct StridedCopy;

inline constexpr uint32_t kNoMove = UINT32_MAX;

// One box goes from one piece to another.
struct Move {
  TensorId tensor;  // in the target
  uint32_t box;     // index into Plan::boxes
  PieceId from;     // in the source layout; in the target layout if `after` is set
  PieceId to;       // in the target layout
  // Both are indices into Plan::holders. They are equal for a copy inside one memory.
  HolderId from_holder;
  HolderId to_holder;
  uint32_t after;  // the earlier move that writes to `from`, or kNoMove

  friend bool operator==(const Move&, const Move&) = default;
};

// The bytes from one host to another. If both are the same host: the bytes between the
// memories of that host.
struct LinkLoad {
  HostId from;
  HostId to;
  int64_t bytes;
};

struct HolderLoad {
  int64_t sent = 0;       // as a source
  int64_t forwarded = 0;  // passed on after receiving them
  int64_t received = 0;
};

// Exact numbers of bytes. needed = in_place + copied + moved.
struct Figures {
  int64_t needed = 0;       // what the target's holders shall have, with all replicas
  int64_t in_place = 0;     // already on the holder, at the same address
  int64_t copied = 0;       // already on the holder, at another address
  int64_t moved = 0;        // come from another holder
  int64_t crossing = 0;     // the part of `moved` that goes between hosts
  int64_t forwarded = 0;    // the part of `moved` that a receiver passes on
  int64_t moved_bound = 0;  // the least that any plan can move
  int64_t crossing_bound = 0;  // the least that any plan can move between hosts
  // The time of the busiest source by its bandwidth, and the least possible, in
  // nanoseconds.
  int64_t egress_ns = 0;
  int64_t egress_bound_ns = 0;
  // The most memory that any one memory holder needs beyond the larger of its old and
  // its new state: if all old pieces are kept until the end, and if tensors are
  // exchanged one by one in the target's order.
  int64_t extra_memory = 0;
  int64_t extra_memory_by_tensor = 0;
};

struct Plan {
  std::vector<Holder> holders;  // those of the source, then the target's new ones
  std::vector<Box> boxes;
  std::vector<Move> moves;  // in an order in which they can be carried out
  Figures figures;
  std::vector<LinkLoad> links;    // only those with bytes, in order of hosts
  std::vector<HolderLoad> loads;  // by holder
};

struct PlanOptions {
  // If false, every move reads from the source layout. That is for ranks that read
  // files and do not send to each other. A host may then import the same byte more than
  // once.
  bool forwarding = true;
  // If true, no holder of the target is one of the source, not even if they have the same
  // name. That is for files that are written anew: the name of a file may be any text.
  bool new_holders = false;
};

// Fails with kNotFound, naming tensor and box, where the source has lost something, and
// with kInvalid where the two disagree on a tensor or a holder.
Result<Plan> plan(const Collection& source, const Collection& target,
                  const Topology& topology, const PlanOptions& options = {});

// The copy that a move stands for, between the bytes of its two holders.
StridedCopy copy_of(const Plan& plan, const Move& move, const Collection& source,
                    const Collection& target);

}  // namespace holdfast
