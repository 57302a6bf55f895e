#include "holdfast/checkpoint/seal_repair.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "holdfast/checkpoint/checkpoint_testing.h"

namespace holdfast::tests::seal_repair_test {
namespace {

// A part of a tensor in memory of its own, in row-major or column-major order.
struct Held {
  Held(Dice& dice, const Tensor& tensor, const Box& box, bool transposed)
      : bytes(static_cast<size_t>(box.elements() * bytes_of(tensor.dtype))) {
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(dice.below(256));
    const int64_t element = bytes_of(tensor.dtype);
    Map map = Map::dense(box, element);
    if (transposed) {
      map.strides[0] = element;
      map.strides[1] = (box.extents()[0].hi - box.extents()[0].lo) * element;
    }
    piece = make_piece(tensor, box, bytes, map);
  }
  Bytes bytes;
  LocalPiece piece;
};

constexpr std::array kDtypes{Dtype::kF32, Dtype::kBf16, Dtype::kU8, Dtype::kF64};

Held random_piece(Dice& dice) {
  const Dtype dtype = kDtypes[static_cast<size_t>(dice.below(std::ssize(kDtypes)))];
  const auto rows = 1 + dice.below(40);
  const auto columns = 1 + dice.below(40);
  const auto top = dice.below(rows);
  const auto left = dice.below(columns);
  return {dice,
          {.name = "w", .dtype = dtype, .shape = {rows, columns}},
          Box{{top, rows}, {left, columns}},
          dice.one_in(2)};
}

RC_GTEST_PROP(SealRepair, OneFlippedBitOfAnyPieceIsMended, (uint64_t seed)) {
  Dice dice(seed);
  Held held = random_piece(dice);
  const Bytes good = held.bytes;
  const Seal sealed = *seal_of(held.piece);
  held.bytes[static_cast<size_t>(dice.below(std::ssize(held.bytes)))] ^=
      static_cast<std::byte>(1 << dice.below(8));
  const Result<std::string> mended =
      mend_piece(held.piece, sealed, *seal_of(held.piece));
  RC_ASSERT(mended.ok());
  RC_ASSERT(held.bytes == good);
}

TEST(SealRepair, TheSentenceNamesElementBitAndValues) {
  Dice dice(1);
  Held held(dice, {.name = "fc.weight", .dtype = Dtype::kF32, .shape = {4, 20}},
            Box{{2, 4}, {10, 20}}, false);
  const auto value = [&](float number) {
    std::memcpy(held.bytes.data() + (1 * 10 + 7) * 4, &number, 4);
  };
  value(0.0625);
  const Seal sealed = *seal_of(held.piece);
  held.bytes[(1 * 10 + 7) * 4 + 3] ^= std::byte{0x40};
  const Result<std::string> mended =
      mend_piece(held.piece, sealed, *seal_of(held.piece));
  ASSERT_OK(mended);
  EXPECT_EQ(*mended, "fc.weight [3, 17] bit 30 is 2.13e+37; expected 0.0625");
}

TEST(SealRepair, TwoDamagedWordsAreRefusedAndLeftAsTheyAre) {
  Dice dice(2);
  Held held(dice, {.name = "w", .dtype = Dtype::kF32, .shape = {100}}, Box{{0, 100}},
            false);
  const Seal sealed = *seal_of(held.piece);
  held.bytes[3] ^= std::byte{1};
  held.bytes[200] ^= std::byte{1};
  const Bytes bad = held.bytes;
  EXPECT_ERROR(mend_piece(held.piece, sealed, *seal_of(held.piece)),
               ErrorCode::kCorrupt);
  EXPECT_EQ(held.bytes, bad);
}

}  // namespace
}  // namespace holdfast::tests::seal_repair_test
