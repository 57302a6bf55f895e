// Where a box's elements lie in a holder's bytes, and how a box is copied between two
// such places.
//
// A map is affine: element x of box b is at offset + sum_k stride_k * (x_k - b_k.lo), in
// bytes. Row-major shards, transposed storage and packed projections are all of this form;
// what is not (a flat shard) is several pieces.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "holdfast/state/box.h"

namespace holdfast {

struct Map {
  int64_t offset = 0;                       // of the box's first element, in bytes
  std::array<int64_t, kMaxRank> strides{};  // in bytes, one a dimension

  // Row-major without gaps, starting at `offset`.
  static Map dense(const Box& box, int64_t element_bytes, int64_t offset = 0);
  // The byte offset of the first element of `inner`, a box inside `box`.
  int64_t offset_of(const Box& box, const Box& inner) const;
  // The same elements, when only `inner` of `box` is looked at.
  Map narrowed(const Box& box, const Box& inner) const;

  friend bool operator==(const Map&, const Map&) = default;
};

// True if no two elements of a box of this shape share a byte: what a target must be. It is
// enough to look at strides that nest, each reaching over all the smaller ones; other
// strides are refused, even the odd ones that happen not to meet.
bool is_injective(const Map& map, const Shape& shape, int64_t element_bytes);

// [first, last) byte that any element touches.
struct ByteRange {
  int64_t first = 0;
  int64_t last = 0;
};
ByteRange range_of(const Map& map, const Shape& shape, int64_t element_bytes);

// One n-dimensional copy: `run` contiguous bytes, repeated over at most 8 loops, outermost
// first. Inner dimensions that are contiguous on both sides are folded into the run, and
// neighbouring loops that step alike are merged, so that a plain copy is one run.
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

// The copy of a box of this shape between two maps (each already narrowed to it).
StridedCopy plan_copy(const Map& from, const Map& to, const Shape& shape,
                      int64_t element_bytes);

// Aborts if the copy touches anything outside holders of so many bytes: that is a bug.
void check_copy(const StridedCopy& copy, size_t from_bytes, size_t to_bytes);

// Carries the copy out. The spans are the whole of both holders' bytes; touching anything
// outside them is a bug and aborts. The holders must not overlap.
void run_copy(const StridedCopy& copy, std::span<const std::byte> from,
              std::span<std::byte> to);

}  // namespace holdfast
