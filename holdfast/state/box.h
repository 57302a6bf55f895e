// Shapes and boxes: an axis-aligned block of a tensor's index space.
//
// Up to 8 dimensions; a scalar has none and one element; a dimension of size zero makes an
// empty box. Extents are 64 bit. A Shape's element count is checked against overflow when
// it is made, so arithmetic on boxes inside it needs no further checks.
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
  bool contains(const Box& inner) const;  // an empty box of the same rank is inside all
  bool inside(const Shape& shape) const;

  friend bool operator==(const Box& a, const Box& b) = default;
  friend std::strong_ordering operator<=>(const Box& a, const Box& b);
  friend std::optional<Box> intersect(const Box& a, const Box& b);

 private:
  std::array<Extent, kMaxRank> extents_{};
  int8_t rank_ = 0;
};

std::string to_string(const Box& box);  // "[0:2, 4:8]"

// The block common to both, or nullopt where they do not meet. Ranks must agree.
std::optional<Box> intersect(const Box& a, const Box& b);
bool overlap(const Box& a, const Box& b);

// The elements [first, last) of `box` in row-major order, as at most 2n-1 boxes in that
// order: how a flat shard of ZeRO or FSDP becomes boxes.
std::vector<Box> flat_range(const Box& box, int64_t first, int64_t last);

// `outer` without `inner`, as at most 2n disjoint boxes. `inner` must lie inside.
std::vector<Box> subtract(const Box& outer, const Box& inner);

}  // namespace holdfast
