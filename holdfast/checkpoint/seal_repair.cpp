#include "holdfast/checkpoint/seal_repair.h"

#include <array>
#include <cstring>

#include "holdfast/memory/piece_writer.h"
#include "holdfast/state/element.h"
#include "holdfast/state/seal_mend.h"

namespace holdfast {
namespace {

// The bytes of a word that belong to a piece. Those of other pieces count as 0.
class WordOfPiece {
 public:
  WordOfPiece(const LocalPiece& piece, uint64_t word)
      : piece_(piece),
        at_(places_of_word(piece.tensor->shape, piece.tensor->dtype, piece.box, word)) {}

  Result<uint32_t> read() const {
    std::array<std::byte, 4> bytes{};
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
    std::array<std::byte, 4> bytes{};
    store_little_endian(word, ByteSpan(bytes));
    PieceWriter writer({&piece_, 1});
    for (size_t k = 0; k < bytes.size(); ++k) {
      if (!at_[k].has_value()) continue;
      HOLDFAST_TRY(writer.put(piece_, piece_.box, bytes_of(piece_.tensor->dtype),
                              *at_[k], ByteView(bytes).subspan(k, 1)));
    }
    return writer.finish();
  }

 private:
  const LocalPiece& piece_;
  const WordPlaces at_;
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
  const Dtype dtype = piece.tensor->dtype;
  const auto changed = find_changed_word(sealed, seen, shape, dtype, piece.box);
  if (!changed.has_value()) return beyond_repair(piece);
  const WordOfPiece word(piece, changed->word);
  const uint32_t now = HOLDFAST_TRY(word.read());
  const std::optional<uint32_t> before = word_before(*changed, now);
  if (!before.has_value() || !word.fits(*before)) return beyond_repair(piece);
  const int64_t hit = first_changed_element(dtype, changed->word, now, *before);
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
