#include "holdfast/state/layout.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "holdfast/base/checked.h"
#include "holdfast/state/box_index.h"
#include "holdfast/state/strided.h"

namespace holdfast {
namespace {

// The same as range_of, but nullopt where the arithmetic would overflow, because maps
// come from outside.
std::optional<ByteRange> checked_range(const Map& map, const Box& box, int64_t bytes) {
  int64_t first = map.offset, last = map.offset;
  for (int k = 0; k < box.rank(); ++k) {
    const auto reach = checked_mul(std::max<int64_t>(box.size(k) - 1, 0),
                                   map.strides[static_cast<size_t>(k)]);
    if (!reach) return std::nullopt;
    const auto moved = checked_add(*reach < 0 ? first : last, *reach);
    if (!moved) return std::nullopt;
    (*reach < 0 ? first : last) = *moved;
  }
  const auto end = checked_add(last, bytes);
  if (!end) return std::nullopt;
  return ByteRange{first, *end};
}

}  // namespace

std::span<const Slice> Layout::slices(TensorId tensor) const {
  return {slices_.data() + first_slice_[tensor],
          first_slice_[tensor + 1] - first_slice_[tensor]};
}

std::vector<Box> Layout::boxes(TensorId tensor) const {
  std::vector<Box> boxes;
  for (const Slice& slice : slices(tensor)) boxes.push_back(slice.box);
  return boxes;
}

Map Layout::map(PieceId piece, int64_t element_bytes) const {
  const PieceRecord& record = pieces_[piece];
  if (record.strides == kDense) {
    return Map::dense(box(piece), element_bytes, record.offset);
  }
  return {.offset = record.offset, .strides = strides_[record.strides]};
}

void LayoutBuilder::add(TensorId tensor, const Box& box, HolderId holder,
                        int64_t offset) {
  entries_.push_back({tensor, holder, Layout::kDense, offset, box});
}

void LayoutBuilder::add(TensorId tensor, const Box& box, HolderId holder,
                        const Map& map) {
  entries_.push_back(
      {tensor, holder, static_cast<uint32_t>(strides_.size()), map.offset, box});
  strides_.push_back(map.strides);
}

Map LayoutBuilder::map_of(const Entry& entry) const {
  if (entry.strides != Layout::kDense) {
    return {.offset = entry.offset, .strides = strides_[entry.strides]};
  }
  return Map::dense(entry.box, bytes_of(tensors_[entry.tensor].dtype), entry.offset);
}

// Most maps are row-major without gaps, and those need no strides of their own. Only
// for checked entries, because the arithmetic trusts the box.
void LayoutBuilder::mark_dense(Entry& entry) const {
  const int64_t bytes = bytes_of(tensors_[entry.tensor].dtype);
  if (map_of(entry) == Map::dense(entry.box, bytes, entry.offset)) {
    entry.strides = Layout::kDense;
  }
}

Result<void> LayoutBuilder::check_entry(const Entry& entry) const {
  HOLDFAST_CHECK(entry.tensor < tensors_.size() && entry.holder < holders_.size(),
                 "tensor {} on holder {}", entry.tensor, entry.holder);
  const Tensor& tensor = tensors_[entry.tensor];
  const std::string& holder = holders_[entry.holder].name;
  if (!entry.box.inside(tensor.shape)) {
    return invalid("{} on {}: box {} is outside the shape {}", tensor.name, holder,
                   to_string(entry.box), to_string(tensor.shape));
  }
  const int64_t bytes = bytes_of(tensor.dtype);
  const Map map = map_of(entry);
  const auto range = checked_range(map, entry.box, bytes);
  if (!range || range->first < 0) {
    return invalid(
        "{} on {}: box {} at offset {} begins before byte 0 or ends after the last "
        "possible byte",
        tensor.name, holder, to_string(entry.box), entry.offset);
  }
  if (entry.strides != Layout::kDense && !is_injective(map, entry.box.shape(), bytes)) {
    return invalid("{} on {}: box {} has strides that put two elements on one byte",
                   tensor.name, holder, to_string(entry.box));
  }
  return {};
}

Result<Layout> LayoutBuilder::build() && {
  std::set<std::string_view> names;
  for (const Holder& holder : holders_) {
    if (!names.insert(holder.name).second) {
      return invalid("holder {}: listed twice", holder.name);
    }
  }
  for (Entry& entry : entries_) {
    HOLDFAST_TRY(check_entry(entry));
    mark_dense(entry);
  }

  std::vector<uint32_t> order(entries_.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const Entry &x = entries_[a], &y = entries_[b];
    if (x.tensor != y.tensor) return x.tensor < y.tensor;
    if (const auto by_box = x.box <=> y.box; by_box != 0) return by_box < 0;
    return std::pair(x.holder, a) < std::pair(y.holder, b);
  });

