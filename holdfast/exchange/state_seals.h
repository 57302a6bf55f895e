// The seals of all tensors of a state, put together from what each rank finds in its own
// memory. They are equal before and after an exchange.
#pragma once

#include <vector>

#include "holdfast/memory/local_state.h"
#include "holdfast/state/collection.h"
#include "holdfast/state/seal.h"

namespace holdfast {

class StateSeals {
 public:
  // Seals what the target has of each of its tensors, in the layout of `state`, which is
  // the source or the target. `rank_of` has the rank of each holder of `state`.
  StateSeals(const Collection& state, const Collection& target,
             std::vector<int> rank_of);

  // Seals the pieces of this rank, which are those that `state` says.
  Result<Bytes> seal_own(int rank, const LocalPieces& pieces) const;

  // Puts together what all ranks have sealed, by rank. kCorrupt, naming tensor, box and
  // holders, if replicas differ.
  Result<std::vector<Seal>> merge(const std::vector<Bytes>& said) const;

 private:
  // A box in a piece of a rank.
  struct Share {
    Box box;
    PieceId piece = 0;
  };
  // If the slices of a tensor tile it, the seal is the sum over slices. Else it is the
  // sum over shares: disjoint boxes that together are what the target has.
  struct SealedTensor {
    TensorId tensor = 0;  // in `state`
    bool tiled = true;
    std::vector<Share> shares{};
  };

  int rank_of(PieceId piece) const { return rank_of_[state_.layout().holder(piece)]; }
  static std::vector<Share> share_out(const Layout& layout, TensorId tensor,
                                      const std::vector<Box>& region);
  template <typename Visit>
  void for_each_box(const SealedTensor& sealed, const Visit& visit) const;

  const Collection& state_;
  const std::vector<int> rank_of_;
  std::vector<SealedTensor> tensors_;  // by tensor of the target
};

// kCorrupt, naming the tensor, if a seal has changed.
Result<void> compare_seals(const Collection& target, const std::vector<Seal>& before,
                           const std::vector<Seal>& after);

}  // namespace holdfast
