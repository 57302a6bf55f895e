// The state as one rank has it: which tensors there are and who holds which box of them,
// the same on all ranks, and where this rank's own boxes are in its memory.
#pragma once

#include <memory>
#include <vector>

#include "holdfast/base/bytes.h"
#include "holdfast/memory/local_piece.h"
#include "holdfast/state/collection.h"

namespace holdfast {

struct LocalState {
  // Over the ranks' memories: holder r is rank r. Offsets of its pieces are not looked
  // at. Shared, and planned for only once while it is the same object.
  std::shared_ptr<const Collection> collection;
  int rank = 0;
  // One for each piece of holder `rank`, in any order.
  LocalPieces pieces;

  // kInvalid, naming tensor and box, unless the pieces are just those that the
  // collection says the rank holds, and lie inside their memory.
  Result<void> check() const;

  // The same boxes at the same addresses: what was planned for one does for the other.
  friend bool operator==(const LocalState&, const LocalState&) = default;
};

// kInvalid, naming two tensors, if pieces of a state in main memory have bytes in common:
// what is restored into one would change the other. Pieces that lie between each other, such
// as the columns of a matrix, do not.
Result<void> check_no_overlap(const LocalState& state);

// The state of a job of one rank, which holds whole tensors. Takes over the collection of `like`, the state of an
// earlier call, if it is of the same tensors: then nothing is planned anew.
Result<LocalState> make_local_state(const LocalPieces& tensors,
                                    const LocalState* like = nullptr);

}  // namespace holdfast
