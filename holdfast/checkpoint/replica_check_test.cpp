// Tests that saves compare replicas: every byte within eight saves, that a save of
// replicas that differ is dropped, and that no update waits for a comparison.
#include "holdfast/checkpoint/replica_check.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "holdfast/checkpoint/checkpoint_testing.h"
#include "holdfast/device/device_testing.h"

namespace holdfast::tests {
namespace {

constexpr int64_t kLarge = Replicas::kSmall + 3 * Replicas::kPart + 5;

std::vector<Tensor> tensors_of(int64_t bytes) {
  return {{.name = "a", .dtype = Dtype::kU8, .shape = {bytes}},
          {.name = "b", .dtype = Dtype::kU8, .shape = {100}}};
}

std::string digests(const LocalState& state, uint64_t turn) {
  ReplicaDigests taken(std::make_shared<const Replicas>(state), turn);
  Bytes window(Replicas::kPart);
  taken.take_at_once();
  taken.take(window);
  return taken.text();
}

bool differ(const LocalState& a, const LocalState& b, uint64_t turn) {
  return find_difference(std::vector{digests(a, turn), digests(b, turn)}).has_value();
}

std::byte& byte_of(const LocalState& state, size_t piece, int64_t at) {
  const LocalPiece& of = state.pieces[piece];
  return of.memory[static_cast<size_t>(of.map.offset + at)];
}

TEST(Replicas, EveryByteIsComparedWithin8Saves) {
  Job job(replicated(tensors_of(kLarge), 2));
  const LocalState one = job.state(0);
  const LocalState other = job.state(1);
  for (uint64_t turn = 0; turn < 8; ++turn) EXPECT_FALSE(differ(one, other, turn));
  for (int64_t at = 0; at < kLarge; at += Replicas::kPart - 1) {
    byte_of(other, 0, at) ^= std::byte{1};
    int seen = 0;
    for (uint64_t turn = 3; turn < 11; ++turn) seen += differ(one, other, turn);
    EXPECT_EQ(seen, 1) << at;
    byte_of(other, 0, at) ^= std::byte{1};
  }
}

TEST(Replicas, WhatIsSmallIsComparedInEverySave) {
  Job job(replicated(tensors_of(5000), 3));
  byte_of(job.state(2), 1, 50) ^= std::byte{1};
  for (uint64_t turn = 0; turn < 8; ++turn) {
    EXPECT_FALSE(differ(job.state(0), job.state(1), turn));
    EXPECT_TRUE(differ(job.state(0), job.state(2), turn));
  }
}

// After a tensor was torn on one rank, only that rank marks it at_once. The other ranks
// still read it in the background.
TEST(Replicas, RanksMayReadTensorsAtDifferentTimes) {
  Job job(replicated(tensors_of(kLarge), 2));
  LocalState other = job.state(1);
  for (LocalPiece& piece : other.pieces.edit())
    piece.at_once = *piece.tensor == other.collection->tensor(0);
  int seen = 0;
  for (uint64_t turn = 0; turn < 8; ++turn) {
    EXPECT_FALSE(differ(job.state(0), other, turn));
    byte_of(other, 0, 77) ^= std::byte{1};
    seen += differ(job.state(0), other, turn);
    byte_of(other, 0, 77) ^= std::byte{1};
  }
  EXPECT_EQ(seen, 1);
}

TEST(Replicas, WhatOneRankHoldsAloneIsNotRead) {
  Job job(replicated(tensors_of(5000), 1));
  EXPECT_TRUE(Replicas(job.state(0)).boxes().empty());
}

TEST(Replicas, TwoRanksThatDifferAreNamed) {
  const std::vector<std::string> texts{"0:aa 1:bb ", "", "1:bb 2:cc ", "2:cd "};
  EXPECT_EQ(find_difference(texts), std::pair(2, 3));
  EXPECT_EQ(find_difference(std::span(texts).first(3)), std::nullopt);
}

TEST(Replicas, ADigestThatWasStoppedIsNone) {
  Job job(replicated(tensors_of(5000), 2));
  ReplicaDigests digests(std::make_shared<const Replicas>(job.state(0)), 0);
  digests.stop(nullptr);
  Bytes window(Replicas::kPart);
  digests.take(window);
  EXPECT_EQ(digests.text(), "");
}

// A write on one rank between a save and settle() must not count as a difference of
// replicas. The write is a data race on purpose, which the thread sanitizer would
// report.
#if !defined(__SANITIZE_THREAD__)
TEST(Replicas, WhatIsWrittenToMeanwhileIsNotCompared) {
  MemoryEnv env{1};
  Job job(replicated(tensors_of(5000), 2));
  run_ranks(env, 2, [&](int rank, Transport& transport) {
    SaverOptions options = test_options();
    options.background = true;
    options.direct = false;
    options.guard = Guard::kSample;
    const auto saver = Saver::open(env, "run", &transport, options).value();
    const LocalState state = job.state(rank);
    for (int64_t step = 1; step < 4; ++step) {
      const SaveHandle handle =
          saver->save({.step = step, .state = &state, .compare = true}).value();
      // Each rank writes one of the two tensors into its shard, so the save may be torn
      // or not.
      if (rank == 1) byte_of(state, 1, 50) ^= std::byte{1};
      saver->settle(rank == 1 ? std::vector<std::string>{"b"}
                              : std::vector<std::string>());
      if (rank == 1) byte_of(state, 1, 50) ^= std::byte{1};
      static_cast<void>(handle.durable());
      EXPECT_FALSE(saver->replicas_differ());
    }
    static_cast<void>(saver->close());
  });
}
#endif

TEST(Replicas, MemoryOfADeviceHasTheDigestOfItsBytes) {
  FakeCuda cuda;
  const auto device = Device::open(cuda, 0).value();
  Job job(replicated({{.name = "a", .dtype = Dtype::kU8, .shape = {kLarge}}}, 2));
  const LocalState one = job.state(0);
  LocalState other = job.state(1);
  const ByteSpan tensor = cuda.new_tensor(kLarge);
  LocalPiece& piece = other.pieces.edit()[0];
  piece.memory = tensor;
  piece.map = Map::dense(piece.box, 1);
  piece.device = device.get();
  std::ranges::copy(one.pieces[0].memory.first(kLarge), tensor.begin());
  for (uint64_t turn = 0; turn < 8; ++turn) EXPECT_FALSE(differ(one, other, turn));
  tensor[Replicas::kPart + 9] ^= std::byte{1};
  int seen = 0;
  for (uint64_t turn = 0; turn < 8; ++turn) seen += differ(one, other, turn);
  EXPECT_EQ(seen, 1);
}

// Two ranks save the same tensors a few times. After the first save the tensors of rank
// 1 change.
TEST(Replicas, ASaveOfOnesThatDifferIsDroppedAndThoseBehindItToo) {
  for (const Guard guard : {Guard::kOff, Guard::kSample}) {
    MemoryEnv env{1};
    Job job(replicated(tensors_of(5000), 2));
    std::vector<std::vector<bool>> durable(2);
    run_ranks(env, 2, [&](int rank, Transport& transport) {
      SaverOptions options = test_options();
      options.background = true;
      options.direct = false;
      options.guard = guard;
      const auto saver = Saver::open(env, "run", &transport, options).value();
      const LocalState state = job.state(rank);
      for (int64_t step = 1; step < 5; ++step) {
        if (step == 2 && rank == 1) byte_of(state, 0, 7) ^= std::byte{1};
        if (step == 3 && rank == 1) byte_of(state, 0, 7) ^= std::byte{1};
        if (step == 4) saver->trust_replicas();
        const SaveHandle handle =
            saver->save({.step = step, .state = &state, .compare = true}).value();
        EXPECT_OK(handle.captured());
        saver->settle();
        durable[static_cast<size_t>(rank)].push_back(handle.durable().ok());
        if (rank == 0) {
          EXPECT_EQ(saver->replicas_differ(), step == 2 || step == 3);
        }
      }
      EXPECT_OK(saver->close());
    });
    for (const auto& of_rank : durable) {
      EXPECT_EQ(of_rank, std::vector({true, false, false, true}));
    }
  }
}

}  // namespace
}  // namespace holdfast::tests
