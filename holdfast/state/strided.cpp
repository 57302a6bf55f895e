#include "holdfast/state/strided.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "holdfast/base/checked.h"

namespace holdfast {
namespace {

size_t at(int k) { return static_cast<size_t>(k); }

// The innermost loop for runs whose length the compiler knows. Transposed storage has
// runs of one element, and a call of memcpy for each would cost more than the copy.
template <size_t kRun>
void copy_elements(int64_t count, int64_t from_stride, int64_t to_stride,
                   const std::byte* from, std::byte* to) {
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(to + i * to_stride, from + i * from_stride, kRun);
  }
}

// Runs of a box that was cut by columns have gaps between them. A processor foresees what
// follows inside a run, but not where the next run begins: so that one is fetched while an
// earlier one is copied. Shorter runs end before that helps, longer ones do not need it.
constexpr int64_t kLeastFetched = 512, kMostFetched = int64_t{8} << 10;
constexpr int64_t kRunsAhead = 2;
constexpr int64_t kLineBytes = 64;

void copy_gapped_runs(int64_t count, int64_t run, int64_t from_stride,
                      int64_t to_stride, const std::byte* from, std::byte* to) {
  for (int64_t i = 0; i < count; ++i) {
    const std::byte* source = from + i * from_stride;
    if (i + kRunsAhead < count) {
      for (int64_t k = 0; k < run; k += kLineBytes) {
        __builtin_prefetch(source + kRunsAhead * from_stride + k, 0, 0);
      }
    }
    std::memcpy(to + i * to_stride, source, static_cast<size_t>(run));
  }
}

void copy_runs(const StridedCopy& copy, const std::byte* from, std::byte* to) {
  const auto [count, from_stride, to_stride] = copy.loop[at(copy.loops - 1)];
  switch (copy.run) {
    case 1: return copy_elements<1>(count, from_stride, to_stride, from, to);
    case 2: return copy_elements<2>(count, from_stride, to_stride, from, to);
    case 4: return copy_elements<4>(count, from_stride, to_stride, from, to);
    case 8: return copy_elements<8>(count, from_stride, to_stride, from, to);
    case 16: return copy_elements<16>(count, from_stride, to_stride, from, to);
    default: break;
  }
  if (copy.run >= kLeastFetched && copy.run <= kMostFetched &&
      from_stride != copy.run) {
    return copy_gapped_runs(count, copy.run, from_stride, to_stride, from, to);
  }
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(to + i * to_stride, from + i * from_stride,
                static_cast<size_t>(copy.run));
  }
}

void run_loops(const StridedCopy& copy, int depth, const std::byte* from,
               std::byte* to) {
  if (depth == copy.loops - 1) return copy_runs(copy, from, to);
  const StridedCopy::Loop& loop = copy.loop[at(depth)];
  for (int64_t i = 0; i < loop.count; ++i) {
    run_loops(copy, depth + 1, from + i * loop.from_stride, to + i * loop.to_stride);
  }
}

// Aborts if a run of the copy is not inside `size` bytes.
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
  std::vector<std::pair<int64_t, int64_t>> dims;  // |stride|, size
  for (int k = 0; k < shape.rank(); ++k) {
    if (shape[k] > 1) dims.emplace_back(std::abs(map.strides[at(k)]), shape[k]);
  }
  std::sort(dims.begin(), dims.end());
  int64_t span = element_bytes;  // bytes that the smaller strides reach
  for (const auto& [stride, size] : dims) {
    if (stride < span) return false;
    span += stride * (size - 1);
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
      if (loop.from_stride == checked_mul(inner.from_stride, inner.count) &&
          loop.to_stride == checked_mul(inner.to_stride, inner.count)) {
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

void check_copy(const StridedCopy& copy, size_t from_bytes, size_t to_bytes) {
  if (copy.run == 0) return;
  check_inside(copy, copy.from, from_bytes, &StridedCopy::Loop::from_stride);
  check_inside(copy, copy.to, to_bytes, &StridedCopy::Loop::to_stride);
}

void run_copy(const StridedCopy& copy, std::span<const std::byte> from,
              std::span<std::byte> to) {
  if (copy.run == 0) return;
  check_copy(copy, from.size(), to.size());
  const std::byte* source = from.data() + copy.from;
  std::byte* target = to.data() + copy.to;
  if (copy.loops == 0) {
    std::memcpy(target, source, static_cast<size_t>(copy.run));
  } else {
    run_loops(copy, 0, source, target);
  }
}

}  // namespace holdfast
