#include "holdfast/exchange/change_layout.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "holdfast/device/device_testing.h"
#include "holdfast/exchange/exchange_testing.h"

namespace holdfast::tests {
namespace {

using namespace std::chrono_literals;

class ChangeLayoutTest : public ::testing::Test {
 protected:
  std::vector<Result<Exchanged>> run(Ranks& ranks, bool shared_memory = true) {
    LocalNetwork network(*env_, ranks.size());
    return ranks.run(
        *env_, [&](int r) -> Transport& { return network.endpoint(r); }, 60s,
        shared_memory);
  }
  void expect_filled(const Ranks& fresh) {
    for (const bool shared_memory : {false, true}) {
      Ranks ranks = fresh;
      for (const Result<Exchanged>& outcome : run(ranks, shared_memory)) {
        EXPECT_OK(outcome);
      }
      EXPECT_TRUE(ranks.is_right());
    }
  }
  // Expects the same error on all ranks, and returns its message.
  std::string expect_refused(Ranks& ranks, ErrorCode code) {
    const std::vector<Result<Exchanged>> outcomes = run(ranks);
    for (const Result<Exchanged>& outcome : outcomes) {
      EXPECT_ERROR(outcome, code);
      EXPECT_EQ(message_of(outcome), message_of(outcomes[0]));
    }
    EXPECT_TRUE(ranks.whole_ranks_are_unchanged());
    return message_of(outcomes[0]);
  }

