// Union-find: groups n numbered items that are connected, directly or through others.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace holdfast {

class UnionFind {
 public:
  explicit UnionFind(size_t n) : parent_(n) {
    std::iota(parent_.begin(), parent_.end(), 0);
  }

  // The smallest number in i's group.
  uint32_t root(uint32_t i) {
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  }

  void join(uint32_t a, uint32_t b) {
    const uint32_t x = root(a), y = root(b);
    parent_[std::max(x, y)] = std::min(x, y);
  }

 private:
  std::vector<uint32_t> parent_;
};

}  // namespace holdfast
