// Strided copies move a box between the bytes of two holders, where maps (box.h) say
// how its elements lie.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "holdfast/state/box.h"

namespace holdfast {

// True if no two elements of a box of this shape share a byte, as a target of copies
// needs. It accepts only strides that nest: each stride must be longer than all bytes
// that the smaller strides reach. Other strides give false, even in the rare cases
// where no elements share a byte.
bool is_injective(const Map& map, const Shape& shape, int64_t element_bytes);

// The range of bytes [first, last) in which all elements lie.
struct ByteRange {
  int64_t first = 0;
  int64_t last = 0;
};
ByteRange range_of(const Map& map, const Shape& shape, int64_t element_bytes);

// One n-dimensional copy: `run` contiguous bytes, repeated over at most 8 nested loops,
// outermost first. Inner dimensions that are contiguous on both sides become part of
// the run, and neighbouring loops that continue each other are merged, so that a plain
// copy is one run.
struct StridedCopy {
  struct Loop {
    int64_t count;
    int64_t from_stride;
    int64_t to_stride;
  };

  int64_t from = 0;  // byte offset of the first run in the source holder
  int64_t to = 0;
  int64_t run = 0;  // bytes; 0 for an empty box
  int loops = 0;
  std::array<Loop, kMaxRank> loop{};

  int64_t runs() const;
};

// The copy of a box of this shape from one map to another. Both maps must be narrowed
// to the box.
StridedCopy plan_copy(const Map& from, const Map& to, const Shape& shape,
                      int64_t element_bytes);

// Aborts if the copy touches anything outside holders of these sizes, because that is a
// bug.
void check_copy(const StridedCopy& copy, size_t from_bytes, size_t to_bytes);

// Makes the copy. The spans are all bytes of the two holders; touching anything outside
// them is a bug and aborts. The holders must not overlap.
void run_copy(const StridedCopy& copy, std::span<const std::byte> from,
              std::span<std::byte> to);

}  // namespace holdfast
