#include "holdfast/state/box.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "holdfast/base/checked.h"

namespace holdfast {
namespace {

constexpr int64_t kMaxElements = int64_t{1} << 59;

// Appends boxes for the elements [first, last) of `box`, which has only one index in
// each dimension before `dim`.
void append_flat(const Box& box, int dim, int64_t first, int64_t last,
                 std::vector<Box>& out) {
  if (first >= last) return;
  int64_t row = 1;  // how many elements have the same index in dimension `dim`
  for (int k = dim + 1; k < box.rank(); ++k) row *= box.size(k);
  if (dim >= box.rank() || (first == 0 && last == row * box.size(dim))) {
    out.push_back(box);
    return;
  }
  const int64_t lo = box[dim].lo;
  const int64_t head = first / row, tail = last / row;
  const auto only = [&](int64_t a, int64_t b) {
    return box.with(dim, {lo + a, lo + b});
  };
  if (head == tail) {  // all elements have the same index in dimension `dim`
    append_flat(only(head, head + 1), dim + 1, first % row, last % row, out);
    return;
  }
  const int64_t full = head + (first % row != 0);
  if (full != head) append_flat(only(head, full), dim + 1, first % row, row, out);
  if (full < tail) out.push_back(only(full, tail));
  append_flat(only(tail, tail + 1), dim + 1, 0, last % row, out);
}

}  // namespace

Shape::Shape(std::initializer_list<int64_t> sizes)
    : Shape(create({sizes.begin(), sizes.size()}).value()) {}

Result<Shape> Shape::create(std::span<const int64_t> sizes) {
  if (sizes.size() > kMaxRank) {
    return invalid("shape: {} dimensions; expected at most {}", sizes.size(), kMaxRank);
  }
  Shape shape;
  int64_t elements = 1;
  for (const int64_t size : sizes) {
    if (size < 0) return invalid("shape {}: negative size", fmt::join(sizes, "x"));
    const auto product = checked_mul(elements, std::max<int64_t>(size, 1));
    if (!product || *product >= kMaxElements) {
      return invalid("shape {}: too large; expected fewer than 2^59 elements",
                     fmt::join(sizes, "x"));
    }
    elements = *product;
    shape.sizes_[static_cast<size_t>(shape.rank_++)] = size;
  }
  return shape;
}

int64_t Shape::elements() const {
  int64_t product = 1;
  for (const int64_t size : sizes()) product *= size;
  return product;
}

std::string to_string(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape.sizes(), ", "));
}

Box::Box(std::initializer_list<Extent> extents)
    : Box(create({extents.begin(), extents.size()}).value()) {}

Result<Box> Box::create(std::span<const Extent> extents) {
  if (extents.size() > kMaxRank) {
    return invalid("box: {} dimensions; expected at most {}", extents.size(), kMaxRank);
  }
  Box box;
  for (const Extent& extent : extents) {
    if (extent.lo < 0 || extent.hi < extent.lo) {
      return invalid("box: extent {}:{} in dimension {}; expected 0 <= lo <= hi",
                     extent.lo, extent.hi, box.rank_);
    }
    box.extents_[static_cast<size_t>(box.rank_++)] = extent;
  }
  return box;
}

Box Box::whole(const Shape& shape) {
  Box box;
  for (const int64_t size : shape.sizes()) {
    box.extents_[static_cast<size_t>(box.rank_++)] = {0, size};
  }
  return box;
}

int64_t Box::elements() const {
  int64_t product = 1;
  for (const Extent& extent : extents()) product *= extent.size();
  return product;
}

bool Box::empty() const {
  return std::ranges::any_of(extents(), [](const Extent& e) { return e.lo == e.hi; });
}

Shape Box::shape() const {
  std::array<int64_t, kMaxRank> sizes{};
  for (int k = 0; k < rank_; ++k) sizes[static_cast<size_t>(k)] = size(k);
  return Shape::create({sizes.data(), static_cast<size_t>(rank_)}).value();
}

Box Box::with(int k, Extent extent) const {
  Box box = *this;
  box.extents_[static_cast<size_t>(k)] = extent;
  return box;
}

bool Box::contains(const Box& inner) const {
  if (inner.empty()) return true;
  for (int k = 0; k < rank_; ++k) {
    if (inner[k].lo < (*this)[k].lo || inner[k].hi > (*this)[k].hi) return false;
  }
  return true;
}

bool Box::inside(const Shape& shape) const {
  if (rank_ != shape.rank()) return false;
  for (int k = 0; k < rank_; ++k) {
    if ((*this)[k].hi > shape[k]) return false;
  }
  return true;
}

std::strong_ordering operator<=>(const Box& a, const Box& b) {
  return std::lexicographical_compare_three_way(a.extents().begin(), a.extents().end(),
                                                b.extents().begin(), b.extents().end());
}

std::string to_string(const Box& box) {
  std::string text = "[";
  for (int k = 0; k < box.rank(); ++k) {
    text += fmt::format("{}{}:{}", k ? ", " : "", box[k].lo, box[k].hi);
  }
  return text + "]";
}

std::optional<Box> intersect(const Box& a, const Box& b) {
  Box common;
  common.rank_ = a.rank_;
  for (int k = 0; k < a.rank(); ++k) {
    const Extent extent{std::max(a[k].lo, b[k].lo), std::min(a[k].hi, b[k].hi)};
    if (extent.lo >= extent.hi) return std::nullopt;
    common.extents_[static_cast<size_t>(k)] = extent;
  }
  return common;
}

bool overlap(const Box& a, const Box& b) {
  for (int k = 0; k < a.rank(); ++k) {
    if (std::max(a[k].lo, b[k].lo) >= std::min(a[k].hi, b[k].hi)) return false;
  }
  return true;
}

std::vector<Box> flat_range(const Box& box, int64_t first, int64_t last) {
  HOLDFAST_CHECK(0 <= first && first <= last && last <= box.elements(),
                 "flat range {}:{} of {} elements", first, last, box.elements());
  std::vector<Box> boxes;
  append_flat(box, 0, first, last, boxes);
  return boxes;
}

std::vector<Box> subtract(const Box& outer, const Box& inner) {
  std::vector<Box> rest;
  Box core = outer;  // shrinks to `inner`, one dimension after the other
  for (int k = 0; k < outer.rank(); ++k) {
    if (core[k].lo < inner[k].lo)
      rest.push_back(core.with(k, {core[k].lo, inner[k].lo}));
    if (inner[k].hi < core[k].hi)
      rest.push_back(core.with(k, {inner[k].hi, core[k].hi}));
    core = core.with(k, inner[k]);
  }
  return rest;
}

}  // namespace holdfast
