// The state as one rank has it: which tensors there are and who holds which box of them,
// the same on all ranks, and where this rank's own boxes are in its memory.
#pragma once

#include <memory>
#include <vector>

#include "holdfast/base/bytes.h"
#include "holdfast/base/shared_list.h"
#include "holdfast/device/device.h"
#include "holdfast/state/collection.h"

namespace holdfast {

// A box of a tensor in this rank's memory.
struct LocalPiece {
  TensorId tensor = 0;
  Box box;
  ByteSpan memory;
  Map map;                         // relative to memory
  const Device* device = nullptr;  // whose memory it is; null for the host's
  // Copied inside save(), for it may change before the next update: buffers, counters.
  bool at_once = false;

  friend bool operator==(const LocalPiece& a, const LocalPiece& b);
};

struct LocalState {
  // Over the ranks' memories: holder r is rank r. Offsets of its pieces are not looked
  // at. Shared, and planned for only once while it is the same object.
  std::shared_ptr<const Collection> collection;
  int rank = 0;
  // One for each piece of holder `rank`, in any order.
  SharedList<LocalPiece> pieces;

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

// A whole tensor in memory, for states that are not cut.
struct LocalTensor {
  Tensor tensor;
  ByteSpan memory;
  Map map;
};

// The state of a job of one rank. Takes over the collection of `like`, the state of an
// earlier call, if it is of the same tensors: then nothing is planned anew.
Result<LocalState> make_local_state(const std::vector<LocalTensor>& tensors,
                                    const LocalState* like = nullptr);

}  // namespace holdfast
