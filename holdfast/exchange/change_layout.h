// Gives the state of a job another layout while the job lives. Each rank says which
// pieces of the state it holds and which it wants to hold, and gets those from the
// others. One call is for all changes: a process that replaces a lost rank holds nothing
// and wants that rank's part; a job that grows, shrinks or cuts its tensors in another
// way has ranks that hold, want, or both.
//
//   1. The ranks tell each other what they hold and what they want
//      (exchange_agreement.h).
//   2. Each rank makes the same plan (plan/plan.h). The load is spread over all replicas
//      that are equally near.
//   3. They carry it out (exchange.h).
#pragma once

#include <vector>

#include "holdfast/exchange/exchange.h"

namespace holdfast {

struct LayoutChange {
  LocalPieces old{};  // what this rank holds of the state; their memory is only read
  // What this rank shall hold. Tensors and boxes count; the memory is the storage's.
  LocalPieces wanted{};
};

// Called by all ranks of the transport together. What nobody wants is left behind. New
// pieces get their memory from the storage. Errors are those of exchange(), and:
//
//   kInvalid   Two ranks disagree on a tensor, or a rank's pieces are wrong.
//   kNotFound  No rank holds a box that is wanted. Names tensor and box.
//
// After one of the two, the transport can be used again.
Result<Exchanged> change_layout(Env& env, Transport& transport,
                                const LayoutChange& change, PieceStorage& storage,
                                const ExchangeOptions& options = {});

// Says which ranks may take which places of the layout that is wanted.
struct Places {
  // The ranks that say what is wanted at place 0, 1, ...: each its own pieces.
  std::vector<int> told_by{};
  std::vector<int> able{};  // the ranks that may take a place
  uint32_t group = 1;       // places [k*group, (k+1)*group) stay on one host (plan/placement.h)
};

struct PlacedRanks {
  std::vector<int> ranks{};  // by place
  // What the plan to those places moves, what it would move if every rank took the place
  // that it has told of, and what all places need.
  int64_t moved = 0, moved_as_told = 0, needed = 0;
};

// Finds the places of ranks with which the fewest bytes move. Called by all ranks of the
// transport together, like change_layout(), which may follow; nothing moves.
Result<PlacedRanks> place_ranks(Env& env, Transport& transport,
                                const LayoutChange& change, const Places& places,
                                const ExchangeOptions& options = {});

}  // namespace holdfast
