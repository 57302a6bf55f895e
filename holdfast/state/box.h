// Shapes and boxes. A box is an axis-aligned block of a tensor: one range of indices
// for each dimension.
//
// There are up to 8 dimensions. A scalar has no dimension and one element. A dimension
// of size zero makes an empty box. Extents are 64 bit. The number of elements of a
// Shape is checked against overflow when the Shape is created, so arithmetic on boxes
// inside it needs no further checks.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "holdfast/base/result.h"

namespace holdfast {

inline constexpr int kMaxRank = 8;

// The half-open interval [lo, hi) of one dimension.
struct Extent {
  int64_t lo = 0;
  int64_t hi = 0;

  int64_t size() const { return hi - lo; }
  friend auto operator<=>(const Extent&, const Extent&) = default;
};

// Sizes of a tensor's dimensions, outermost first.
class Shape {
 public:
  Shape() = default;  // scalar
  // For shapes written in code: aborts where create() would fail.
  Shape(std::initializer_list<int64_t> sizes);
  // Fails on more than 8 dimensions, a negative size, or 2^59 or more elements (so that
  // bytes of any dtype fit in 63 bits).
  static Result<Shape> create(std::span<const int64_t> sizes);

  int rank() const { return rank_; }
  int64_t operator[](int k) const { return sizes_[static_cast<size_t>(k)]; }
  int64_t elements() const;
  std::span<const int64_t> sizes() const {
    return {sizes_.data(), static_cast<size_t>(rank_)};
  }

  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<int64_t, kMaxRank> sizes_{};
  int8_t rank_ = 0;
};

std::string to_string(const Shape& shape);  // "[2, 3]"

class Box {
 public:
  Box() = default;  // the scalar's only box
  // For boxes written in code: aborts where create() would fail.
  Box(std::initializer_list<Extent> extents);
  // Fails on more than 8 dimensions or an extent with lo < 0 or hi < lo.
  static Result<Box> create(std::span<const Extent> extents);
  static Box whole(const Shape& shape);

  int rank() const { return rank_; }
  const Extent& operator[](int k) const { return extents_[static_cast<size_t>(k)]; }
  int64_t size(int k) const { return (*this)[k].size(); }
  std::span<const Extent> extents() const {
    return {extents_.data(), static_cast<size_t>(rank_)};
  }
  int64_t elements() const;
  bool empty() const;
  Shape shape() const;

  // The same box with dimension k replaced.
  Box with(int k, Extent extent) const;
  // An empty box of the same rank is inside every box.
  bool contains(const Box& inner) const;
  bool inside(const Shape& shape) const;

  friend bool operator==(const Box& a, const Box& b) = default;
  friend std::strong_ordering operator<=>(const Box& a, const Box& b);
  friend std::optional<Box> intersect(const Box& a, const Box& b);

 private:
  std::array<Extent, kMaxRank> extents_{};
  int8_t rank_ = 0;
};

std::string to_string(const Box& box);  // "[0:2, 4:8]"

// The block that both boxes have in common; nullopt if they have none. Both must have
// the same number of dimensions.
std::optional<Box> intersect(const Box& a, const Box& b);
bool overlap(const Box& a, const Box& b);

// The elements [first, last) of `box` in row-major order, as at most 2n-1 boxes in that
// order (n dimensions). This makes boxes of a flat shard of ZeRO or FSDP.
std::vector<Box> flat_range(const Box& box, int64_t first, int64_t last);

// `outer` without `inner`, as at most 2n disjoint boxes (n dimensions). `inner` must
// lie inside `outer`.
std::vector<Box> subtract(const Box& outer, const Box& inner);

// Says where the elements of a box lie in the bytes of a holder. A map is affine:
// element x of box b is at offset + sum_k stride_k * (x_k - b_k.lo), in bytes.
// Row-major shards, transposed storage and packed projections all have this form. A
// flat shard does not have it, and is described by several pieces.
struct Map {
  int64_t offset = 0;                       // of the box's first element, in bytes
  std::array<int64_t, kMaxRank> strides{};  // in bytes, one for each dimension

  // Row-major without gaps, starting at `offset`.
  static Map dense(const Box& box, int64_t element_bytes, int64_t offset = 0);
  // The byte offset of the first element of `inner`, a box inside `box`.
  int64_t offset_of(const Box& box, const Box& inner) const;
  // The map of only those elements that are in `inner`, a box inside `box`.
  Map narrowed(const Box& box, const Box& inner) const;

  friend bool operator==(const Map&, const Map&) = default;
};

}  // namespace holdfast
