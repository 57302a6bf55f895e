#include "holdfast/checkpoint/range_check.h"

#include <gtest/gtest.h>

#include "holdfast/checkpoint/checkpoint_testing.h"

namespace holdfast::tests::range_check_test {
namespace {

const Tensor kTensor{.name = "w", .dtype = Dtype::kF32, .shape = {12}};
const Box kMiddle{{4, 8}};  // the piece that two ranks read in halves

Seal seal_of_rows(const std::vector<float>& values, int64_t lo, int64_t hi) {
  const ByteView bytes = std::as_bytes(std::span(values));
  return seal_bytes(
      bytes.subspan(static_cast<size_t>(lo * 4), static_cast<size_t>((hi - lo) * 4)),
      static_cast<uint64_t>(lo * 4));
}

// The halves as messages between ranks have them.
std::vector<RangeRead> halves(const std::vector<float>& values, bool digested) {
  std::vector<RangeRead> all;
  for (const int64_t lo : {4, 6}) {
    all.push_back({.tensor = 0,
                   .stored = kMiddle,
                   .box = Box{{lo, lo + 2}},
                   .seal = seal_of_rows(values, lo, lo + 2),
                   .digested = digested});
  }
  return decode_ranges(encode_ranges(all), {&kTensor, 1}).value();
}

TEST(RangeCheck, ThePartsOfOnePieceAreComparedAlthoughOthersWereReadWhole) {
  std::vector<float> values(12, 1.5F);
  const PieceSeals seals{{{0, kMiddle}, seal_of_rows(values, 4, 8)}};
  EXPECT_TRUE(check_ranges(halves(values, true), {&kTensor, 1}, seals).value().empty());
  values[5] = 1e30F;
  EXPECT_ERROR(check_ranges(halves(values, true), {&kTensor, 1}, seals),
               ErrorCode::kCorrupt);
}

TEST(RangeCheck, APartAloneIsUnverifiedUnlessItsDigestsWereChecked) {
  const std::vector<float> values(12, 1.5F);
  const PieceSeals seals{{{0, kMiddle}, seal_of_rows(values, 4, 8)}};
  for (const bool digested : {true, false}) {
    std::vector<RangeRead> one = halves(values, digested);
    one.pop_back();
    const auto unverified = check_ranges(one, {&kTensor, 1}, seals).value();
    EXPECT_EQ(unverified,
              digested ? std::vector<std::string>() : std::vector<std::string>{"w"});
  }
}

}  // namespace
}  // namespace holdfast::tests::range_check_test
