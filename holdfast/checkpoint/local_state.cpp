#include "holdfast/checkpoint/local_state.h"

#include <algorithm>
#include <set>

namespace holdfast {
namespace {

Result<void> check_memory(const Collection& collection, const LocalPiece& piece) {
  const Tensor& tensor = collection.tensor(piece.tensor);
  const int64_t element = bytes_of(tensor.dtype);
  const Shape shape = piece.box.shape();
  const ByteRange range = range_of(piece.map, shape, element);
  const auto size = static_cast<int64_t>(piece.memory.size());
  if (shape.elements() > 0 && (range.first < 0 || range.last > size)) {
    return invalid("{}: box {} lies at bytes {} to {} of a memory of {}", tensor.name,
                   to_string(piece.box), range.first, range.last, size);
  }
  if (is_injective(piece.map, shape, element)) return {};
  return invalid("{}: box {} has several elements at one address", tensor.name,
                 to_string(piece.box));
}

}  // namespace

Result<void> LocalState::check() const {
  std::set<std::pair<TensorId, Box>> held;
  for (const LocalPiece& piece : pieces) {
    if (piece.tensor >= collection->tensors().size()) {
      return invalid("tensor {} of {}", piece.tensor, collection->tensors().size());
    }
    HOLDFAST_TRY(check_memory(*collection, piece));
    if (held.emplace(piece.tensor, piece.box).second) continue;
    return invalid("{}: box {} is given twice", collection->tensor(piece.tensor).name,
                   to_string(piece.box));
  }
  const Layout& layout = collection->layout();
  for (TensorId t = 0; t < layout.tensor_count(); ++t) {
    for (const Slice& slice : layout.slices(t)) {
      for (PieceId p = slice.first; p < slice.last; ++p) {
        if (layout.holder(p) != static_cast<HolderId>(rank)) continue;
        if (held.erase({t, slice.box}) == 1) continue;
        return invalid("{}: rank {} holds box {}, but its memory is not given",
                       collection->tensor(t).name, rank, to_string(slice.box));
      }
    }
  }
  if (held.empty()) return {};
  return invalid("{}: memory is given for box {}, which rank {} does not hold",
                 collection->tensor(held.begin()->first).name,
                 to_string(held.begin()->second), rank);
}

Result<LocalState> make_local_state(std::vector<LocalTensor> tensors) {
  std::vector<Tensor> named;
  for (const LocalTensor& local : tensors) named.push_back(local.tensor);
  LayoutBuilder builder(named, {Holder{.name = "rank-0"}});
  LocalState state;
  int64_t offset = 0;
  for (TensorId t = 0; t < named.size(); ++t) {
    const Box whole = Box::whole(named[t].shape);
    builder.add(t, whole, 0, offset);
    offset += named[t].bytes();
    state.pieces.push_back({.tensor = t,
                            .box = whole,
                            .memory = tensors[t].memory,
                            .map = tensors[t].map});
  }
  Layout layout = HOLDFAST_TRY(std::move(builder).build());
  state.collection = std::make_shared<const Collection>(
      HOLDFAST_TRY(Collection::create(std::move(named), std::move(layout))));
  HOLDFAST_TRY(state.check());
  return state;
}

}  // namespace holdfast
