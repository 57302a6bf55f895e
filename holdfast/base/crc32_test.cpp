#include "holdfast/base/crc32.h"

#include <gtest/gtest.h>

#include <random>

#include "holdfast/base/guard_page_testing.h"

namespace holdfast::crc32_test {
namespace {

Crc32 bit_by_bit(Crc32 of_a, ByteView b) {
  uint32_t reg = ~of_a;
  for (const std::byte byte : b) {
    reg ^= std::to_integer<uint32_t>(byte);
    for (int i = 0; i < 8; ++i) reg = (reg >> 1) ^ ((reg & 1) != 0 ? 0xedb88320 : 0);
  }
  return ~reg;
}

Bytes random_bytes(size_t count) {
  std::mt19937_64 random(count);
  Bytes bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() & 0xff);
  return bytes;
}

TEST(Crc32Test, GivesThePublishedValues) {
  EXPECT_EQ(crc32({}), 0u);
  EXPECT_EQ(crc32(bytes_of("a")), 0xe8b7be43u);
  EXPECT_EQ(crc32(bytes_of("abc")), 0x352441c2u);
  EXPECT_EQ(crc32(bytes_of("123456789")), 0xcbf43926u);
  EXPECT_EQ(crc32(bytes_of("The quick brown fox jumps over the lazy dog")),
            0x414fa339u);
}

TEST(Crc32Test, AgreesWithTheDefinitionForAllLengthsAndAlignments) {
  const Bytes bytes = random_bytes(2000);
  for (size_t start = 0; start < 17; ++start) {
    for (size_t count = 0; start + count <= bytes.size(); count += 1 + count / 8) {
      const ByteView part = ByteView(bytes).subspan(start, count);
      ASSERT_EQ(crc32(part), bit_by_bit(0, part)) << start << " " << count;
      ASSERT_EQ(crc32_extend(0xdeadbeef, part), bit_by_bit(0xdeadbeef, part));
    }
  }
}

TEST(Crc32Test, NothingBehindTheBytesIsRead) {
  for (size_t count = 0; count < 3000; count += 1 + count / 16) {
    AtTheEndOfAPage bytes(random_bytes(count));
    EXPECT_EQ(crc32(bytes.bytes()), crc32(random_bytes(count))) << count;
  }
}

TEST(Crc32Test, PartsExtendToTheWhole) {
  const Bytes bytes = random_bytes(3000);
  for (size_t cut = 0; cut <= bytes.size(); cut += 37) {
    const ByteView a = ByteView(bytes).first(cut), b = ByteView(bytes).subspan(cut);
    ASSERT_EQ(crc32_extend(crc32(a), b), crc32(bytes));
  }
}

TEST(Crc32Test, AMaskChangesTheCrcAsComputedAnew) {
  Bytes bytes = random_bytes(100000);
  std::mt19937_64 random(1);
  for (int i = 0; i < 2000; ++i) {
    const Bytes mask = random_bytes(random() % 17);
    const size_t at = random() % (bytes.size() - mask.size() + 1);
    const Crc32 old = crc32(bytes);
    for (size_t k = 0; k < mask.size(); ++k) bytes[at + k] ^= mask[k];
    const Crc32 change = crc32_change(mask, bytes.size() - at - mask.size());
    ASSERT_EQ(old ^ change, crc32(bytes)) << at << " " << mask.size();
  }
}

TEST(Crc32Test, AFlippedBitIsFoundByTheChangeOfTheDigest) {
  const size_t size = 3000;
  for (uint64_t bit = 0; bit < 8 * size; ++bit) {
    const std::byte mask{static_cast<unsigned char>(1 << (bit % 8))};
    const auto change = crc32_change(ByteView(&mask, 1), size - 1 - bit / 8);
    ASSERT_EQ(crc32_find_flips(change, size), std::vector{bit});
    if (bit > 100 && bit < 8 * size - 100) bit += 37;
  }
  EXPECT_EQ(crc32_find_flips(0x12345678, size), std::vector<uint64_t>());
  const uint64_t large = uint64_t{500} << 20;
  for (const uint64_t bit : {uint64_t{0}, 4 * large + 5, 8 * large - 1}) {
    const std::byte mask{static_cast<unsigned char>(1 << (bit % 8))};
    const auto change = crc32_change(ByteView(&mask, 1), large - 1 - bit / 8);
    EXPECT_EQ(crc32_find_flips(change, large), std::vector{bit});
  }
}

}  // namespace
}  // namespace holdfast::crc32_test
