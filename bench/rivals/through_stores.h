// Other ways to change a layout, on Holdfast's carriers, so that only the algorithm
// differs:
//
//   Tenplex  every rank puts its state into a store of its own, and every new rank gets
//            all bytes that it needs from the stores, also those that it had
//   Central  the same with one store for all
//
// Both take the first replica and keep the order of ranks.
#pragma once

#include <string>
#include <vector>

#include "holdfast/state/collection.h"

namespace holdfast::rivals {

// The same boxes in the same order, on holders of other names. With `one`, all boxes are
// on the first of them.
inline Collection moved_to(const Collection& like, const std::string& prefix, bool one) {
  const Layout& layout = like.layout();
  std::vector<Holder> holders;
  for (size_t h = 0; h < (one ? 1 : layout.holders().size()); ++h) {
    holders.push_back({.name = prefix + std::to_string(h)});
  }
  LayoutBuilder builder(like.tensors(), holders);
  std::vector<int64_t> used(holders.size());
  for (TensorId t = 0; t < like.tensors().size(); ++t) {
    for (const Slice& slice : layout.slices(t)) {
      for (PieceId p = slice.first; p < slice.last; ++p) {
        const HolderId holder = one ? 0 : layout.holder(p);
        builder.add(t, slice.box, holder, used[holder]);
        used[holder] += slice.box.elements() * bytes_of(like.tensor(t).dtype);
        if (one) break;  // the first replica
      }
    }
  }
  std::vector<Tensor> tensors(like.tensors().begin(), like.tensors().end());
  return Collection::create(std::move(tensors), std::move(builder).build().value())
      .value();
}

}  // namespace holdfast::rivals
