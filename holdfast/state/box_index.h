// Finds the boxes that meet a given box: a static tree of bounding boxes, built once for
// one tensor's slices. Queries cost O(log n + hits) on the layouts that training makes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "holdfast/state/box.h"

namespace holdfast {

class BoxIndex {
 public:
  // All of one rank; empty boxes are never hit.
  explicit BoxIndex(std::span<const Box> boxes);

  // Calls visit(index) for each box that overlaps `query`, in ascending index.
  template <typename Visit>
  void for_each_hit(const Box& query, Visit&& visit) const {
    hits_.clear();
    collect(query);
    for (const uint32_t hit : hits_) visit(hit);
  }

 private:
  static constexpr size_t kLeaf = 8;
  struct Node {
    Box bounds;
    uint32_t first, last;  // range of order_
    uint32_t right;        // the left child follows its parent; 0 for a leaf
  };

  uint32_t grow(uint32_t first, uint32_t last);
  void collect(const Box& query) const;

  std::span<const Box> boxes_;
  std::vector<uint32_t> order_;
  std::vector<Node> nodes_;
  mutable std::vector<uint32_t> hits_,
      stack_;  // scratch: not for several threads at once
};

// A region of a tensor in which everybody holds all or nothing.
struct Cell {
  Box box;
  std::vector<uint32_t> owners;  // indices of the boxes that contain it, ascending
};

// Cuts the union of `boxes` into disjoint cells, each inside all the boxes that it meets.
// A box that overlaps no other is one cell. Fails with kUnsupported where that would take
// millions of cells.
Result<std::vector<Cell>> refine(std::span<const Box> boxes);

// The first part of `region` that no box covers, in row-major order of what is tried.
std::optional<Box> first_gap(const Box& region, std::span<const Box> boxes);

}  // namespace holdfast
