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

}  // namespace holdfast
