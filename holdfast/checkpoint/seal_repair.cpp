#include "holdfast/checkpoint/seal_repair.h"

#include <span>

#include "holdfast/memory/piece_writer.h"
#include "holdfast/state/changed_word.h"

namespace holdfast {
namespace {

// Writes what the changed bytes were, or what they are.
Result<void> write(const LocalPiece& piece, std::span<const ChangedByte> bytes,
                   std::byte ChangedByte::* value) {
  PieceWriter writer({&piece, 1});
  for (const ChangedByte& byte : bytes) {
    HOLDFAST_TRY(writer.put(piece, piece.box, bytes_of(piece.tensor->dtype), byte.place,
                            ByteView(&(byte.*value), 1)));
  }
  return writer.finish();
}

std::string describe(const Tensor& tensor, const ChangedElement& changed) {
  const auto text = [&](const ElementBits& bits, int digits) {
    return value_text(tensor.dtype, bits, digits);
  };
  const auto& [element, sealed, seen] = changed;
  constexpr int kFew = 3;
  const int digits = text(seen, kFew) == text(sealed, kFew) ? kAllDigits : kFew;
  return fmt::format(
      "{} {} {} is {}; expected {}", tensor.name, index_text(tensor.shape, element),
      bits_in_words(difference(seen, sealed)), text(seen, digits), text(sealed, digits));
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
  const auto change = HOLDFAST_TRY(find_word_change(
      sealed, seen, *piece.tensor, piece.box,
      [&](int64_t at, ByteSpan into) { return read_piece(piece, at, into); }));
  if (!change) return beyond_repair(piece);
  HOLDFAST_TRY(write(piece, change->bytes, &ChangedByte::sealed));
  if (HOLDFAST_TRY(seal_of(piece)) != sealed) {
    HOLDFAST_TRY(write(piece, change->bytes, &ChangedByte::seen));
    return beyond_repair(piece);
  }
  return describe(*piece.tensor, change->elements.front());
}

}  // namespace holdfast
