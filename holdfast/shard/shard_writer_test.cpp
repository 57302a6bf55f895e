#include "holdfast/shard/shard_writer.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <numeric>
#include <thread>

#include "holdfast/base/crc32c.h"
#include "holdfast/base/testing.h"
#include "holdfast/env/faulty_env.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/shard/chunk_reader.h"

namespace holdfast::shard_writer_test {
namespace {

constexpr int64_t kBlock = 16 << 10;

// A shard of u8 tensors of these sizes behind a 4096-byte header. It owns the memory.
class Made {
 public:
  explicit Made(std::vector<int64_t> sizes) {
    shard.header = Bytes(4096, std::byte{' '});
    shard.header.edit()[0] = std::byte{7};
    int64_t offset = 4096;
    for (const int64_t size : sizes) {
      Bytes& bytes = memory_.emplace_back(static_cast<size_t>(size));
      for (std::byte& byte : bytes) {
        state_ = state_ * 6364136223846793005u + 1442695040888963407u;
        byte = static_cast<std::byte>(state_ >> 56);
      }
      shard.pieces.edit().push_back(whole_piece("w", ByteSpan(bytes), {size}));
      shard.offsets.edit().push_back(offset);
      offset += size;
    }
  }

  Bytes file() const {
    Bytes all(shard.header.begin(), shard.header.end());
    for (const Bytes& bytes : memory_)
      all.insert(all.end(), bytes.begin(), bytes.end());
    return all;
  }

  ShardToWrite shard;

