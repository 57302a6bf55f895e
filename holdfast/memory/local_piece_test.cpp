#include <gtest/gtest.h>

#include <array>

#include "holdfast/base/testing.h"
#include "holdfast/memory/local_state.h"

namespace holdfast {
namespace {

TEST(LocalPiece, ASpanOfElementsIsAWholeTensorRowByRow) {
  std::vector<double> cells(6);
  const LocalPiece piece = whole_piece("heat", std::span(cells), {2, 3});
  const Tensor tensor{.name = "heat", .dtype = Dtype::kF64, .shape = {2, 3}};
  EXPECT_EQ(*piece.tensor, tensor);
  EXPECT_EQ(piece.box, (Box{{0, 2}, {0, 3}}));
  EXPECT_EQ(piece.memory.data(), std::as_bytes(std::span(cells)).data());
  EXPECT_EQ(piece.memory.size(), 48u);
  EXPECT_EQ(piece.map, Map::dense(piece.box, 8));
  const ByteSpan bytes = std::as_writable_bytes(std::span(cells));
  EXPECT_EQ(whole_piece(tensor, bytes), piece);
}

TEST(LocalPiece, ASpanOfElementsIsABoxOfATensor) {
  std::array<int32_t, 6> cells{};
  const Box box{{4, 6}, {0, 3}};
  const LocalPiece piece = make_piece("heat", std::span(cells), {9, 3}, box);
  const Tensor tensor{.name = "heat", .dtype = Dtype::kI32, .shape = {9, 3}};
  EXPECT_EQ(*piece.tensor, tensor);
  EXPECT_EQ(piece.box, box);
  EXPECT_EQ(piece.bytes(), 24);
  EXPECT_EQ(piece.map, Map::dense(box, 4));
}

TEST(LocalPiece, MemoryThatIsTooShortForItsTensorIsRefused) {
  std::vector<float> cells(5);
  const std::vector pieces{whole_piece("heat", std::span(cells), {2, 3})};
  EXPECT_ERROR(make_local_state(pieces), ErrorCode::kInvalid);
}

}  // namespace
}  // namespace holdfast
