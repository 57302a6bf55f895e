// The state as one rank sees it: which tensors there are and which rank holds which box
// of them (this part is the same on all ranks), and where this rank's pieces are in its
// memory.
#pragma once

#include <memory>
#include <vector>

#include "holdfast/base/bytes.h"
#include "holdfast/memory/local_piece.h"
#include "holdfast/state/collection.h"

namespace holdfast {

struct LocalState {
  // The tensors and their layout over the ranks: holder r is rank r. The offsets of its
  // pieces are not used. The object is shared between saves: for as long as it is the
  // same object, a save need not be planned again.
  std::shared_ptr<const Collection> collection;
  int rank = 0;
  // One for each piece of holder `rank`, in any order.
  LocalPieces pieces;

  // Fails with kInvalid, and names the tensor and the box, unless the pieces are
  // exactly those that the collection says this rank holds, and each lies inside its
  // memory.
  Result<void> check() const;

  // True for the same boxes at the same addresses: a plan for one state fits the other.
  friend bool operator==(const LocalState&, const LocalState&) = default;
};

// Fails with kInvalid, and names two tensors, if two pieces in the host's memory share
// bytes: restoring one would change the other. Pieces that alternate in memory without
// sharing bytes, such as the columns of a matrix, are fine. Does not look at devices.
Result<void> check_no_overlap(const LocalState& state);

// The state of a job of one rank, which holds whole tensors. `like` is the state of an
// earlier call, or null. If it has the same tensors, its collection is used again, so
// that nothing need be planned again.
Result<LocalState> make_local_state(const LocalPieces& tensors,
                                    const LocalState* like = nullptr);

}  // namespace holdfast
