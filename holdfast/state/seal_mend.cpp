#include "holdfast/state/seal_mend.h"

#include <algorithm>
#include <array>
#include <bit>

#include "holdfast/base/checked.h"
#include "holdfast/state/element.h"
#include "holdfast/state/seal_kernel.h"

namespace holdfast {
namespace {

constexpr uint64_t kWordRange = uint64_t{1} << 32;
constexpr int64_t kWordBytes = 4;

// The inverse of an odd number modulo 2^64. Newton's step doubles the number of bits
// that are right; an odd number is its own inverse modulo 2^3.
constexpr uint64_t inverse_of(uint64_t odd) {
  uint64_t inverse = odd;
  for (int bits = 3; bits < 64; bits *= 2) inverse *= 2 - odd * inverse;
  return inverse;
}

// The inverses of K_0.
constexpr std::array<uint64_t, kSealBlock> make_inverses() {
  std::array<uint64_t, kSealBlock> inverses{};
  for (size_t n = 0; n < kSealBlock; ++n) {
    inverses[n] = inverse_of(kSealConstants.row[0][n]);
  }
  return inverses;
}

constexpr std::array<uint64_t, kSealBlock> kInverses = make_inverses();

uint64_t block_factor(uint64_t lane, uint64_t block) {
  return mix64(mix64(lane) ^ block) | 1;
}

// True if the number, as a signed one, is a difference of two words.
bool is_difference(uint64_t d) { return d + (kWordRange - 1) <= 2 * (kWordRange - 1); }

// The place of a corner of the box among the elements of the tensor.
int64_t corner(const Shape& shape, const Box& box, bool last) {
  int64_t place = 0;
  for (int k = 0; k < shape.rank(); ++k) {
    place = place * shape[k] + (last ? box[k].hi - 1 : box[k].lo);
  }
  return place;
}

// Looks for the word in one block of words after the other.
class Search {
 public:
  Search(const Seal& sealed, const Seal& seen)
      : change_{sealed.lanes[0] - seen.lanes[0], sealed.lanes[1] - seen.lanes[1]} {}

  // Looks at the words [first, last) of the block that begins at `begin`.
  void look_in_block(uint64_t begin, uint64_t first, uint64_t last) {
    const uint64_t block = begin / kSealBlock;
    const uint64_t part = change_[0] * inverse_of(block_factor(0, block));
    for (uint64_t i = first; i < last; ++i) {
      const uint64_t d = part * kInverses[i - begin];
      if (is_difference(d) && fits_lane_1(block, i - begin, d)) add(i, d);
    }
  }

  std::optional<ChangedWord> result() const {
    return count_ == 1 ? std::optional(found_) : std::nullopt;
  }

 private:
  bool fits_lane_1(uint64_t block, uint64_t n, uint64_t d) const {
    return block_factor(1, block) * kSealConstants.row[1][n] * d == change_[1];
  }

  void add(uint64_t word, uint64_t d) {
    found_ = {.word = word, .difference = static_cast<int64_t>(d)};
    ++count_;
  }

  const std::array<uint64_t, kSealLanes> change_;
  ChangedWord found_{};
  int64_t count_ = 0;
};

}  // namespace

std::optional<ChangedWord> find_changed_word(const Seal& sealed, const Seal& seen,
                                             uint64_t first, uint64_t last) {
  if (sealed.bytes != seen.bytes || sealed.lanes == seen.lanes) return std::nullopt;
  Search search(sealed, seen);
  for (uint64_t begin = first - first % kSealBlock; begin < last; begin += kSealBlock) {
    search.look_in_block(begin, std::max(begin, first),
                         std::min(begin + kSealBlock, last));
  }
  return search.result();
}

std::optional<ChangedWord> find_changed_word(const Seal& sealed, const Seal& seen) {
  return find_changed_word(sealed, seen, 0, divide_up(seen.bytes, uint64_t{4}));
}

std::optional<ChangedWord> find_changed_word(const Seal& sealed, const Seal& seen,
                                             const Shape& shape, Dtype dtype,
                                             const Box& box) {
  const int64_t size = bytes_of(dtype);
  const int64_t first = corner(shape, box, false) * size;
  const int64_t last = (corner(shape, box, true) + 1) * size - 1;
  return find_changed_word(sealed, seen, static_cast<uint64_t>(first / kWordBytes),
                           static_cast<uint64_t>(last / kWordBytes + 1));
}

WordPlaces places_of_word(const Shape& shape, Dtype dtype, const Box& box,
                          uint64_t word) {
  const int64_t size = bytes_of(dtype);
  WordPlaces places;
  for (size_t k = 0; k < places.size(); ++k) {
    const int64_t byte =
        static_cast<int64_t>(word) * kWordBytes + static_cast<int64_t>(k);
    if (byte / size >= shape.elements()) break;
    const auto place = place_in_box(shape, box, byte / size);
    if (place) places[k] = *place * size + byte % size;
  }
  return places;
}

int64_t first_changed_element(Dtype dtype, uint64_t word, uint32_t now,
                              uint32_t before) {
  const int64_t byte =
      static_cast<int64_t>(word) * kWordBytes + std::countr_zero(now ^ before) / 8;
  return byte / bytes_of(dtype);
}

std::optional<uint32_t> word_before(const ChangedWord& changed, uint32_t now) {
  const int64_t before = int64_t{now} + changed.difference;
  if (before < 0 || before >= static_cast<int64_t>(kWordRange)) return std::nullopt;
  return static_cast<uint32_t>(before);
}

}  // namespace holdfast
