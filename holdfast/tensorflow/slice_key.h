// The keys under which an index has the slices of a partitioned variable.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace holdfast::bundle {

// The part of one dimension that a slice has. kWhole is a length that means all of the
// dimension; its start is 0.
struct SliceExtent {
  static constexpr int64_t kWhole = -1;

  int64_t start = 0;
  int64_t length = kWhole;

  friend bool operator==(const SliceExtent&, const SliceExtent&) = default;
};

// Keys of slices begin with this byte. No key of a tensor does.
inline constexpr char kSliceKeyMark = '\0';

// The key of a slice in TensorFlow's order-preserving code: the number 0, the name, the
// rank, and start and length of each dimension.
std::string slice_key(std::string_view name, std::span<const SliceExtent> extents);

}  // namespace holdfast::bundle
