#include "holdfast/base/reed_solomon.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>

#include "holdfast/base/guard_page_testing.h"

namespace holdfast::tests::reed_solomon_test {
namespace {

Bytes random_block(std::mt19937_64& random, size_t size) {
  Bytes block(size);
  for (std::byte& byte : block) byte = static_cast<std::byte>(random());
  return block;
}

std::vector<ByteSpan> spans_of(std::vector<Bytes>& blocks) {
  return {blocks.begin(), blocks.end()};
}

// Loses the first blocks of a shuffled list, and computes the data blocks among them.
void expect_mended(int data, int parity, std::mt19937_64& random) {
  const ReedSolomon code(data, parity);
  constexpr size_t kSize = 1024;
  std::vector<Bytes> blocks, sums(static_cast<size_t>(parity), Bytes(kSize));
  for (int i = 0; i < data; ++i) {
    blocks.push_back(random_block(random, kSize));
    code.add(i, blocks.back(), spans_of(sums));
  }
  std::vector<int> all(static_cast<size_t>(data + parity));
  std::iota(all.begin(), all.end(), 0);
  std::shuffle(all.begin(), all.end(), random);
  const std::vector<int> gone(all.begin(), all.begin() + parity);
  const auto is_gone = [&](int block) { return std::ranges::count(gone, block) > 0; };
  std::vector<int> lost, rows;
  for (int i = 0; i < data; ++i) {
    if (is_gone(i)) {
      lost.push_back(i);
    } else {
      code.add(i, blocks[static_cast<size_t>(i)], spans_of(sums));
    }
  }
  std::vector<ByteView> left;
  for (int r = 0; r < parity && left.size() < lost.size(); ++r) {
    if (is_gone(data + r)) continue;
    rows.push_back(r);
    left.emplace_back(sums[static_cast<size_t>(r)]);
  }
  if (lost.empty()) return;
  const std::vector<Bytes> found = code.solve(lost, rows, left);
  for (size_t i = 0; i < lost.size(); ++i) {
    EXPECT_TRUE(found[i] == blocks[static_cast<size_t>(lost[i])]) << lost[i];
  }
}

TEST(ReedSolomonTest, NothingBehindTheBlocksIsTouched) {
  std::mt19937_64 random(3);
  const ReedSolomon code(2, 1);
  for (size_t size = 1; size < 3000; size += 1 + size / 16) {
    AtTheEndOfAPage block(random_block(random, size)), sum(size);
    const std::array<ByteSpan, 1> sums{sum.bytes()};
    code.add(0, block.bytes(), sums);
    code.add(0, block.bytes(), sums);  // takes it out again
    EXPECT_TRUE(std::ranges::equal(sum.bytes(), Bytes(size))) << size;
  }
}

TEST(ReedSolomonTest, AsManyBlocksAsThereAreParityBlocksMayBeLost) {
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 8; ++trial) {
    for (const auto& [data, parity] :
         {std::pair(1, 1), {5, 2}, {206, 2}, {40, 8}, {169, 84}}) {
      expect_mended(data, parity, random);
    }
  }
}

// Golden bytes: parity in files must be the same on every machine and with every version
// of ISA-L.
TEST(ReedSolomonTest, TheCodeIsFixed) {
  const ReedSolomon code(3, 2);
  std::vector<Bytes> sums(2, Bytes(64));
  for (int i = 0; i < 3; ++i) {
    code.add(i, Bytes(64, static_cast<std::byte>(i + 1)), spans_of(sums));
  }
  EXPECT_EQ(to_hex(ByteView(sums[0]).first(2)), "f6f6");
  EXPECT_EQ(to_hex(ByteView(sums[1]).first(2)), "9a9a");
}

}  // namespace
}  // namespace holdfast::tests::reed_solomon_test
