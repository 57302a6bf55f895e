#include "holdfast/shard/parity.h"

#include <gtest/gtest.h>

#include "holdfast/base/crc32c.h"
#include "holdfast/base/testing.h"
#include "holdfast/env/memory_sink_testing.h"
#include "holdfast/state/layout_testing.h"

namespace holdfast::tests::parity_test {
namespace {

Bytes random_bytes(Dice& dice, int64_t count) {
  Bytes bytes(static_cast<size_t>(count));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(dice.below(256));
  return bytes;
}

// Adds the bytes in parts of any size.
Bytes encode(Dice& dice, const ParityShape& shape, ByteView bytes) {
  MemorySink sink;
  ParityEncoder encoder(shape, sink);
  while (!bytes.empty()) {
    const auto count = std::min(bytes.size(), static_cast<size_t>(1 + dice.below(70'000)));
    EXPECT_OK(encoder.add(bytes.first(count)));
    bytes = bytes.subspan(count);
  }
  EXPECT_OK(encoder.finish());
  EXPECT_EQ(encoder.crc(), crc32c(sink.bytes()));
  EXPECT_EQ(std::ssize(sink.bytes()), shape.parity_bytes());
  return sink.bytes();
}

Result<Bytes> recover(const Bytes& parity, const Bytes& file, int64_t bytes) {
  const ParityReader reader = HOLDFAST_TRY(
      ParityReader::open(std::make_shared<MemorySource>("a.parity", parity)));
  return reader.recover(MemorySource("a", file), 0, bytes);
}

TEST(ParityTest, TheShareIsKept) {
  for (const double share : {0.005, 0.01, 0.02, 0.1, 0.5}) {
    for (const int64_t bytes : {int64_t{4} << 20, int64_t{1} << 30, int64_t{40} << 30}) {
      const auto shape = parity_shape(share, bytes);
      ASSERT_OK(shape);
      const double most = bytes < 100 << 20 ? 1.2 * share : share;
      EXPECT_LE(static_cast<double>(shape->parity_bytes()),
                most * static_cast<double>(bytes))
          << share << " of " << bytes;
      EXPECT_LE(shape->region * shape->block, (int64_t{1} << 30) + shape->block);
    }
  }
  EXPECT_EQ(parity_shape(0.01, int64_t{1} << 30)->parity, 2);
  for (const double share : {0.0, 0.004, 0.6, -1.0, std::nan("")}) {
    EXPECT_ERROR(parity_shape(share, 1000), ErrorCode::kInvalid);
  }
}

// The header is right by its CRC, and its numbers are not.
TEST(ParityTest, AnImpossibleShapeIsRefused) {
  Dice dice(5);
  const Bytes good = encode(dice, parity_shape(0.02, 5000).value(), random_bytes(dice, 5000));
  const auto open_with = [&](uint32_t k, uint32_t m, uint32_t block, uint64_t region,
                             uint64_t bytes) {
    Bytes parity = good;
    const ByteSpan all(parity);
    store_little_endian(k, all.subspan(12));
    store_little_endian(m, all.subspan(16));
    store_little_endian(block, all.subspan(20));
    store_little_endian(region, all.subspan(24));
    store_little_endian(bytes, all.subspan(32));
    store_little_endian(crc32c(all.first(60)), all.subspan(60));
    return ParityReader::open(std::make_shared<MemorySource>("a.parity", parity));
  };
  // The size of this parity file is more than 2^63 bytes.
  const auto huge = open_with(1, 254, 1024, 1, uint64_t{1} << 60);
  EXPECT_ERROR(huge, ErrorCode::kCorrupt);
  EXPECT_NE(message_of(huge).find("impossible"), std::string::npos);
  for (const uint32_t k : {0u, 1u, 255u, 1u << 30, ~0u}) {
    for (const uint32_t m : {0u, 254u, 1u << 30, ~0u}) {
      for (const uint64_t large : {uint64_t{0}, uint64_t{1} << 20, ~uint64_t{0}}) {
        EXPECT_ERROR(open_with(k, m, 16 << 10, large, large), ErrorCode::kCorrupt);
      }
    }
  }
}

TEST(ParityTest, AStretchAnywhereIsMended) {
  Dice dice(3);
  for (const int64_t bytes : {int64_t{1}, int64_t{1023}, int64_t{1024}, int64_t{300'001},
                              int64_t{5'000'000}}) {
    const ParityShape shape = parity_shape(0.02, bytes).value();
    const Bytes file = random_bytes(dice, bytes);
    const Bytes parity = encode(dice, shape, file);
    for (int trial = 0; trial < 20; ++trial) {
      // A stretch of this many blocks has at most `parity` blocks of each group.
      const int64_t most = (shape.groups_of(0) * shape.parity - 1) * shape.block;
      const int64_t length =
          std::min(bytes, 1 + dice.below(std::max<int64_t>(1, most)));
      const int64_t begin = dice.below(bytes - length + 1);
      Bytes hurt = file;
      for (int64_t i = begin; i < begin + length; ++i) {
        hurt[static_cast<size_t>(i)] ^= std::byte{0x5a};
      }
      const auto mended = recover(parity, hurt, bytes);
      ASSERT_OK(mended);
      EXPECT_TRUE(*mended == file);
    }
    // A file that was cut short by a few bytes, and a lost parity block.
    Bytes cut = file;
    cut.resize(cut.size() - std::min<size_t>(cut.size(), 700));
    Bytes torn = parity;
    torn.back() ^= std::byte{1};
    const auto mended = recover(torn, cut, bytes);
    ASSERT_OK(mended);
    EXPECT_TRUE(*mended == file);
  }
}

// The bar of the issue: m of k + m blocks may be lost, and m + 1 are refused by name.
TEST(ParityTest, AsManyBlocksAsParityMayBeLostAndOneMoreIsRefused) {
  Dice dice(4);
  const ParityShape shape = parity_shape(0.02, 3'000'000).value();
  const Bytes file = random_bytes(dice, shape.file_bytes);
  const Bytes parity = encode(dice, shape, file);
  const int64_t groups = shape.groups_of(0), group = groups / 2;
  Bytes hurt = file;
  for (int64_t i = 0; i < shape.parity; ++i) {
    hurt[static_cast<size_t>((group + 3 * i * groups) * shape.block + 5)] ^= std::byte{1};
  }
  auto mended = recover(parity, hurt, shape.file_bytes);
  ASSERT_OK(mended);
  EXPECT_TRUE(*mended == file);
  hurt[static_cast<size_t>((group + groups) * shape.block)] ^= std::byte{1};
  mended = recover(parity, hurt, shape.file_bytes);
  EXPECT_ERROR(mended, ErrorCode::kCorrupt);
  EXPECT_NE(message_of(mended).find(fmt::format("{} blocks of {} bytes are lost in group "
                                                "{} of region 0",
                                                shape.parity + 1, shape.block, group)),
            std::string::npos)
      << message_of(mended);
}

TEST(ParityTest, SeveralRegionsAreMendedEachByItsOwnParity) {
  Dice dice(5);
  ParityShape shape = parity_shape(0.02, 1'000'003).value();
  shape.region = 200;  // as in a file of many GiB
  const Bytes file = random_bytes(dice, shape.file_bytes);
  const Bytes parity = encode(dice, shape, file);
  ASSERT_GT(shape.regions(), 2);
  Bytes hurt = file;
  for (int64_t r = 0; r < shape.regions(); ++r) {
    hurt[static_cast<size_t>(r * shape.region * shape.block)] ^= std::byte{8};
  }
  const auto mended = recover(parity, hurt, shape.file_bytes);
  ASSERT_OK(mended);
  EXPECT_TRUE(*mended == file);
}

// Whatever happens to a parity file, it is refused or the bytes are right.
TEST(ParityTest, ADamagedParityFileIsNeverBelieved) {
  Dice dice(6);
  const ParityShape shape = parity_shape(0.1, 100'000).value();
  const Bytes file = random_bytes(dice, shape.file_bytes);
  const Bytes parity = encode(dice, shape, file);
  Bytes hurt = file;
  hurt[50'000] ^= std::byte{1};
  for (int trial = 0; trial < 300; ++trial) {
    Bytes damaged = parity;
    const int64_t at = dice.below(trial < 100 ? 64 : std::ssize(damaged));
    damaged[static_cast<size_t>(at)] ^= static_cast<std::byte>(1 << dice.below(8));
    if (trial % 7 == 0) {
      damaged.resize(static_cast<size_t>(dice.below(std::ssize(damaged))));
    }
    const auto mended = recover(damaged, hurt, shape.file_bytes);
    if (mended.ok()) {
      EXPECT_TRUE(*mended == file) << trial;
    }
  }
}

}  // namespace
}  // namespace holdfast::tests::parity_test
