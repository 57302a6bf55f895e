#include "holdfast/base/xxh3.h"

#include <gtest/gtest.h>

#include "holdfast/base/testing.h"

namespace holdfast {
namespace {

TEST(Xxh3Test, PrintsTheCanonicalValues) {
  // Published with the algorithm.
  EXPECT_EQ(xxh3_128({}).hex(), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(xxh3_128(bytes_of("a")).hex(), "a96faf705af16834e6c632b61e964e1f");
  // Computed with another implementation.
  const Bytes sealed = *from_hex(
      "0000c0af6cd115c9"
      "0000c081e03d1304"
      "0c00000000000000"
      "46333200"
      "0100000000000000"
      "0300000000000000");
  EXPECT_EQ(xxh3_128(sealed).hex(), "94106359264b9ad0674d59ded7a2bd3a");
}

TEST(Xxh3Test, PartsGiveTheDigestOfTheWhole) {
  Bytes bytes(10'000);
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(i * i % 251);
  for (const size_t cut :
       std::vector<size_t>{0, 1, 16, 240, 241, 1024, 9'999, 10'000}) {
    Xxh3Stream stream;
    stream.append(ByteView(bytes).first(cut));
    EXPECT_EQ(stream.digest(), xxh3_128(ByteView(bytes).first(cut)));
    Xxh3Stream moved = std::move(stream);
    moved.append(ByteView(bytes).subspan(cut));
    EXPECT_EQ(moved.digest(), xxh3_128(bytes));
  }
}

TEST(Xxh3Test, DigestsReadBackFromHexAndCompare) {
  const Digest128 digest{0x0123456789abcdef, 0xfedcba9876543210};
  EXPECT_EQ(digest.hex(), "0123456789abcdeffedcba9876543210");
  EXPECT_EQ(*Digest128::from_hex(digest.hex()), digest);
  EXPECT_NE(*Digest128::from_hex("00000000000000000000000000000001"), Digest128());
  EXPECT_ERROR(Digest128::from_hex("0123"), ErrorCode::kInvalid);
  EXPECT_ERROR(Digest128::from_hex(std::string(32, 'g')), ErrorCode::kInvalid);
}

TEST(Xxh3Test, AFlippedBitOfTheHexNeverGivesTheSameDigest) {
  const Digest128 digest{0x0123456789abcdef, 0xfedcba9876543210};
  for (size_t bit = 0; bit < 8 * 32; ++bit) {
    std::string hex = digest.hex();
    hex[bit / 8] = static_cast<char>(hex[bit / 8] ^ (1 << (bit % 8)));
    const auto read = Digest128::from_hex(hex);
    EXPECT_TRUE(!read.ok() || *read != digest) << hex;
  }
}

}  // namespace
}  // namespace holdfast
