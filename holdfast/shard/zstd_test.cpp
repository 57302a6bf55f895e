#include "holdfast/shard/zstd.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "holdfast/base/testing.h"

namespace holdfast {
namespace {

// Floats near one: their exponents repeat, and stand between mantissas that do not.
Bytes weights(size_t count) {
  Bytes bytes(count * 4);
  uint32_t state = 1;
  for (size_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    store_little_endian<uint32_t>(0x3f800000u | (state >> 9),
                                  ByteSpan(bytes).subspan(4 * i));
  }
  return bytes;
}

bool can_pack() { return compress(weights(4), 4, 1).ok(); }

RC_GTEST_PROP(Pack, WhatIsPackedComesBack,
              (std::string text, uint8_t width, uint8_t level)) {
  if (!can_pack()) return;
  const Bytes chunk = copy_of(bytes_of(text));
  const Result<Compressed> packed = compress(chunk, 1 + width % 16, 1 + level % 5);
  RC_ASSERT(packed.ok());
  RC_ASSERT(packed->bytes.size() <= chunk.size());
  Bytes back(chunk.size());
  RC_ASSERT(decompress(packed->bytes, packed->width, back).ok());
  RC_ASSERT(back == chunk);
}

TEST(Pack, PlanesMakeWeightsSmaller) {
  if (!can_pack()) GTEST_SKIP() << "built without libzstd";
  const Bytes bytes = weights(100'000);
  const size_t as_it_is = compress(bytes, 1, 3)->bytes.size();
  EXPECT_LT(compress(bytes, 4, 3)->bytes.size(), as_it_is * 9 / 10);
}

TEST(Pack, DamageIsSeenOrHarmless) {
  if (!can_pack()) GTEST_SKIP() << "built without libzstd";
  const Compressed packed = compress(weights(1000), 4, 3).value();
  for (size_t at = 0; at < packed.bytes.size(); at += 7) {
    Bytes damaged = packed.bytes;
    damaged[at] ^= std::byte{0x11};
    Bytes back(4000);
    static_cast<void>(
        decompress(damaged, packed.width, back));  // only a digest finds such damage
  }
  Bytes shorter(3999), longer(4001);
  EXPECT_ERROR(decompress(packed.bytes, packed.width, shorter), ErrorCode::kCorrupt);
  EXPECT_ERROR(decompress(packed.bytes, packed.width, longer), ErrorCode::kCorrupt);
  EXPECT_ERROR(decompress(packed.bytes, 0, shorter), ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace holdfast
