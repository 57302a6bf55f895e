#include "holdfast/base/crc32c.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <random>

#include "holdfast/base/guard_page_testing.h"

namespace holdfast::crc32c_test {
namespace {

Bytes random_bytes(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() & 0xff);
  return bytes;
}

// The same as crc32c_extend, bit by bit.
Crc32c extend_bit_by_bit(Crc32c of_a, ByteView b) {
  uint32_t reg = ~of_a;
  for (const std::byte byte : b) {
    reg ^= std::to_integer<uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) {
      reg = (reg >> 1) ^ ((reg & 1) != 0 ? 0x82f63b78u : 0u);
    }
  }
  return ~reg;
}

TEST(Crc32cTest, GivesThePublishedValues) {
  EXPECT_EQ(crc32c({}), 0u);
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xe3069283u);
  // RFC 3720, appendix B.4.
  EXPECT_EQ(crc32c(Bytes(32, std::byte{0})), 0x8a9136aau);
  EXPECT_EQ(crc32c(Bytes(32, std::byte{0xff})), 0x62a8ab43u);
  Bytes rising(32), falling(32);
  for (size_t i = 0; i < 32; ++i) {
    rising[i] = static_cast<std::byte>(i);
    falling[i] = static_cast<std::byte>(31 - i);
  }
  EXPECT_EQ(crc32c(rising), 0x46dd794eu);
  EXPECT_EQ(crc32c(falling), 0x113fdb5cu);
}

TEST(Crc32cTest, AgreesWithTheDefinitionForAllLengthsAndAlignments) {
  const Bytes bytes = random_bytes(5000, 1);
  for (size_t start = 0; start < 17; ++start) {
    for (size_t count = 0; start + count <= bytes.size(); count += 1 + count / 16) {
      const ByteView part = ByteView(bytes).subspan(start, count);
      ASSERT_EQ(crc32c(part), extend_bit_by_bit(0, part)) << start << " " << count;
      ASSERT_EQ(crc32c_extend(0xdeadbeef, part), extend_bit_by_bit(0xdeadbeef, part));
    }
  }
}

TEST(Crc32cTest, NothingBehindTheBytesIsRead) {
  for (size_t count = 0; count < 3000; count += 1 + count / 16) {
    AtTheEndOfAPage bytes(random_bytes(count, count));
    EXPECT_EQ(crc32c(bytes.bytes()), crc32c(random_bytes(count, count))) << count;
  }
}

TEST(Crc32cTest, PartsExtendAndCombineToTheWhole) {
  const Bytes bytes = random_bytes(3000, 2);
  const Crc32c whole = crc32c(bytes);
  for (size_t cut = 0; cut <= bytes.size(); cut += 37) {
    const ByteView a = ByteView(bytes).first(cut), b = ByteView(bytes).subspan(cut);
    ASSERT_EQ(crc32c_extend(crc32c(a), b), whole);
    ASSERT_EQ(crc32c_combine(crc32c(a), crc32c(b), b.size()), whole);
  }
}

TEST(Crc32cTest, CombiningIsAssociativeForLengthsBeyondAnyMemory) {
  const Crc32c a = 0x12345678, b = 0x9abcdef0, c = 0x0f1e2d3c;
  for (const uint64_t length : {uint64_t{1} << 31, uint64_t{1} << 32,
                                (uint64_t{1} << 40) + 12345, uint64_t{1} << 62}) {
    const Crc32c left = crc32c_combine(crc32c_combine(a, b, length), c, length - 7);
    const Crc32c right =
        crc32c_combine(a, crc32c_combine(b, c, length - 7), length + (length - 7));
    EXPECT_EQ(left, right);
  }
}

// ISA-L counts bytes in an int, so one call cannot take 2^31 bytes. Anonymous memory
// that nobody has touched reads as zeros and uses no RAM.
TEST(Crc32cTest, MoreThanTwoToThe31BytesAreTakenInPieces) {
  const size_t count = (size_t{1} << 31) + 4097;
  void* memory = mmap(nullptr, count, PROT_READ,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const Crc32c seen = crc32c({static_cast<const std::byte*>(memory), count});
  munmap(memory, count);
  Crc32c block = crc32c(Bytes(4096, std::byte{0}));
  Crc32c want = crc32c(Bytes(1, std::byte{0}));
  for (size_t i = 0; i < count / 4096; ++i) want = crc32c_combine(want, block, 4096);
  EXPECT_EQ(seen, want);
}

TEST(Crc32cTest, AMaskChangesTheDigestAsComputedAnew) {
  Bytes bytes = random_bytes(100000, 1);
  std::mt19937_64 random(1);
  for (int i = 0; i < 2000; ++i) {
    const Bytes mask = random_bytes(random() % 17, random());
    const size_t at = random() % (bytes.size() - mask.size() + 1);
    const Crc32c old = crc32c(bytes);
    for (size_t k = 0; k < mask.size(); ++k) bytes[at + k] ^= mask[k];
    const Crc32c change = crc32c_change(mask, bytes.size() - at - mask.size());
    ASSERT_EQ(old ^ change, crc32c(bytes)) << at << " " << mask.size();
  }
}

TEST(Crc32cTest, AFlippedBitIsFoundByTheChangeOfTheDigest) {
  const size_t size = 3000;
  for (uint64_t bit = 0; bit < 8 * size; ++bit) {
    const std::byte mask{static_cast<unsigned char>(1 << (bit % 8))};
    const auto change = crc32c_change(ByteView(&mask, 1), size - 1 - bit / 8);
    ASSERT_EQ(crc32c_find_flips(change, size), std::vector{bit});
    if (bit > 100 && bit < 8 * size - 100) bit += 37;
  }
  EXPECT_EQ(crc32c_find_flips(0x12345678, size), std::vector<uint64_t>());
  const uint64_t large = uint64_t{250} << 20;
  for (const uint64_t bit : {uint64_t{0}, 4 * large + 5, 8 * large - 1}) {
    const std::byte mask{static_cast<unsigned char>(1 << (bit % 8))};
    const auto change = crc32c_change(ByteView(&mask, 1), large - 1 - bit / 8);
    EXPECT_EQ(crc32c_find_flips(change, large), std::vector{bit});
  }
}

}  // namespace
}  // namespace holdfast::crc32c_test
