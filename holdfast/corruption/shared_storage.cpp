#include "holdfast/corruption/shared_storage.h"

#include <algorithm>
#include <cstdlib>
#include <set>

#include "holdfast/contents/chunked_source.h"
#include "holdfast/env/source_sink.h"
#include "holdfast/state/element.h"
#include "holdfast/state/strided.h"

namespace holdfast {
namespace {

// The loops over the elements of a box, from the widest stride to the narrowest.
struct Loop {
  int64_t stride;
  int64_t count;
};

// Whether a byte, counted from the first element, belongs to an element. `reach` is the
// greatest offset that the loops from `k` on can add.
bool covers(std::span<const Loop> loops, int64_t element_bytes, int64_t byte,
            int64_t reach) {
  if (byte < 0 || byte > reach) return false;
  if (loops.empty()) return byte < element_bytes;
  const Loop& loop = loops.front();
  const int64_t rest = reach - loop.stride * (loop.count - 1);
  int64_t i = std::min(byte / loop.stride, loop.count - 1);
  for (; i >= 0 && byte - i * loop.stride <= rest; --i) {
    if (covers(loops.subspan(1), element_bytes, byte - i * loop.stride, rest))
      return true;
  }
  return false;
}

bool covers_byte(const Box& box, const Map& map, int64_t element_bytes, int64_t byte) {
  std::vector<Loop> loops;
  int64_t begin = map.offset, reach = element_bytes - 1;
  for (int k = 0; k < box.rank(); ++k) {
    const int64_t stride = map.strides[static_cast<size_t>(k)];
    if (box.size(k) <= 1 || stride == 0) continue;
    if (stride < 0) begin += stride * (box.size(k) - 1);
    loops.push_back({std::abs(stride), box.size(k)});
    reach += std::abs(stride) * (box.size(k) - 1);
  }
  std::ranges::sort(loops, std::greater(), &Loop::stride);
  return covers(loops, element_bytes, byte - begin, reach);
}

Box box_of_element(const Shape& shape, int64_t element) {
  std::vector<Extent> extents;
  for (const int64_t at : index_of(shape, element)) extents.push_back({at, at + 1});
  return Box::create(extents).value();
}

}  // namespace

bool is_stored(const Contents& contents, TensorId tensor, int64_t element) {
  const Layout& layout = contents.collection.layout();
  const Tensor& of = contents.collection.tensor(tensor);
  for (const Slice& slice : layout.slices(tensor)) {
    for (PieceId piece = slice.first; piece < slice.last; ++piece) {
      const Source* source = contents.sources[layout.holder(piece)].get();
      const auto* chunked = dynamic_cast<const ChunkedSource*>(source);
      if (chunked == nullptr) continue;
      const Box box = box_of_element(of.shape, element);
      if (!slice.box.contains(box)) continue;
      const Map map = layout.map(piece, bytes_of(of.dtype));
      if (!chunked->is_stored(map.offset_of(slice.box, box))) return false;
    }
  }
  return true;
}

std::vector<SharedStorage::Place> SharedStorage::places_of(const Contents& contents,
                                                           TensorId tensor) {
  const Layout& layout = contents.collection.layout();
  const int64_t bytes = bytes_of(contents.collection.tensor(tensor).dtype);
  std::vector<Place> places;
  for (const Slice& slice : layout.slices(tensor)) {
    for (PieceId piece = slice.first; piece < slice.last; ++piece) {
      const Map map = layout.map(piece, bytes);
      const ByteRange range = range_of(map, slice.box.shape(), bytes);
      places.push_back({.box = slice.box,
                        .map = map,
                        .element_bytes = bytes,
                        .file = contents.sources[layout.holder(piece)]->name(),
                        .first = range.first,
                        .last = range.last});
    }
  }
  return places;
}

// Only tensors in the same file can share bytes.
bool SharedStorage::is_possible(const Contents& contents) {
  std::set<std::string> names;
  return std::ranges::any_of(contents.sources, [&](const auto& source) {
    return !names.insert(source->name()).second;
  });
}

SharedStorage::SharedStorage(const Contents& contents,
                             std::span<const TensorId> tensors) {
  if (!is_possible(contents)) return;
  std::vector<Place> all;
  for (const TensorId tensor : tensors) {
    Entry entry{.own = places_of(contents, tensor), .earlier = {}};
    for (const Place& own : entry.own) {
      for (const Place& other : all) {
        const bool meet =
            other.file == own.file && other.first < own.last && own.first < other.last;
        if (meet) entry.earlier.push_back(other);
      }
    }
    all.insert(all.end(), entry.own.begin(), entry.own.end());
    if (entry.earlier.empty()) continue;
    shapes_.emplace(tensor, contents.collection.tensor(tensor).shape);
    entries_.emplace(tensor, std::move(entry));
  }
}

bool SharedStorage::is_taken(TensorId tensor, int64_t element) const {
  const auto found = entries_.find(tensor);
  if (found == entries_.end()) return false;
  const Box box = box_of_element(shapes_.at(tensor), element);
  for (const Place& own : found->second.own) {
    if (!own.box.contains(box)) continue;
    const int64_t offset = own.map.offset_of(own.box, box);
    for (const Place& other : found->second.earlier) {
      for (int64_t byte = offset; byte < offset + own.element_bytes; ++byte) {
        if (other.file == own.file &&
            covers_byte(other.box, other.map, other.element_bytes, byte)) {
          return true;
        }
      }
    }
  }
  return false;
}

}  // namespace holdfast
