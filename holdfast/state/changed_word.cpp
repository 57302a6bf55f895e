#include "holdfast/state/changed_word.h"

#include <algorithm>
#include <array>

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

std::optional<uint32_t> word_before(const ChangedWord& changed, uint32_t now) {
  const int64_t before = int64_t{now} + changed.difference;
  if (before < 0 || before >= static_cast<int64_t>(kWordRange)) return std::nullopt;
  return static_cast<uint32_t>(before);
}

namespace {

// The places of the four bytes of a word in the stream of a box. A byte that the box does not
// have is nullopt, and counts as 0 in the seal of the box.
using WordPlaces = std::array<std::optional<int64_t>, 4>;

WordPlaces places_of_word(const Tensor& tensor, const Box& box, uint64_t word) {
  const int64_t size = bytes_of(tensor.dtype);
  WordPlaces places;
  for (size_t k = 0; k < places.size(); ++k) {
    const int64_t byte =
        static_cast<int64_t>(word) * kWordBytes + static_cast<int64_t>(k);
    if (byte / size >= tensor.shape.elements()) break;
    const auto place = place_in_box(tensor.shape, box, byte / size);
    if (place) places[k] = *place * size + byte % size;
  }
  return places;
}

std::optional<ChangedWord> find_in_box(const Seal& sealed, const Seal& seen,
                                       const Tensor& tensor, const Box& box) {
  const int64_t size = bytes_of(tensor.dtype);
  const int64_t first = corner(tensor.shape, box, false) * size;
  const int64_t last = (corner(tensor.shape, box, true) + 1) * size - 1;
  return find_changed_word(sealed, seen, static_cast<uint64_t>(first / kWordBytes),
                           static_cast<uint64_t>(last / kWordBytes + 1));
}

// The elements that have the changed bytes of a word.
Result<std::vector<ChangedElement>> elements_of(const Tensor& tensor, uint64_t word,
                                                const WordPlaces& places,
                                                std::span<const ChangedByte> bytes,
                                                const ReadStream& read) {
  const int64_t size = bytes_of(tensor.dtype);
  std::vector<ChangedElement> elements;
  Bytes sealed;
  for (const ChangedByte& byte : bytes) {
    const auto k = std::ranges::find(places, std::optional(byte.place)) - places.begin();
    const int64_t element = (static_cast<int64_t>(word) * kWordBytes + k) / size;
    const int64_t begin = byte.place / size * size;
    if (elements.empty() || elements.back().element != element) {
      sealed.resize(static_cast<size_t>(size));
      HOLDFAST_TRY(read(begin, sealed));
      elements.push_back({.element = element, .seen = element_bits(sealed)});
    }
    sealed[static_cast<size_t>(byte.place - begin)] = byte.sealed;
    elements.back().sealed = element_bits(sealed);
  }
  return elements;
}

}  // namespace

Result<std::optional<WordChange>> find_word_change(const Seal& sealed, const Seal& seen,
                                                   const Tensor& tensor, const Box& box,
                                                   const ReadStream& read) {
  const std::optional<WordChange> none;
  const auto changed = find_in_box(sealed, seen, tensor, box);
  if (!changed) return none;
  const WordPlaces places = places_of_word(tensor, box, changed->word);
  std::array<std::byte, kWordBytes> now{}, before{};
  for (size_t k = 0; k < now.size(); ++k) {
    if (places[k]) HOLDFAST_TRY(read(*places[k], ByteSpan(now).subspan(k, 1)));
  }
  const auto word = word_before(*changed, load_little_endian<uint32_t>(now));
  if (!word) return none;
  store_little_endian(*word, ByteSpan(before));
  WordChange change;
  for (size_t k = 0; k < now.size(); ++k) {
    if (now[k] == before[k]) continue;
    if (!places[k]) return none;
    change.bytes.push_back({*places[k], before[k], now[k]});
  }
  change.elements =
      HOLDFAST_TRY(elements_of(tensor, changed->word, places, change.bytes, read));
  return std::optional(std::move(change));
}

}  // namespace holdfast