  std::unique_ptr<Env> env_ = make_posix_env();
};

const std::vector<Tensor>& a_model() {
  static const std::vector<Tensor> tensors{
      tensor_of("embedding", {300, 900}), tensor_of("scale", {}),
      tensor_of("bias", {5}, Dtype::kBf16), tensor_of("empty", {0, 4}),
      tensor_of("steps", {1}, Dtype::kI64)};
  return tensors;
}

TEST_F(ChangeLayoutTest, AReplacementIsFilledFromAllReplicasAlike) {
  Ranks ranks(replicas(a_model(), 4), {true, true, false, true});
  const std::vector<Result<Exchanged>> outcomes = run(ranks);
  for (const Result<Exchanged>& outcome : outcomes) ASSERT_OK(outcome);
  EXPECT_TRUE(ranks.is_right());
  const int64_t bytes = ranks.all.bytes();
  EXPECT_EQ(sum_of(outcomes[2]->received), bytes);
  EXPECT_EQ(sum_of(outcomes[2]->sent), 0);
  for (const int whole : {0, 1, 3}) {
    const Exchanged& filled = *outcomes[static_cast<size_t>(whole)];
    EXPECT_EQ(filled.moved, bytes);
    EXPECT_EQ(sum_of(filled.received), 0);
    // The planner cuts between rows of at most 32 KiB.
    EXPECT_NEAR(static_cast<double>(sum_of(filled.sent)), static_cast<double>(bytes) / 3, 32e3);
  }
}

TEST_F(ChangeLayoutTest, SeveralReplacementsAreFilledAtOnce) {
  Ranks ranks(replicas(a_model(), 5), {false, true, false, true, false});
  expect_filled(ranks);
}

TEST_F(ChangeLayoutTest, AShardIsFilledFromTheReplicaOfTheSameShard) {
  // Two replicas of two shards each: ranks 0 and 2 have the upper rows, 1 and 3 the
  // lower ones.
  const std::vector<Tensor> tensors{tensor_of("w", {600, 200}), tensor_of("b", {7})};
  RankLayout layout(tensors, 4);
  for (int r = 0; r < 4; ++r) {
    layout.put(0, r % 2 == 0 ? Box{{0, 300}, {0, 200}} : Box{{300, 600}, {0, 200}}, r);
    layout.put(1, r % 2 == 0 ? Box{{0, 4}} : Box{{4, 7}}, r);
  }
  Ranks one(layout.build(), {true, true, true, false});
  expect_filled(one);
  Ranks other(layout.build(), {false, true, true, false});
  expect_filled(other);
  // If both holders of a shard are lost, all ranks say which box is missing.
  Ranks lost(layout.build(), {true, false, true, false});
  const std::string message = expect_refused(lost, ErrorCode::kNotFound);
  EXPECT_NE(message.find("w: box [300:600, 0:200]"), std::string::npos) << message;
}

TEST_F(ChangeLayoutTest, WithoutAWholeRankNothingIsFoundAndWithoutAReplacementNothingMoves) {
  Ranks none(replicas(a_model(), 2), {false, false});
  const std::string message = expect_refused(none, ErrorCode::kNotFound);
  EXPECT_NE(message.find("embedding: box"), std::string::npos) << message;
  Ranks all(replicas(a_model(), 2), {true, true});
  for (const Result<Exchanged>& outcome : run(all)) {
    ASSERT_OK(outcome);
    EXPECT_EQ(outcome->moved, 0);
  }
}

TEST_F(ChangeLayoutTest, APieceThatIsWantedInTheMemoryInWhichItIsHeldStaysThere) {
  Ranks ranks(replicas(a_model(), 3), {true, true, true});
  LocalNetwork network(*env_, 3);
  on_ranks(3, [&](int r) {
    const LocalPieces held = pieces_in(ranks.all, static_cast<HolderId>(r),
                                       ranks.memories[static_cast<size_t>(r)]);
    const LocalPieces wanted = r < 2 ? held : LocalPieces();
    GivenStorage storage(wanted);
    const Result<Exchanged> outcome = change_layout(
        *env_, network.endpoint(r), {.old = held, .wanted = wanted}, storage);
    ASSERT_OK(outcome);
    EXPECT_EQ(outcome->kept, r < 2 ? ranks.all.bytes() : 0);
    EXPECT_EQ(outcome->copied + outcome->moved, 0);
  });
  EXPECT_TRUE(ranks.is_right());
}

TEST_F(ChangeLayoutTest, RanksTakeThePlacesForWhichTheyHaveMost) {
  Memory first(1000, std::byte{1}), second(3000, std::byte{2});
  const LocalPiece w = whole_piece("w", ByteSpan(first), {1000});
  const LocalPiece v = whole_piece("v", ByteSpan(second), {3000});
  // Ranks 0 and 1 hold w, ranks 2 and 3 hold v. Place 0 needs w, and place 1 needs v.
  LocalNetwork network(*env_, 4);
  on_ranks(4, [&](int r) {
    const auto placed_of = [&](std::vector<int> able) {
      std::vector<LocalPiece> old{r < 2 ? w : v}, wanted;
      if (r < 2) wanted.push_back(r == 0 ? w : v);
      const LayoutChange change{.old = std::move(old), .wanted = std::move(wanted)};
      return place_ranks(*env_, network.endpoint(r), change,
                         {.told_by = {0, 1}, .able = std::move(able)}, {.patience = 60s});
    };
    const Result<PlacedRanks> placed = placed_of({0, 1, 2, 3});
    ASSERT_OK(placed);
    EXPECT_LT(placed->ranks[0], 2);
    EXPECT_GE(placed->ranks[1], 2);
    EXPECT_EQ(placed->moved, 0);
    EXPECT_EQ(placed->moved_as_told, 3000);
    EXPECT_EQ(placed->needed, 4000);
    const Result<PlacedRanks> without = placed_of({1, 3});
    ASSERT_OK(without);
    EXPECT_EQ(without->ranks, (std::vector<int>{1, 3}));
    EXPECT_ERROR(placed_of({1}), ErrorCode::kInvalid);
    EXPECT_ERROR(placed_of({1, 4}), ErrorCode::kInvalid);
  });
}

// Ranks with a tensor on a device each: a whole one, whose training still works on it,
// and one that is to be filled.
TEST_F(ChangeLayoutTest, TensorsOnDevicesAreFilledAfterTheWorkThatIsQueued) {
  constexpr size_t kBytes = 5 << 20;
  FakeCuda cuda;
  const auto device = Device::open(cuda, 0).value();
  const ByteSpan tensors[] = {cuda.new_tensor(kBytes), cuda.new_tensor(kBytes)};
  const CudaStream training = cuda.new_stream();
  cuda.set(training, tensors[0], std::byte{7});
  cuda.set(training, tensors[1], std::byte{8});
  LocalNetwork network(*env_, 2);
  on_ranks(2, [&](int r) {
    LocalPiece piece = whole_piece("w", tensors[r], {int64_t{kBytes}});
    piece.device = device.get();
    EXPECT_OK(fill(*env_, network.endpoint(r), std::vector<LocalPiece>{piece}, r == 0,
                   {.stream = training}));
  });
  cuda.run_all();
  EXPECT_TRUE(std::ranges::all_of(tensors[0],
                                  [](std::byte byte) { return byte == std::byte{7}; }));
  EXPECT_TRUE(std::ranges::equal(tensors[0], tensors[1]));
}

TEST_F(ChangeLayoutTest, ADeviceThatFailsEndsTheCallOnAllRanks) {
  constexpr size_t kBytes = 5 << 20;
  for (const int failing : {0, 1}) {
    FakeCuda cuda, broken;
    const auto good = Device::open(cuda, 0).value();
    const auto bad = Device::open(broken, 0).value();
    broken.copies_until_failure = 1;
    LocalNetwork network(*env_, 2);
    std::vector<std::string> messages(2);
    on_ranks(2, [&](int r) {
      FakeCuda& own = r == failing ? broken : cuda;
      LocalPiece piece = whole_piece("w", own.new_tensor(kBytes), {int64_t{kBytes}});
      piece.device = r == failing ? bad.get() : good.get();
      const auto outcome = fill(*env_, network.endpoint(r),
                                std::vector<LocalPiece>{piece}, r == 0);
      EXPECT_FALSE(outcome.ok());
      messages[static_cast<size_t>(r)] = message_of(outcome);
    });
    EXPECT_EQ(messages[0], messages[1]);
  }
}

RC_GTEST_PROP(ChangeLayoutProperty, AnyLayoutWithAnyMapsArrivesBitForBit, (uint64_t seed)) {
  Dice dice(seed);
  const auto env = make_posix_env();
  const std::vector<Tensor> tensors = random_tensors(dice);
  const int64_t whole = 1 + dice.below(3), to_fill = 1 + dice.below(2);
  std::vector<Holder> holders;
  for (int64_t h = 0; h < whole + to_fill; ++h) {
    holders.push_back({.name = fmt::format("rank {}", h)});
  }
  // The first ranks are whole and hold every element; the others get random boxes.
  RandomLayout layout(dice, tensors, holders);
  for (TensorId t = 0; t < tensors.size(); ++t) {
    for (HolderId h = 0; h < holders.size(); ++h) {
      const bool all = static_cast<int64_t>(h) < whole;
      for (const Box& box : random_parts(dice, Box::whole(tensors[t].shape))) {
        if (all || dice.one_in(2)) layout.put(t, box, h);
      }
    }
  }
  std::vector<bool> is_whole(holders.size(), true);
  std::fill(is_whole.begin() + whole, is_whole.end(), false);
  Ranks ranks(std::move(layout).collection(), is_whole, seed);
  LocalNetwork network(*env, ranks.size());
  for (const auto& outcome : ranks.run(
           *env, [&](int r) -> Transport& { return network.endpoint(r); }, 60s,
           dice.one_in(2))) {
    RC_ASSERT(outcome.ok());
  }
  RC_ASSERT(ranks.is_right());
  RC_ASSERT(ranks.whole_ranks_are_unchanged());
}

// Ranks that hold, want, or both, as in a job that changes its size and its cuts.
RC_GTEST_PROP(ChangeLayoutProperty, AnyLayoutBecomesAnyOther, (uint64_t seed)) {
  Dice dice(seed);
  const auto env = make_posix_env();
  const std::vector<Tensor> tensors = random_tensors(dice);
  const int64_t ranks = 1 + dice.below(4);
  std::vector<Holder> holders;
  for (int64_t h = 0; h < ranks; ++h) {
    holders.push_back({.name = fmt::format("rank {}", h)});
  }
  RandomLayout before(dice, tensors, holders), after(dice, tensors, holders);
  const auto keeper = static_cast<HolderId>(dice.below(ranks));  // has every element
  for (TensorId t = 0; t < tensors.size(); ++t) {
    for (HolderId h = 0; h < holders.size(); ++h) {
      for (const Box& box : random_parts(dice, Box::whole(tensors[t].shape))) {
        if (h == keeper || dice.one_in(2)) before.put(t, box, h);
      }
      for (const Box& box : random_parts(dice, Box::whole(tensors[t].shape))) {
        if (dice.one_in(2)) after.put(t, box, h);
      }
    }
  }
  const std::vector<bool> all(holders.size(), true), none(holders.size(), false);
  Ranks old(std::move(before).collection(), all, seed);
  Ranks made(std::move(after).collection(), none, seed);  // the same values
  LocalNetwork network(*env, old.size());
  const ExchangeOptions options{
      .proof = dice.one_in(2) ? ExchangeProof::kMoved : ExchangeProof::kState};
  std::vector<Result<Exchanged>> outcomes(holders.size(), Exchanged{});
  on_ranks(old.size(), [&](int rank) {
    const auto r = static_cast<size_t>(rank);
    const auto h = static_cast<HolderId>(rank);
    const LocalPieces wanted = pieces_in(made.all, h, made.memories[r]);
    GivenStorage storage(wanted);
    outcomes[r] = change_layout(
        *env, network.endpoint(rank),
        {.old = pieces_in(old.all, h, old.memories[r]), .wanted = wanted}, storage,
        options);
  });
  int64_t received = 0;
  for (const Result<Exchanged>& outcome : outcomes) {
    RC_ASSERT(outcome.ok());
    received += sum_of(outcome->received);
  }
  RC_ASSERT(received == outcomes[0]->moved);
  RC_ASSERT(made.is_right() && old.is_right());
}

TEST_F(ChangeLayoutTest, AnotherModelInTheReplacementIsRefusedByAllRanks) {
  const auto make = [](Dtype dtype) {
    return replicas({tensor_of("w", {8, 4}, dtype)}, 2);
  };
  Ranks right(make(Dtype::kF32), {true, true}), other(make(Dtype::kF16), {true, false});
  LocalNetwork network(*env_, 2);
  std::vector<std::string> messages(2);
  on_ranks(2, [&](int r) {
    Ranks& ranks = r == 0 ? right : other;
    const auto outcome = fill(*env_, network.endpoint(r),
                              pieces_in(ranks.all, static_cast<HolderId>(r),
                                        ranks.memories[static_cast<size_t>(r)]),
                              r == 0);
    EXPECT_ERROR(outcome, ErrorCode::kInvalid);
    messages[static_cast<size_t>(r)] = message_of(outcome);
  });
  EXPECT_EQ(messages[0], messages[1]);
  EXPECT_NE(messages[0].find("w: rank 0 has F32 [8, 4], rank 1 has F16 [8, 4]"),
            std::string::npos)
      << messages[0];
}

TEST_F(ChangeLayoutTest, PiecesThatShareMemoryAreRefusedByAllRanks) {
  const Collection all = replicas({tensor_of("a", {4}), tensor_of("b", {4})}, 2);
  Ranks ranks(all, {true, false});
  LocalNetwork network(*env_, 2);
  on_ranks(2, [&](int r) {
    LocalPieces pieces = pieces_in(all, static_cast<HolderId>(r),
                                   ranks.memories[static_cast<size_t>(r)]);
    if (r == 1) pieces.edit()[1].map = pieces[0].map;
    EXPECT_ERROR(fill(*env_, network.endpoint(r), pieces, r == 0),
                 ErrorCode::kInvalid);
  });
}

TEST_F(ChangeLayoutTest, OverTcpWithRealThreadsWithAndWithoutSharedMemory) {
  const std::vector<Tensor> tensors{tensor_of("w", {1500, 900}),
                                    tensor_of("v", {100, 3})};
  const Ranks fresh(replicas(tensors, 4), {true, false, true, false});
  for (const bool shared_memory : {false, true}) {
    Ranks ranks = fresh;
    TcpRanks tcp(*env_, 4);
    const auto outcomes = ranks.run(
        *env_, [&](int r) -> Transport& { return tcp.at(r); }, 60s, shared_memory);
    for (const Result<Exchanged>& outcome : outcomes) {
      ASSERT_OK(outcome);
      const int64_t own = sum_of(outcome->received) + sum_of(outcome->sent);
      constexpr auto kShared = static_cast<size_t>(Carrier::kRing);
      EXPECT_EQ(outcome->received[kShared] + outcome->sent[kShared],
                shared_memory ? own : 0);
    }
    EXPECT_TRUE(ranks.is_right());
  }
}

}  // namespace
}  // namespace holdfast::tests
