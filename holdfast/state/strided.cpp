#include "holdfast/state/strided.h"

#include <algorithm>
#include <cstring>

namespace holdfast {
namespace {

size_t at(int k) { return static_cast<size_t>(k); }

void run_loops(const StridedCopy& copy, int depth, const std::byte* from,
               std::byte* to) {
  if (depth == copy.loops) {
    std::memcpy(to, from, static_cast<size_t>(copy.run));
    return;
  }
  const StridedCopy::Loop& loop = copy.loop[at(depth)];
  for (int64_t i = 0; i < loop.count; ++i) {
    run_loops(copy, depth + 1, from + i * loop.from_stride, to + i * loop.to_stride);
  }
}

// Fails the program if a run of the copy leaves `size` bytes.
void check_inside(const StridedCopy& copy, int64_t start, size_t size,
                  int64_t StridedCopy::Loop::*stride) {
  int64_t first = start, last = start + copy.run;
  for (int k = 0; k < copy.loops; ++k) {
    const int64_t reach = (copy.loop[at(k)].count - 1) * (copy.loop[at(k)].*stride);
    (reach < 0 ? first : last) += reach;
  }
  HOLDFAST_CHECK(first >= 0 && static_cast<uint64_t>(last) <= size,
                 "copy touches bytes {} to {} of {}", first, last, size);
}

}  // namespace

Map Map::dense(const Box& box, int64_t element_bytes, int64_t offset) {
  Map map{.offset = offset};
  int64_t stride = element_bytes;
  for (int k = box.rank() - 1; k >= 0; --k) {
    map.strides[at(k)] = stride;
    stride *= std::max<int64_t>(box.size(k), 1);
  }
  return map;
}

int64_t Map::offset_of(const Box& box, const Box& inner) const {
  int64_t result = offset;
  for (int k = 0; k < box.rank(); ++k) {
    result += strides[at(k)] * (inner[k].lo - box[k].lo);
  }
  return result;
}

Map Map::narrowed(const Box& box, const Box& inner) const {
  return {.offset = offset_of(box, inner), .strides = strides};
}

bool is_injective(const Map& map, const Shape& shape, int64_t element_bytes) {
  if (shape.elements() <= 1) return true;
  std::array<std::pair<int64_t, int64_t>, kMaxRank> dims{};  // |stride|, size
  int n = 0;
  for (int k = 0; k < shape.rank(); ++k) {
    if (shape[k] == 1) continue;
    // Sorted by hand: GCC 12 at -O3 takes std::sort of so few for an overrun.
    int slot = n++;
    const std::pair<int64_t, int64_t> dim{std::abs(map.strides[at(k)]), shape[k]};
    for (; slot > 0 && dim < dims[at(slot - 1)]; --slot) {
      dims[at(slot)] = dims[at(slot - 1)];
    }
    dims[at(slot)] = dim;
  }
  int64_t span = element_bytes;  // bytes that the smaller strides reach
  for (int k = 0; k < n; ++k) {
    if (dims[at(k)].first < span) return false;
    span += dims[at(k)].first * (dims[at(k)].second - 1);
  }
  return true;
}

ByteRange range_of(const Map& map, const Shape& shape, int64_t element_bytes) {
  if (shape.elements() == 0) return {map.offset, map.offset};
  ByteRange range{map.offset, map.offset + element_bytes};
  for (int k = 0; k < shape.rank(); ++k) {
    const int64_t reach = (shape[k] - 1) * map.strides[at(k)];
    (reach < 0 ? range.first : range.last) += reach;
  }
  return range;
}

int64_t StridedCopy::runs() const {
  int64_t product = run > 0;
  for (int k = 0; k < loops; ++k) product *= loop[at(k)].count;
  return product;
}

StridedCopy plan_copy(const Map& from, const Map& to, const Shape& shape,
                      int64_t element_bytes) {
  StridedCopy copy{.from = from.offset, .to = to.offset};
  if (shape.elements() == 0) return copy;
  copy.run = element_bytes;
  std::array<StridedCopy::Loop, kMaxRank> inner_first{};
  int n = 0;
  for (int k = shape.rank() - 1; k >= 0; --k) {
    const StridedCopy::Loop loop{shape[k], from.strides[at(k)], to.strides[at(k)]};
    if (loop.count == 1) continue;
    if (n == 0 && loop.from_stride == copy.run && loop.to_stride == copy.run) {
      copy.run *= loop.count;
      continue;
    }
    if (n > 0) {
      StridedCopy::Loop& inner = inner_first[at(n - 1)];
      if (loop.from_stride == inner.from_stride * inner.count &&
          loop.to_stride == inner.to_stride * inner.count) {
        inner.count *= loop.count;
        continue;
      }
    }
    inner_first[at(n++)] = loop;
  }
  copy.loops = n;
  std::reverse_copy(inner_first.begin(), inner_first.begin() + n, copy.loop.begin());
  return copy;
}

void run_copy(const StridedCopy& copy, std::span<const std::byte> from,
              std::span<std::byte> to) {
  if (copy.run == 0) return;
  check_inside(copy, copy.from, from.size(), &StridedCopy::Loop::from_stride);
  check_inside(copy, copy.to, to.size(), &StridedCopy::Loop::to_stride);
  run_loops(copy, 0, from.data() + copy.from, to.data() + copy.to);
}

}  // namespace holdfast