 private:
  uint64_t state_ = 1;
  std::deque<Bytes> memory_;
};

StagingRing ring_of(int64_t bytes) {
  return StagingRing({.bytes = bytes, .block = kBlock});
}

Result<WrittenShard> write_on_two_threads(Env& env, StagingRing& ring, const Made& made,
                                          Result<void>& staged) {
  ShardWriter writer(ring, made.shard);
  std::jthread stager([&] { staged = writer.stage(); });
  Result<WrittenShard> written = writer.write(env, "shard");
  stager.join();
  return written;
}

void expect_all_blocks_back(StagingRing& ring) {
  std::vector<ByteSpan> blocks;
  for (int64_t i = 0; i < ring.blocks(); ++i) blocks.push_back(ring.take_block());
  for (const ByteSpan block : blocks) ring.give_back(block);
}

ShardFile file_of(const WrittenShard& written) {
  return {.name = "shard", .bytes = written.bytes, .chunks = written.chunks};
}

TEST(ShardWriter, WritesHeaderAndPiecesInOrderThroughASmallRing) {
  for (const int64_t size : {0, 1, 4095, 4096, 12288, 100'000, 1'000'000}) {
    MemoryEnv env(1);
    StagingRing ring = ring_of(2 * kBlock);
    const Made made({size, 3, 5000, size});
    Result<void> staged;
    ASSERT_OK(write_on_two_threads(env, ring, made, staged));
    EXPECT_OK(staged);
    EXPECT_EQ(env.read_file("shard").value(), made.file()) << size;
    expect_all_blocks_back(ring);
  }
}

TEST(ShardWriter, ChunksTileTheFileAndRestartAtLargePieces) {
  const Made made({10, 20, kChunkBytes, kChunkBytes + 5, 7, kChunkBytes - 7, 1, 0, 2});
  std::vector<int64_t> sizes;
  int64_t end = 0;
  for (const Chunk& chunk : cut_chunks(made.shard)) {
    EXPECT_EQ(chunk.offset, end);
    end += chunk.bytes;
    sizes.push_back(chunk.bytes);
  }
  EXPECT_EQ(end, made.shard.bytes());
  EXPECT_EQ(sizes, (std::vector<int64_t>{4096, 30, kChunkBytes, kChunkBytes, 5,
                                         kChunkBytes, 3}));
}

TEST(ShardWriter, DigestsAreThoseOfTheBytesThatAreOnDisk) {
  MemoryEnv env(1);
  StagingRing ring = ring_of(4 * kBlock);
  const Made made({kChunkBytes + 4321, 17, 40'000});
  Result<void> staged;
  const WrittenShard written = *write_on_two_threads(env, ring, made, staged);
  const Bytes file = env.read_file("shard").value();
  for (const Chunk& chunk : written.chunks) {
    EXPECT_EQ(chunk.crc,
              crc32c(ByteView(file).subspan(static_cast<size_t>(chunk.offset),
                                            static_cast<size_t>(chunk.bytes))));
  }
  for (size_t i = 0; i < made.shard.pieces.size(); ++i) {
    EXPECT_EQ(written.seals[i], seal_bytes(made.shard.pieces[i].memory, 0));
  }
}

TEST(ShardWriter, ARingThatHoldsTheShardNeedsNoSecondThread) {
  MemoryEnv env(1);
  StagingRing ring = ring_of(1 << 20);
  const Made made({500'000});
  ShardWriter writer(ring, made.shard);
  ASSERT_OK(writer.stage());
  ASSERT_OK(writer.write(env, "shard"));
  EXPECT_EQ(env.read_file("shard").value(), made.file());
}

TEST(ShardWriter, EveryFailingCallEndsBothHalvesAndReturnsTheBlocks) {
  const Made made({200'000, 3});
  int64_t calls = 0;
  {
    MemoryEnv disk(1);
    FaultyEnv env(disk);
    StagingRing ring = ring_of(2 * kBlock);
    Result<void> staged;
    ASSERT_OK(write_on_two_threads(env, ring, made, staged));
    calls = env.calls();
  }
  ASSERT_GT(calls, 10);
  for (const ErrorCode code : {ErrorCode::kNoSpace, ErrorCode::kIo}) {
    for (int64_t k = 1; k <= calls; ++k) {
      MemoryEnv disk(1);
      FaultyEnv env(disk);
      env.fail_at(Op::kAny, k, code);
      StagingRing ring = ring_of(2 * kBlock);
      Result<void> staged;
      EXPECT_ERROR(write_on_two_threads(env, ring, made, staged), code);
      expect_all_blocks_back(ring);
    }
  }
}

TEST(ShardWriter, CancelledBeforeItBeganItStagesAndWritesNothing) {
  MemoryEnv env(1);
  StagingRing ring = ring_of(2 * kBlock);
  const Made made({200'000});
  ShardWriter writer(ring, made.shard);
  writer.cancel(unavailable("rank 3 is gone"));
  EXPECT_ERROR(writer.stage(), ErrorCode::kUnavailable);
  EXPECT_ERROR(writer.write(env, "shard"), ErrorCode::kUnavailable);
  expect_all_blocks_back(ring);
}

TEST(ShardWriter, RealFilesHoldTheSameBytes) {
  const TempFolder folder;
  const auto env = make_posix_env();
  StagingRing ring = ring_of(4 * kBlock);
  const Made made({3'000'001, 5, 4096});
  ShardWriter writer(ring, made.shard);
  std::jthread stager([&] { EXPECT_OK(writer.stage()); });
  ASSERT_OK(writer.write(*env, folder.path() / "shard"));
  EXPECT_EQ(env->read_file(folder.path() / "shard").value(), made.file());
}

class ChunkReader : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    StagingRing ring = ring_of(4 * kBlock);
    Result<void> staged;
    file = file_of(*write_on_two_threads(env, ring, made, staged));
    bytes = env.read_file("shard").value();
    wanted.resize(file.chunks.size());
    std::iota(wanted.begin(), wanted.end(), size_t{0});
  }

  Result<void> read(std::span<const size_t> chunks, const VisitChunk& visit) {
    return read_chunks(env, "shard", file, chunks, visit,
                       {.threads = GetParam(), .in_flight = 2, .block = 3 << 20});
  }

  Result<void> check_all() {
    return read(wanted, [&](const FoundChunk& found) {
      return check_chunk("shard", file, found);
    });
  }

  MemoryEnv env{1};
  const Made made{{5 * kChunkBytes + 77, 1000, 2000, kChunkBytes, 9}};
  ShardFile file;
  Bytes bytes;
  std::vector<size_t> wanted;
};

TEST_P(ChunkReader, GivesEveryWantedChunkOnceAndIntact) {
  std::vector<int> seen(file.chunks.size());
  ASSERT_OK(read(wanted, [&](const FoundChunk& found) -> Result<void> {
    ++seen[found.number];
    const Chunk& chunk = file.chunks[found.number];
    EXPECT_EQ(copy_of(found.bytes),
              copy_of(ByteView(bytes).subspan(static_cast<size_t>(chunk.offset),
                                              static_cast<size_t>(chunk.bytes))));
    return check_chunk("shard", file, found);
  }));
  EXPECT_EQ(seen, std::vector<int>(file.chunks.size(), 1));
}

TEST_P(ChunkReader, ReadsOnlyWhatIsWanted) {
  FaultyEnv counting(env);
  const std::vector<size_t> few{2, 5};
  int64_t got = 0;
  ASSERT_OK(read_chunks(counting, "shard", file, few,
                        [&](const FoundChunk& found) -> Result<void> {
                          got += static_cast<int64_t>(found.bytes.size());
                          return check_chunk("shard", file, found);
                        },
                        {.threads = 1, .in_flight = 2}));
  EXPECT_EQ(got, 2 * kChunkBytes);
}

TEST_P(ChunkReader, EveryFlippedByteIsFoundInItsChunk) {
  for (size_t at = 0; at < bytes.size(); at += bytes.size() / 50) {
    Bytes damaged = bytes;
    damaged[at] ^= std::byte{0x10};
    ASSERT_OK(env.replace_file("shard", damaged));
    EXPECT_ERROR(check_all(), ErrorCode::kCorrupt);
  }
}

TEST_P(ChunkReader, EveryTruncationIsFound) {
  for (size_t size = 0; size < bytes.size(); size += bytes.size() / 50) {
    ASSERT_OK(env.replace_file("shard", ByteView(bytes).first(size)));
    EXPECT_ERROR(check_all(), ErrorCode::kCorrupt);
  }
}

TEST_P(ChunkReader, AFailingVisitEndsTheReading) {
  EXPECT_ERROR(
      read(wanted,
           [](const FoundChunk&) -> Result<void> { return unavailable("enough"); }),
      ErrorCode::kUnavailable);
}

TEST_P(ChunkReader, FindsTheChunksOfARange) {
  const auto numbers = [&](int64_t first, int64_t last) {
    const ChunkRange range = chunks_of(file, first, last);
    return std::pair(range.first, range.last);
  };
  EXPECT_EQ(numbers(0, 1), (std::pair<size_t, size_t>{0, 1}));
  EXPECT_EQ(numbers(4095, 4097), (std::pair<size_t, size_t>{0, 2}));
  EXPECT_EQ(numbers(4096 + kChunkBytes, 4096 + 2 * kChunkBytes),
            (std::pair<size_t, size_t>{2, 3}));
  EXPECT_EQ(numbers(file.bytes - 1, file.bytes),
            (std::pair<size_t, size_t>{file.chunks.size() - 1, file.chunks.size()}));
  EXPECT_EQ(numbers(5, 5), (std::pair<size_t, size_t>{0, 0}));
}

INSTANTIATE_TEST_SUITE_P(Threads, ChunkReader, ::testing::Values(1, 3));

TEST(StagingRing, InARushWhoEmptiesItHoldsOffUntilTheEnd) {
  StagingRing ring = ring_of(2 * kBlock);
  std::vector<std::string> order;
  ring.begin_rush();
  std::jthread writer([&] {
    ring.hold_off();
    order.emplace_back("written");
  });
  order.emplace_back("captured");
  ring.end_rush();
  writer.join();
  EXPECT_EQ(order, (std::vector<std::string>{"captured", "written"}));
  ring.hold_off();  // does not wait
}

TEST(StagingRing, WithoutAFreeBlockNobodyHoldsOffInARush) {
  StagingRing ring = ring_of(2 * kBlock);
  const ByteSpan first = ring.take_block(), second = ring.take_block();
  ring.begin_rush();
  ring.hold_off();
  std::jthread filler([&] { ring.give_back(ring.take_block()); });
  ring.give_back(first);
  filler.join();
  ring.give_back(second);
  ring.end_rush();
}

TEST(ShardWriter, AShardLargerThanTheRingIsWrittenInARush) {
  MemoryEnv env(1);
  const Made made({5 * kBlock, 7, 3 * kBlock});
  StagingRing ring = ring_of(2 * kBlock);
  ring.begin_rush();
  ShardWriter writer(ring, made.shard);
  std::jthread stager([&] { EXPECT_OK(writer.stage()); });
  EXPECT_OK(writer.write(env, "shard", {.direct = false}));
  stager.join();
  ring.end_rush();
  EXPECT_EQ(env.read_file("shard").value(), made.file());
}

TEST(ShardWriter, ASealAtTheSourceShowsABitThatFlipsInTheRing) {
  StagingRing ring = ring_of(32 * kBlock);
  const Made made({100'000, 3, 70'000});
  Result<WrittenShard> whole = invalid("not written");
  Result<WrittenShard> flipped = invalid("not written");
  for (Result<WrittenShard>* const written : {&whole, &flipped}) {
    ShardWriter writer(ring, made.shard, SealAt::kSource);
    ASSERT_OK(writer.stage([&](int64_t offset, ByteView block) {
      if (written == &whole || offset != kBlock) return;
      // The block belongs to the ring, whose memory may be written to.
      const_cast<std::byte&>(block[5]) ^= std::byte{64};
    }));
    MemoryEnv env(1);
    *written = writer.write(env, "shard");
    ASSERT_OK(*written);
  }
  MemoryEnv env(1);
  ShardWriter staged(ring, made.shard);
  ASSERT_OK(staged.stage());
  const Result<WrittenShard> usual = staged.write(env, "shard");
  ASSERT_OK(usual);
  EXPECT_EQ(whole->seals, usual->seals);
  EXPECT_EQ(whole->chunks, usual->chunks);
  EXPECT_EQ(flipped->seals, usual->seals);
  EXPECT_NE(flipped->chunks, usual->chunks);
}

}  // namespace
}  // namespace holdfast::shard_writer_test
