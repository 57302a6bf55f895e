#include <gtest/gtest.h>

#include "holdfast/checkpoint/checkpoint_testing.h"

namespace holdfast::tests {
namespace {

// Checks two tensors of two by three floats that begin at the bytes `first` and
// `second` of the same memory.
Result<void> check_two(int64_t first, int64_t second, std::array<int64_t, 2> strides) {
  Memory memory(256);
  std::vector<LocalPiece> tensors;
  for (const auto& [name, at] : {std::pair{"a", first}, std::pair{"b", second}}) {
    const Box box = Box::whole({2, 3});
    Map map = Map::dense(box, 4, at);
    map.strides[0] = strides[0];
    map.strides[1] = strides[1];
    tensors.push_back(make_piece({.name = name, .dtype = Dtype::kF32, .shape = {2, 3}},
                                 box, memory, map));
  }
  return check_no_overlap(HOLDFAST_TRY(make_local_state(tensors)));
}

TEST(Apart, MemoryOfItsOwnAndMemorySideBySideIsFine) {
  EXPECT_OK(check_two(0, 100, {12, 4}));
  EXPECT_OK(check_two(0, 24, {12, 4}));
  EXPECT_OK(check_two(24, 0, {12, 4}));
}

TEST(Apart, PiecesThatLieBetweenEachOtherShareNothing) {
  EXPECT_OK(check_two(0, 4, {24, 8}));   // every other element
  EXPECT_OK(check_two(0, 12, {24, 4}));  // every other row
}

TEST(Apart, OneByteInCommonIsRefusedByName) {
  const Result<void> apart = check_two(0, 20, {12, 4});
  EXPECT_ERROR(apart, ErrorCode::kInvalid);
  EXPECT_EQ(apart.error().message(),
            "a and b: share memory; expected arrays of their own to restore into");
  EXPECT_ERROR(check_two(0, 8, {24, 8}), ErrorCode::kInvalid);
  EXPECT_ERROR(check_two(0, 2, {12, 4}), ErrorCode::kInvalid);
}

}  // namespace
}  // namespace holdfast::tests
