#include "holdfast/state/box_index.h"

#include <algorithm>
#include <array>

#include "holdfast/state/union_find.h"

namespace holdfast {
namespace {

Box bounds_of(std::span<const Box> boxes, std::span<const uint32_t> which) {
  Box bounds = boxes[which.front()];
  for (const uint32_t i : which) {
    for (int k = 0; k < bounds.rank(); ++k) {
      const Extent& e = boxes[i][k];
      if (e.lo < bounds[k].lo) bounds = bounds.with(k, {e.lo, bounds[k].hi});
      if (e.hi > bounds[k].hi) bounds = bounds.with(k, {bounds[k].lo, e.hi});
    }
  }
  return bounds;
}

// The dimension in which the lower corners are spread most, measured in widths of the
// widest box.
int best_dimension(std::span<const Box> boxes, std::span<const uint32_t> which) {
  int best = 0;
  int64_t best_spread = -1;
  for (int k = 0; k < boxes[which.front()].rank(); ++k) {
    int64_t lo = INT64_MAX, hi = INT64_MIN, widest = 1;
    for (const uint32_t i : which) {
      lo = std::min(lo, boxes[i][k].lo);
      hi = std::max(hi, boxes[i][k].lo);
      widest = std::max(widest, boxes[i][k].size());
    }
    const int64_t spread = (hi - lo) / widest;
    if (spread > best_spread) best = k, best_spread = spread;
  }
  return best;
}

// Cuts a region at the faces of boxes until each part is inside every box that it
// overlaps. It cuts at the median face of the dimension with the most faces, so that
// the recursion stays shallow.
class Refiner {
 public:
  Refiner(std::span<const Box> boxes, std::vector<Cell>& out)
      : boxes_(boxes), out_(out) {}

  Result<void> split(const Box& region, const std::vector<uint32_t>& hits) {
    if (hits.empty()) return {};
    std::array<std::vector<int64_t>, kMaxRank> faces;
    for (const uint32_t hit : hits) {
      for (int k = 0; k < region.rank(); ++k) {
        for (const int64_t face : {boxes_[hit][k].lo, boxes_[hit][k].hi}) {
          if (region[k].lo < face && face < region[k].hi) {
            faces[static_cast<size_t>(k)].push_back(face);
          }
        }
      }
    }
    const auto most = std::ranges::max_element(faces, {}, &std::vector<int64_t>::size);
    if (most->empty()) return emit(region, hits);
    const auto middle = most->begin() + static_cast<int64_t>(most->size() / 2);
    std::nth_element(most->begin(), middle, most->end());
    const int k = static_cast<int>(most - faces.begin());
    HOLDFAST_TRY(descend(region.with(k, {region[k].lo, *middle}), hits));
    return descend(region.with(k, {*middle, region[k].hi}), hits);
  }

 private:
  Result<void> descend(const Box& region, const std::vector<uint32_t>& hits) {
    std::vector<uint32_t> inner;
    for (const uint32_t hit : hits) {
      if (overlap(boxes_[hit], region)) inner.push_back(hit);
    }
    return split(region, inner);
  }

  Result<void> emit(const Box& region, const std::vector<uint32_t>& hits) {
    owners_ += hits.size();
    if (owners_ > kMaxOwners) {
      return unsupported("boxes: overlap in more than {} ways", kMaxOwners);
    }
    out_.push_back({region, hits});
    return {};
  }

  // No layout of a training job comes near this limit. It stops files that were made to
  // exhaust the memory.
  static constexpr size_t kMaxOwners = size_t{1} << 20;

  std::span<const Box> boxes_;
  std::vector<Cell>& out_;
  size_t owners_ = 0;
};

}  // namespace

BoxIndex::BoxIndex(std::span<const Box> boxes) : boxes_(boxes) {
  for (uint32_t i = 0; i < boxes.size(); ++i) {
    if (!boxes[i].empty()) order_.push_back(i);
  }
  if (!order_.empty()) grow(0, static_cast<uint32_t>(order_.size()));
}

uint32_t BoxIndex::grow(uint32_t first, uint32_t last) {
  const auto id = static_cast<uint32_t>(nodes_.size());
  const std::span which(order_.data() + first, last - first);
  nodes_.push_back({bounds_of(boxes_, which), first, last, 0});
  if (which.size() <= kLeaf) return id;
  const int dim = best_dimension(boxes_, which);
  const uint32_t middle = first + (last - first) / 2;
  std::nth_element(order_.begin() + first, order_.begin() + middle,
                   order_.begin() + last, [&](uint32_t a, uint32_t b) {
                     return std::pair(boxes_[a][dim].lo, a) <
                            std::pair(boxes_[b][dim].lo, b);
                   });
  grow(first, middle);
  nodes_[id].right = grow(middle, last);
  return id;
}

void BoxIndex::collect(const Box& query) const {
  if (nodes_.empty()) return;
  stack_.assign(1, 0);
  while (!stack_.empty()) {
    const uint32_t id = stack_.back();
    stack_.pop_back();
    const Node& node = nodes_[id];
    if (!overlap(node.bounds, query)) continue;
    if (node.right != 0) {
      stack_.push_back(node.right);
      stack_.push_back(id + 1);
      continue;
    }
    for (uint32_t i = node.first; i < node.last; ++i) {
      if (overlap(boxes_[order_[i]], query)) hits_.push_back(order_[i]);
    }
  }
  std::sort(hits_.begin(), hits_.end());
}

Result<std::vector<Cell>> refine(std::span<const Box> boxes) {
  std::vector<Cell> cells;
  // Boxes that overlap, directly or through other boxes, are refined together.
  const BoxIndex index(boxes);
  UnionFind meeting(boxes.size());
  for (uint32_t i = 0; i < boxes.size(); ++i) {
    index.for_each_hit(boxes[i], [&](uint32_t hit) { meeting.join(i, hit); });
  }
  std::vector<std::vector<uint32_t>> groups(boxes.size());
  for (uint32_t i = 0; i < boxes.size(); ++i) {
    if (!boxes[i].empty()) groups[meeting.root(i)].push_back(i);
  }
  Refiner refiner(boxes, cells);
  for (const std::vector<uint32_t>& group : groups) {
    if (!group.empty()) HOLDFAST_TRY(refiner.split(bounds_of(boxes, group), group));
  }
  return cells;
}

std::optional<Box> first_gap(const Box& region, std::span<const Box> boxes) {
  if (region.empty()) return std::nullopt;
  const BoxIndex index(boxes);
  std::vector<Box> open{region};
  std::vector<uint32_t> hits;
  while (!open.empty()) {
    const Box part = open.back();
    open.pop_back();
    hits.clear();
    index.for_each_hit(part, [&](uint32_t hit) { hits.push_back(hit); });
    if (hits.empty()) return part;
    // Subtracting the middle box cuts the rest in about two halves. Subtracting the
    // first box would only cut off one end, and the time would grow with the square of
    // the boxes.
    const Box& middle = boxes[hits[hits.size() / 2]];
    std::vector<Box> rest = subtract(part, *intersect(part, middle));
    open.insert(open.end(), rest.rbegin(), rest.rend());
  }
  return std::nullopt;
}

}  // namespace holdfast
