// For tests: random boxes and maps, and copies element by element that share no code
// with the library.
#pragma once

#include <rapidcheck.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "holdfast/state/strided.h"

namespace holdfast::strided_testing {

using Index = std::array<int64_t, kMaxRank>;

// A random number in [least, most]. RapidCheck can shrink it, and uses the whole range
// from the first case on.
inline int64_t pick(int64_t least, int64_t most) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<int64_t>(least, most + 1));
}

inline std::vector<std::byte> random_bytes(size_t size, uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(engine() & 0xff);
  return bytes;
}

// A random shape of up to `max_rank` dimensions. Sizes are sometimes 0 or 1; the last
// dimension has up to `most_last`.
inline Shape pick_shape(int max_rank, int64_t most, int64_t most_last) {
  std::vector<int64_t> sizes(static_cast<size_t>(pick(0, max_rank)));
  for (int64_t& size : sizes) size = pick(pick(0, 9) == 0 ? 0 : 1, most);
  if (!sizes.empty() && sizes.back() != 0) sizes.back() = pick(1, most_last);
  return Shape::create(sizes).value();
}

inline Box pick_box(const Shape& shape) {
  Box box = Box::whole(shape);
  for (int k = 0; k < shape.rank(); ++k) {
    const int64_t lo = pick(0, shape[k]);
    box = box.with(k, {lo, pick(lo, shape[k])});
  }
  return box;
}

// A map that puts no two elements on one byte. Dimensions have any order in memory,
// some run backwards, and there are gaps. The elements need exactly `size` bytes.
struct StoredMap {
  Map map;
  size_t size = 0;
};

// One past the last byte that a map touches, if it touches nothing before byte 0.
inline int64_t end_of(const Map& map, const Shape& shape, int64_t element_bytes) {
  int64_t end = map.offset + element_bytes;
  for (int k = 0; k < shape.rank(); ++k) {
    end += std::max<int64_t>((shape[k] - 1) * map.strides[static_cast<size_t>(k)], 0);
  }
  return end;
}

inline StoredMap pick_map(const Shape& shape, int64_t element_bytes) {
  std::vector<size_t> order(static_cast<size_t>(shape.rank()));
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[static_cast<size_t>(pick(0, int64_t(i) - 1))]);
  }
  StoredMap stored;
  stored.map.offset = pick(0, 3);
  int64_t span = element_bytes;
  for (const size_t k : order) {
    const int64_t stride = span + (pick(0, 2) == 0 ? pick(1, 5) : 0);
    const int64_t reach = stride * std::max<int64_t>(shape[static_cast<int>(k)] - 1, 0);
    const bool backwards = pick(0, 4) == 0;
    stored.map.strides[k] = backwards ? -stride : stride;
    if (backwards) stored.map.offset += reach;
    span += reach;
  }
  stored.size = static_cast<size_t>(end_of(stored.map, shape, element_bytes));
  return stored;
}

// Calls visit(index) for each element of a box of this shape, in row-major order.
template <typename Visit>
void for_each_index(const Shape& shape, Visit&& visit) {
  const int64_t n = shape.elements();
  for (int64_t flat = 0; flat < n; ++flat) {
    Index index{};
    int64_t rest = flat;
    for (int k = shape.rank() - 1; k >= 0; --k) {
      index[static_cast<size_t>(k)] = rest % shape[k];
      rest /= shape[k];
    }
    visit(index);
  }
}

inline int64_t locate(const Map& map, const Index& index) {
  return std::inner_product(index.begin(), index.end(), map.strides.begin(),
                            map.offset);
}

inline void naive_copy(const Map& from, const Map& to, const Shape& shape,
                       int64_t element_bytes, const std::byte* source,
                       std::byte* target) {
  for_each_index(shape, [&](const Index& index) {
    std::memcpy(target + locate(to, index), source + locate(from, index),
                static_cast<size_t>(element_bytes));
  });
}

}  // namespace holdfast::strided_testing
