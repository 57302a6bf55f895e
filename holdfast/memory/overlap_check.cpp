// check_no_overlap() of local_state.h: finds pieces that share bytes of memory.
#include <algorithm>
#include <array>
#include <numeric>
#include <optional>

#include "holdfast/memory/local_state.h"
#include "holdfast/state/strided.h"

namespace holdfast {
namespace {

// A piece, the address of its first byte, and the address behind its last byte.
struct Spread {
  const LocalPiece* piece = nullptr;
  int64_t element = 1;
  int64_t first = 0;
  int64_t last = 0;
};

std::vector<Spread> spreads_of(const LocalState& state) {
  std::vector<Spread> all;
  for (const LocalPiece& piece : state.pieces) {
    if (piece.device != nullptr || piece.box.empty()) continue;
    const int64_t element = bytes_of(piece.tensor->dtype);
    const ByteRange range = range_of(piece.map, piece.box.shape(), element);
    const auto base = reinterpret_cast<intptr_t>(piece.memory.data());
    all.push_back({&piece, element, base + range.first, base + range.last});
  }
  std::ranges::sort(all, {}, &Spread::first);
  return all;
}

// Marks the bytes of an address range that a piece covers. A mark stands for one unit,
// a number of bytes that divides the sizes and positions of all pieces.
class Marks {
 public:
  explicit Marks(std::span<const Spread> pieces) : first_(pieces.front().first) {
    int64_t last = first_;
    for (const Spread& spread : pieces) {
      last = std::max(last, spread.last);
      unit_ = std::gcd(unit_, std::gcd(spread.element, spread.first - first_));
      const Shape shape = spread.piece->box.shape();
      for (int k = 0; k < shape.rank(); ++k) {
        const int64_t stride = spread.piece->map.strides[static_cast<size_t>(k)];
        if (shape[k] > 1) unit_ = std::gcd(unit_, stride);
      }
    }
    taken_.resize(static_cast<size_t>((last - first_) / unit_));
  }

  // Marks the bytes of the piece. Returns false if one of them was marked already.
  bool take(const Spread& spread) {
    const Shape shape = spread.piece->box.shape();
    const auto base = reinterpret_cast<intptr_t>(spread.piece->memory.data());
    const StridedCopy runs =
        plan_copy(spread.piece->map, Map::dense(spread.piece->box, spread.element),
                  shape, spread.element);
    return visit(runs, 0, base + runs.from - first_);
  }

 private:
  bool visit(const StridedCopy& runs, int k, int64_t at) {
    if (k == runs.loops) return take_run(at / unit_, (at + runs.run) / unit_);
    const StridedCopy::Loop& loop = runs.loop[static_cast<size_t>(k)];
    for (int64_t i = 0; i < loop.count; ++i) {
      if (!visit(runs, k + 1, at + i * loop.from_stride)) return false;
    }
    return true;
  }

  bool take_run(int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (taken_[static_cast<size_t>(i)]) return false;
      taken_[static_cast<size_t>(i)] = true;
    }
    return true;
  }

  const int64_t first_;
  int64_t unit_ = 0;
  std::vector<bool> taken_;
};

// True if the pieces share no bytes. `a` must not begin behind `b`.
bool are_apart(const Spread& a, const Spread& b) {
  const std::array<Spread, 2> both{a, b};
  Marks marks(both);
  return marks.take(a) && marks.take(b);
}

// Checks pieces whose address ranges overlap, sorted by address. Their bytes may still
// be apart: the columns of a matrix lie between each other.
Result<void> check_group(std::span<const Spread> group) {
  if (group.size() < 2) return {};
  Marks marks(group);
  for (size_t i = 0; i < group.size(); ++i) {
    if (marks.take(group[i])) continue;
    const auto other = std::ranges::find_if_not(
        group.first(i), [&](const Spread& one) { return are_apart(one, group[i]); });
    return invalid(
        "{} and {}: share memory; expected arrays of their own to restore into",
        other->piece->tensor->name, group[i].piece->tensor->name);
  }
  return {};
}

}  // namespace

Result<void> check_no_overlap(const LocalState& state) {
  const std::vector<Spread> all = spreads_of(state);
  size_t begin = 0;
  int64_t reach = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i > begin && all[i].first >= reach) {
      HOLDFAST_TRY(check_group(std::span(all).subspan(begin, i - begin)));
      begin = i;
    }
    reach = i == begin ? all[i].last : std::max(reach, all[i].last);
  }
  return check_group(std::span(all).subspan(begin));
}

}  // namespace holdfast
