#include "holdfast/base/bytes.h"

#include <gtest/gtest.h>

#include <array>

#include "holdfast/base/testing.h"

namespace holdfast {
namespace {

TEST(BytesTest, NumbersLieLittleEndianInMemory) {
  std::array<std::byte, 8> memory{};
  store_little_endian<uint64_t>(0x0102030405060708, memory);
  EXPECT_EQ(to_hex(memory), "0807060504030201");
  EXPECT_EQ(load_little_endian<uint64_t>(memory), 0x0102030405060708u);
  EXPECT_EQ(load_little_endian<uint16_t>(memory), 0x0708);
  EXPECT_EQ(load_little_endian<uint8_t>(memory), 8);
  store_little_endian<uint32_t>(0xfffefdfc, ByteSpan(memory).subspan(4));
  EXPECT_EQ(to_hex(memory), "08070605fcfdfeff");
}

TEST(BytesDeathTest, ANumberWantsItsBytes) {
  std::array<std::byte, 3> memory{};
  EXPECT_DEATH((void)load_little_endian<uint32_t>(memory), "3 bytes; expected 4");
}

TEST(BytesTest, HexReadsBackWhatItWrote) {
  EXPECT_EQ(to_hex(bytes_of("\x01\xfe ~")), "01fe207e");
  EXPECT_EQ(text_of(*from_hex("01fe207e")), "\x01\xfe ~");
  EXPECT_TRUE(from_hex("")->empty());
}

TEST(BytesTest, HexRefusesOddCountsAndOtherCharacters) {
  EXPECT_ERROR(from_hex("abc"), ErrorCode::kInvalid);
  for (const char* bad : {"0g", "g0", " 0", "0\xff", "-1", "0x", "0A", "F0"}) {
    EXPECT_ERROR(from_hex(bad), ErrorCode::kInvalid);
  }
}

TEST(BytesTest, AlignedBytesAreZerosInWholeBlocks) {
  for (const size_t size : std::vector<size_t>{1, 4095, 4096, 4097, 100'000}) {
    AlignedBytes bytes(size);
    EXPECT_EQ(bytes.span().size(), size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes.span().data()) % kDirectAlignment, 0u);
    for (const std::byte byte : bytes.span()) ASSERT_EQ(byte, std::byte{0});
    // The memory ends with a whole block, and the address sanitizer must see the rest of
    // that block as ours.
    bytes.span().data()[(size + 4095) / 4096 * 4096 - 1] = std::byte{1};
  }
  EXPECT_TRUE(AlignedBytes(0).span().empty());
}

TEST(BytesTest, MovedAlignedBytesAreEmpty) {
  AlignedBytes from(10);
  from.span()[9] = std::byte{7};
  AlignedBytes into = std::move(from);
  EXPECT_EQ(into.span()[9], std::byte{7});
  EXPECT_EQ(from.size(), 0u);
  from = std::move(into);
  EXPECT_EQ(from.size(), 10u);
  EXPECT_TRUE(into.span().empty());
}

}  // namespace
}  // namespace holdfast
