// Finds the boxes that overlap a given box, by a static tree of bounding boxes that is
// built once for the slices of one tensor. A query costs O(log n + hits) on the layouts
// that training makes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "holdfast/state/box.h"

namespace holdfast {

class BoxIndex {
 public:
  // All boxes must have the same number of dimensions, and must outlive the index.
  // Empty boxes are never hit.
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
    uint32_t first, last;  // the node's boxes are order_[first, last)
    uint32_t right;        // the right child (the left one is the next node); 0: a leaf
  };

  uint32_t grow(uint32_t first, uint32_t last);
  void collect(const Box& query) const;

  std::span<const Box> boxes_;
  std::vector<uint32_t> order_;
  std::vector<Node> nodes_;
  // Scratch memory of queries. Because of it, only one thread may ask at a time.
  mutable std::vector<uint32_t> hits_, stack_;
};

// A region of a tensor of which every holder holds all or nothing.
struct Cell {
  Box box;
  std::vector<uint32_t> owners;  // indices of the boxes that contain it, ascending
};

// Cuts the union of `boxes` into disjoint cells. Each cell is inside all the boxes that
// it overlaps. A box that overlaps no other box is one cell. Fails with kUnsupported if
// the boxes overlap in more than about a million ways.
Result<std::vector<Cell>> refine(std::span<const Box> boxes);

// A part of `region` that no box covers; nullopt if the boxes cover all of it. The same
// boxes always give the same part, but it need not be the first in row-major order.
std::optional<Box> first_gap(const Box& region, std::span<const Box> boxes);

}  // namespace holdfast
