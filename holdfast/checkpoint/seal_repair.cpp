#include "holdfast/checkpoint/seal_repair.h"

#include <array>
#include <cstring>

#include "holdfast/memory/piece_writer.h"
#include "holdfast/state/element.h"
#include "holdfast/state/seal_mend.h"

namespace holdfast {
namespace {

constexpr int64_t kWordBytes = 4;

// The place of the box's first or last element among those of the tensor.
int64_t corner(const Box& box, const Shape& shape, bool last) {
  int64_t place = 0;
  for (size_t d = 0; d < shape.sizes().size(); ++d) {
    const Extent& extent = box.extents()[d];
    place = place * shape.sizes()[d] + (last ? extent.hi - 1 : extent.lo);
  }
  return place;
}

// The bytes of a word that belong to a piece. Those of other pieces count as 0.
class WordOfPiece {
 public:
  WordOfPiece(const LocalPiece& piece, uint64_t word)
      : piece_(piece), element_(bytes_of(piece.tensor->dtype)) {
    for (int64_t k = 0; k < kWordBytes; ++k) {
      const int64_t byte = static_cast<int64_t>(word) * kWordBytes + k;
      if (byte / element_ >= piece.tensor->shape.elements()) continue;
      const auto place = place_in_box(piece.tensor->shape, piece.box, byte / element_);
      if (place.has_value())
        at_[static_cast<size_t>(k)] = *place * element_ + byte % element_;
    }
  }

  Result<uint32_t> read() const {
    std::array<std::byte, kWordBytes> bytes{};
    for (size_t k = 0; k < bytes.size(); ++k) {
      if (!at_[k].has_value()) continue;
      HOLDFAST_TRY(read_piece(piece_, *at_[k], ByteSpan(bytes).subspan(k, 1)));
    }
    return load_little_endian<uint32_t>(bytes);
  }

  // False if the word has a byte that the piece does not.
  bool fits(uint32_t word) const {
    for (size_t k = 0; k < at_.size(); ++k) {
      if (!at_[k].has_value() && ((word >> (8 * k)) & 0xff) != 0) return false;
    }
    return true;
  }

  Result<void> write(uint32_t word) const {
    std::array<std::byte, kWordBytes> bytes{};
    store_little_endian(word, ByteSpan(bytes));
    PieceWriter writer({&piece_, 1});
    for (size_t k = 0; k < bytes.size(); ++k) {
      if (!at_[k].has_value()) continue;
      HOLDFAST_TRY(writer.put(piece_, piece_.box, element_, *at_[k],
                              ByteView(bytes).subspan(k, 1)));
    }
    return writer.finish();
  }

 private:
  const LocalPiece& piece_;
  const int64_t element_;
  std::array<std::optional<int64_t>, kWordBytes> at_{};  // in the piece's stream
};

Result<ElementBits> read_element(const LocalPiece& piece, int64_t place) {
  const int64_t size = bytes_of(piece.tensor->dtype);
  Bytes bytes(static_cast<size_t>(size));
  HOLDFAST_TRY(read_piece(piece, place * size, bytes));
  return element_bits(bytes);
}

std::string describe(const Tensor& tensor, int64_t element, const ElementBits& now,
                     const ElementBits& before) {
  const auto text = [&](const ElementBits& bits, int digits) {
    return value_text(tensor.dtype, bits, digits);
  };
  constexpr int kFew = 3;
  const int digits = text(now, kFew) == text(before, kFew) ? kAllDigits : kFew;
  return fmt::format(
      "{} {} {} is {}; expected {}", tensor.name, index_text(tensor.shape, element),
      bits_in_words(difference(now, before)), text(now, digits), text(before, digits));
}

Error beyond_repair(const LocalPiece& piece) {
  return corrupt(
      "{}: more than one word differs from what was sealed; expected the seal that was "
      "saved",
      piece.tensor->name);
}

}  // namespace

Result<std::string> mend_piece(const LocalPiece& piece, const Seal& sealed,
                               const Seal& seen) {
  const Shape& shape = piece.tensor->shape;
  const int64_t element = bytes_of(piece.tensor->dtype);
  const auto first =
      static_cast<uint64_t>(corner(piece.box, shape, false) * element / kWordBytes);
  const auto last = static_cast<uint64_t>(
      ((corner(piece.box, shape, true) + 1) * element - 1) / kWordBytes);
  const auto changed = find_changed_word(sealed, seen, first, last + 1);
  if (!changed.has_value()) return beyond_repair(piece);
  const WordOfPiece word(piece, changed->word);
  const uint32_t now = HOLDFAST_TRY(word.read());
  const std::optional<uint32_t> before = word_before(*changed, now);
  if (!before.has_value() || !word.fits(*before)) return beyond_repair(piece);
  // Names the element of the lowest byte that differs.
  const int64_t byte = std::countr_zero(now ^ *before) / 8;
  const int64_t hit =
      (static_cast<int64_t>(changed->word) * kWordBytes + byte) / element;
  const int64_t place = place_in_box(shape, piece.box, hit).value_or(0);
  const ElementBits bad = HOLDFAST_TRY(read_element(piece, place));
  HOLDFAST_TRY(word.write(*before));
  if (HOLDFAST_TRY(seal_of(piece)) != sealed) {
    HOLDFAST_TRY(word.write(now));
    return beyond_repair(piece);
  }
  return describe(*piece.tensor, hit, bad, HOLDFAST_TRY(read_element(piece, place)));
}

}  // namespace holdfast