  Layout layout;
  layout.holders_ = std::move(holders_);
  layout.strides_ = std::move(strides_);
  layout.pieces_.reserve(entries_.size());
  const Entry* last = nullptr;
  for (const uint32_t i : order) {
    const Entry& entry = entries_[i];
    while (layout.first_slice_.size() <= entry.tensor) {
      layout.first_slice_.push_back(static_cast<uint32_t>(layout.slices_.size()));
    }
    const auto piece = static_cast<PieceId>(layout.pieces_.size());
    if (!last || last->tensor != entry.tensor || last->box != entry.box) {
      layout.slices_.push_back({entry.box, piece, piece});
    }
    layout.pieces_.push_back({entry.holder, entry.strides,
                              static_cast<uint32_t>(layout.slices_.size() - 1),
                              entry.offset});
    layout.slices_.back().last = piece + 1;
    last = &entry;
  }
  layout.first_slice_.resize(tensors_.size() + 1,
                             static_cast<uint32_t>(layout.slices_.size()));
  for (TensorId t = 0; t < tensors_.size(); ++t) {
    HOLDFAST_TRY(check_disjoint(layout, t));
  }
  HOLDFAST_TRY(check_bytes(layout));
  return layout;
}

Result<void> LayoutBuilder::check_bytes(const Layout& layout) const {
  struct Run {
    HolderId holder;
    int64_t first, last;
    TensorId tensor;
  };
  std::vector<Run> runs;
  runs.reserve(layout.piece_count());
  for (TensorId t = 0; t < tensors_.size(); ++t) {
    for (const Slice& slice : layout.slices(t)) {
      const int64_t bytes = slice.box.elements() * bytes_of(tensors_[t].dtype);
      for (PieceId p = slice.first; p < slice.last && bytes > 0; ++p) {
        const Layout::PieceRecord& piece = layout.pieces_[p];
        if (piece.strides != Layout::kDense) continue;
        runs.push_back({piece.holder, piece.offset, piece.offset + bytes, t});
      }
    }
  }
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) {
    return std::pair(a.holder, a.first) < std::pair(b.holder, b.first);
  });
  for (size_t i = 1; i < runs.size(); ++i) {
    const Run &a = runs[i - 1], &b = runs[i];
    if (a.holder == b.holder && b.first < a.last) {
      return invalid("{}: {} and {} share bytes {} to {}; expected bytes of their own",
                     layout.holders()[a.holder].name, tensors_[a.tensor].name,
                     tensors_[b.tensor].name, b.first, std::min(a.last, b.last));
    }
  }
  return {};
}

Result<void> LayoutBuilder::check_disjoint(const Layout& layout,
                                           TensorId tensor) const {
  const auto slices = layout.slices(tensor);
  for (const Slice& slice : slices) {
    for (PieceId p = slice.first + 1; p < slice.last; ++p) {
      if (layout.holder(p) == layout.holder(p - 1)) {
        return invalid("{} on {}: box {} is listed twice", tensors_[tensor].name,
                       layout.holders()[layout.holder(p)].name, to_string(slice.box));
      }
    }
  }
  if (slices.size() < 2) return {};
  const std::vector<Box> boxes = layout.boxes(tensor);
  const BoxIndex index(boxes);
  for (uint32_t i = 0; i < slices.size(); ++i) {
    std::optional<Error> clash;
    index.for_each_hit(boxes[i], [&](uint32_t hit) {
      if (hit <= i || clash) return;
      PieceId a = slices[i].first, b = slices[hit].first;
      while (a < slices[i].last && b < slices[hit].last) {
        const HolderId x = layout.holder(a), y = layout.holder(b);
        if (x == y) {
          clash = invalid("{} on {}: boxes {} and {} overlap", tensors_[tensor].name,
                          layout.holders()[x].name, to_string(boxes[i]),
                          to_string(boxes[hit]));
          return;
        }
        (x < y ? a : b)++;
      }
    });
    if (clash) return *std::move(clash);
  }
  return {};
}

}  // namespace holdfast
