#include "holdfast/memory/local_state.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>

#include "holdfast/state/strided.h"

namespace holdfast {
namespace {

Result<void> check_memory(const LocalPiece& piece) {
  const Tensor& tensor = *piece.tensor;
  const int64_t element = bytes_of(tensor.dtype);
  const Shape shape = piece.box.shape();
  const ByteRange range = range_of(piece.map, shape, element);
  const auto size = static_cast<int64_t>(piece.memory.size());
  if (shape.elements() > 0 && (range.first < 0 || range.last > size)) {
    return invalid(
        "{}: box {} lies at bytes {} to {}; expected within {} bytes of memory",
        tensor.name, to_string(piece.box), range.first, range.last, size);
  }
  if (is_injective(piece.map, shape, element)) return {};
  return invalid(
      "{}: box {} has several elements at one address; expected one address for each",
      tensor.name, to_string(piece.box));
}

bool has_tensors(const LocalState& state, std::span<const LocalPiece> tensors) {
  const std::span<const Tensor> known = state.collection->tensors();
  return std::equal(
      known.begin(), known.end(), tensors.begin(), tensors.end(),
      [](const Tensor& a, const LocalPiece& b) { return a == *b.tensor; });
}

// A collection in which the only rank holds every tensor as a whole.
Result<std::shared_ptr<const Collection>> make_collection(
    std::span<const LocalPiece> tensors) {
  std::vector<Tensor> named;
  named.reserve(tensors.size());
  for (const LocalPiece& local : tensors) named.push_back(*local.tensor);
  LayoutBuilder builder(named, {Holder{.name = "rank-0"}});
  int64_t offset = 0;
  for (TensorId t = 0; t < named.size(); ++t) {
    builder.add(t, Box::whole(named[t].shape), 0, offset);
    offset += named[t].bytes();
  }
  Layout layout = HOLDFAST_TRY(std::move(builder).build());
  return std::make_shared<const Collection>(
      HOLDFAST_TRY(Collection::create(std::move(named), std::move(layout))));
}

// A collection of the boxes that one rank holds.
Result<std::shared_ptr<const Collection>> collect_boxes(
    std::span<const LocalPiece> pieces) {
  std::vector<Tensor> named;
  std::map<std::string_view, TensorId> ids;
  for (const LocalPiece& piece : pieces) {
    const bool is_new =
        ids.emplace(piece.tensor->name, static_cast<TensorId>(named.size())).second;
    if (is_new) named.push_back(*piece.tensor);
  }
  LayoutBuilder builder(named, {Holder{.name = "rank-0"}});
  int64_t offset = 0;
  for (const LocalPiece& piece : pieces) {
    builder.add(ids.at(piece.tensor->name), piece.box, 0, offset);
    offset += piece.tensor->bytes();
  }
  Layout layout = HOLDFAST_TRY(std::move(builder).build());
  return std::make_shared<const Collection>(
      HOLDFAST_TRY(Collection::create(std::move(named), std::move(layout))));
}

// The rank's piece of exactly this box.
std::optional<PieceId> find_piece(const Layout& layout, TensorId tensor,
                                  const LocalPiece& piece, int rank) {
  const std::span<const Slice> slices = layout.slices(tensor);
  const auto slice = std::ranges::lower_bound(slices, piece.box, {}, &Slice::box);
  if (slice == slices.end() || slice->box != piece.box) return std::nullopt;
  for (PieceId p = slice->first; p < slice->last; ++p) {
    if (layout.holder(p) == static_cast<HolderId>(rank)) return p;
  }
  return std::nullopt;
}

Result<void> check_all_given(const Collection& collection, int rank,
                             const std::vector<bool>& given) {
  const Layout& layout = collection.layout();
  for (TensorId t = 0; t < layout.tensor_count(); ++t) {
    for (const Slice& slice : layout.slices(t)) {
      for (PieceId p = slice.first; p < slice.last; ++p) {
        if (given[p] || layout.holder(p) != static_cast<HolderId>(rank)) continue;
        return invalid("{}: rank {} holds box {} without a piece; expected its memory",
                       collection.tensor(t).name, rank, to_string(slice.box));
      }
    }
  }
  return {};
}

}  // namespace

Result<void> LocalState::check() const {
  const Layout& layout = collection->layout();
  std::vector<bool> given(layout.piece_count());
  for (const LocalPiece& piece : pieces) {
    HOLDFAST_TRY(check_memory(piece));
    const std::string& name = piece.tensor->name;
    const std::optional<TensorId> tensor = collection->find(name);
    if (!tensor.has_value() || collection->tensor(*tensor) != *piece.tensor) {
      return invalid(
          "{}: a piece of a tensor that is not in the collection; expected one that is",
          name);
    }
    const std::optional<PieceId> held = find_piece(layout, *tensor, piece, rank);
    if (!held.has_value()) {
      return invalid("{}: a piece with box {}; expected a box that rank {} holds", name,
                     to_string(piece.box), rank);
    }
    if (given[*held]) {
      return invalid("{}: two pieces with box {}; expected one", name,
                     to_string(piece.box));
    }
    given[*held] = true;
  }
  return check_all_given(*collection, rank, given);
}

Result<LocalState> make_local_state(const LocalPieces& tensors,
                                    const LocalState* like) {
  LocalState state{.collection = {}, .pieces = tensors};
  if (like != nullptr && has_tensors(*like, tensors)) {
    state.collection = like->collection;
  } else {
    state.collection = HOLDFAST_TRY(make_collection(tensors));
  }
  HOLDFAST_TRY(state.check());
  return state;
}

Result<LocalState> make_part_of_state(const LocalPieces& pieces) {
  LocalState state{.collection = HOLDFAST_TRY(collect_boxes(pieces)), .pieces = pieces};
  HOLDFAST_TRY(state.check());
  return state;
}

}  // namespace holdfast
