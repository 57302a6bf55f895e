#include "holdfast/base/deflate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "holdfast/base/guard_page_testing.h"
#include "holdfast/base/testing.h"

namespace holdfast::deflate_test {
namespace {

// Bytes that deflate can compress, and some that it cannot.
Bytes mixed_bytes(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(count);
  for (size_t i = 0; i < count; ++i) {
    const bool noise = (i / 1000) % 2 == 0;
    bytes[i] = static_cast<std::byte>(noise ? random() & 0xff : i & 3);
  }
  return bytes;
}

TEST(DeflateTest, WhatIsEncodedIsDecoded) {
  for (const DeflateWrapper wrapper : {DeflateWrapper::kNone, DeflateWrapper::kZlib}) {
    for (const size_t count : {0u, 1u, 2u, 1000u, 65536u, 300000u}) {
      const Bytes bytes = mixed_bytes(count, count);
      const Bytes packed = deflate(bytes, wrapper);
      const auto again = inflate(packed, std::ssize(bytes), wrapper);
      ASSERT_OK(again);
      EXPECT_TRUE(*again == bytes) << count;
    }
  }
}

void expect_nothing_behind_is_touched(const Bytes& bytes, DeflateWrapper wrapper) {
  AtTheEndOfAPage plain(bytes);
  const Bytes packed = deflate(plain.bytes(), wrapper);
  AtTheEndOfAPage input(packed), output(bytes.size());
  Inflater inflater(wrapper);
  ASSERT_OK(inflater.decode(input.bytes(), output.bytes()));
  EXPECT_TRUE(std::ranges::equal(output.bytes(), bytes)) << bytes.size();
}

TEST(DeflateTest, NothingBehindTheBytesIsTouched) {
  for (size_t count = 0; count < 5000; count = count < 300 ? count + 1 : count + 97) {
    for (const DeflateWrapper wrapper : {DeflateWrapper::kNone, DeflateWrapper::kZlib}) {
      expect_nothing_behind_is_touched(mixed_bytes(count, count), wrapper);
      expect_nothing_behind_is_touched(Bytes(count), wrapper);
    }
  }
}

TEST(DeflateTest, PartsOfAnySizeDecodeToTheSame) {
  const Bytes bytes = mixed_bytes(200000, 1),
              packed = deflate(bytes, DeflateWrapper::kNone);
  std::mt19937_64 random(2);
  for (int round = 0; round < 20; ++round) {
    Inflater inflater(DeflateWrapper::kNone);
    Bytes seen;
    ByteView rest = packed;
    while (!inflater.finished()) {
      Bytes room(1 + random() % 5000);
      const auto done = inflater.decode(
          rest.first(std::min<size_t>(rest.size(), random() % 3000)), room);
      ASSERT_OK(done);
      seen.insert(seen.end(), room.begin(),
                  room.begin() + static_cast<std::ptrdiff_t>(done->made));
      rest = rest.subspan(done->used);
    }
    ASSERT_TRUE(seen == bytes);
  }
}

TEST(DeflateTest, AnotherSizeACutAndAFlippedBitAreSeen) {
  const Bytes bytes = mixed_bytes(3000, 1);
  const Bytes packed = deflate(bytes, DeflateWrapper::kZlib);
  const auto size = std::ssize(bytes);
  for (const int64_t other : {size - 1, size + 1, int64_t{0}, int64_t{1} << 60}) {
    EXPECT_ERROR(inflate(packed, other, DeflateWrapper::kZlib), ErrorCode::kCorrupt);
  }
  for (size_t cut = 0; cut < packed.size(); ++cut) {
    EXPECT_ERROR(inflate(ByteView(packed).first(cut), size, DeflateWrapper::kZlib),
                 ErrorCode::kCorrupt);
  }
  for (size_t i = 2; i < packed.size(); i += 7) {
    Bytes bad = packed;
    bad[i] ^= std::byte{4};
    const auto read = inflate(bad, size, DeflateWrapper::kZlib);
    EXPECT_TRUE(!read.ok() || *read == bytes) << i;
  }
}

TEST(DeflateTest, ABombTakesNoMemory) {
  const Bytes packed = deflate(Bytes(50'000'000), DeflateWrapper::kNone);
  EXPECT_LT(packed.size(), 500'000u);
  EXPECT_ERROR(inflate(packed, 1000, DeflateWrapper::kNone), ErrorCode::kCorrupt);
  EXPECT_ERROR(inflate(packed, int64_t{1} << 40, DeflateWrapper::kNone),
               ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace holdfast::deflate_test
