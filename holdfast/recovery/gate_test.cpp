#include "holdfast/recovery/gate.h"

#include <gtest/gtest.h>

#include "holdfast/env/posix_env.h"
#include "holdfast/recovery/gate_testing.h"
#include "holdfast/transport/transport_testing.h"

namespace holdfast {
namespace {

using namespace std::chrono_literals;

class GateTest : public ::testing::Test {
 protected:
  void make(int size) {
    network_ = std::make_unique<LocalNetwork>(env_, size);
    gates_.clear();
    for (int rank = 0; rank < size; ++rank) {
      gates_.push_back(std::make_unique<Gate>(env_, network_->endpoint(rank)));
    }
  }
  Gate& at(int rank) { return *gates_[static_cast<size_t>(rank)]; }
  void pass_all(int64_t update) {
    on_ranks(static_cast<int>(gates_.size()), [&](int rank) {
      EXPECT_OK(at(rank).pass(update, bytes_of(text(rank, update)), kNoDeadline));
    });
  }
  static std::string text(int rank, int64_t update) {
    return fmt::format("{}/{}", rank, update);
  }
  std::string record(int at_rank, int64_t update) {
    const auto kept = at(at_rank).record_of_peer(update);
    return kept ? fmt::format("{}{}", text_of(kept->bytes), kept->refreshed ? "+" : "")
                : "none";
  }

  MemoryEnv env_;
  std::unique_ptr<LocalNetwork> network_;
  std::vector<std::unique_ptr<Gate>> gates_;
};

TEST_F(GateTest, AllRanksAreCommittedAndKeepTheRecordsOfTheirPeers) {
  for (const int size : {2, 3, 4, 5, 8}) {
    make(size);
    for (int64_t update = 1; update <= 3; ++update) pass_all(update);
    for (int rank = 0; rank < size; ++rank) {
      EXPECT_EQ(at(rank).committed(), 3);
      EXPECT_EQ(at(rank).ready(), 3);
      EXPECT_EQ(at(rank).buddy(), (rank + 1) % size);
      EXPECT_EQ(at((rank + 1) % size).peer(), rank);
      EXPECT_EQ(record(rank, 3), text(at(rank).peer(), 3));
      EXPECT_EQ(record(rank, 2), text(at(rank).peer(), 2));
      EXPECT_EQ(record(rank, 1), "none");
    }
  }
}

TEST_F(GateTest, ARankThatIsAlonePassesAtOnce) {
  make(1);
  EXPECT_OK(at(0).pass(1, bytes_of("mine"), env_.now()));
  EXPECT_OK(at(0).refresh(1, bytes_of("mine")));
  EXPECT_EQ(at(0).committed(), 1);
  EXPECT_EQ(record(0, 1), "none");
  at(0).interrupt();
  EXPECT_ERROR(at(0).pass(2, {}, kNoDeadline), ErrorCode::kUnavailable);
  EXPECT_OK(at(0).begin(1, 1, {}, kNoDeadline));
  EXPECT_OK(at(0).pass(2, {}, kNoDeadline));
}

TEST_F(GateTest, NobodyIsCommittedBeforeAllAreReady) {
  make(3);
  std::vector<std::jthread> early;
  for (const int rank : {0, 1}) {
    early.emplace_back([&, rank] { EXPECT_OK(at(rank).pass(1, {}, kNoDeadline)); });
  }
  while (at(1).ready() < 1) std::this_thread::yield();
  EXPECT_EQ(at(0).ready(), 0);  // the record of rank 2 is missing
  EXPECT_EQ(at(0).committed() + at(1).committed(), 0);
  EXPECT_OK(at(2).pass(1, {}, kNoDeadline));
}

TEST_F(GateTest, ARefreshReplacesTheRecordOfTheSameUpdate) {
  make(2);
  pass_all(1);
  ASSERT_OK(at(0).refresh(1, bytes_of("newer")));
  ASSERT_OK(at(0).refresh(1, bytes_of("newest")));
  EXPECT_EQ(record(1, 1), "newest+");
  ASSERT_OK(at(0).refresh(1, bytes_of("last")));  // taken by the next pass()
  pass_all(2);
  EXPECT_EQ(record(1, 1), "last+");
  EXPECT_EQ(record(1, 2), text(0, 2));
  EXPECT_ERROR(at(0).refresh(1, {}), ErrorCode::kInvalid);
}

TEST_F(GateTest, InterruptEndsAWaitAndFixesTheStatus) {
  make(2);
  pass_all(1);
  std::jthread waiting([&] {
    EXPECT_ERROR(at(0).pass(2, {}, kNoDeadline), ErrorCode::kUnavailable);
    EXPECT_ERROR(at(0).pass(2, {}, kNoDeadline), ErrorCode::kUnavailable);
  });
  at(0).interrupt();
  // All that rank 0 waits for comes after the interruption.
  std::jthread late([&] {
    EXPECT_ERROR(at(1).pass(2, bytes_of("late"), env_.now() + 1h), ErrorCode::kTimeout);
  });
  env_.advance(20ms);
  waiting.join();
  EXPECT_EQ(at(0).committed(), 1);
  while (record(0, 2) == "none") std::this_thread::yield();
  EXPECT_EQ(record(0, 2), "late");
  EXPECT_LE(at(0).ready(), 2);
  env_.advance(2h);
}

TEST_F(GateTest, AnInterruptionOfTheNextGenerationMayComeBeforeItBegins) {
  make(2);
  at(0).interrupt(1);
  EXPECT_ERROR(at(0).pass(1, {}, kNoDeadline), ErrorCode::kUnavailable);
  EXPECT_ERROR(at(0).begin(1, 0, {}, kNoDeadline), ErrorCode::kUnavailable);
  EXPECT_ERROR(at(0).begin(1, 0, {}, kNoDeadline), ErrorCode::kInvalid);
  on_ranks(2, [&](int rank) {
    EXPECT_OK(at(rank).begin(2, 0, bytes_of(text(rank, 0)), kNoDeadline));
  });
  EXPECT_EQ(record(0, 0), "1/0+");
  pass_all(1);
}

TEST_F(GateTest, RanksAtDifferentUpdatesFailInsteadOfWaiting) {
  for (const int ahead : {0, 1, 2}) {
    make(3);
    std::vector<std::jthread> threads;
    std::atomic<int> refused = 0, left = 3;
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        const int64_t done = rank == ahead ? 7 : 6;
        // begin() tells the ranks apart first, because the updates differ.
        const Result<void> begun = at(rank).begin(1, done, {}, env_.now() + 1h);
        refused += !begun.ok() && begun.error().code() == ErrorCode::kInvalid;
        EXPECT_FALSE(begun.ok());
        for (int r = 0; r < 3; ++r) at(r).interrupt(1);
        --left;
      });
    }
    while (left > 0) env_.advance(1ms);
    threads.clear();
    EXPECT_GE(refused, 1);
  }
  EXPECT_ERROR(at(0).pass(3, {}, kNoDeadline), ErrorCode::kUnavailable);
  make(2);
  EXPECT_ERROR(at(0).pass(3, {}, kNoDeadline), ErrorCode::kInvalid);
  EXPECT_OK(at(0).forward(0));
  EXPECT_ERROR(at(0).forward(1), ErrorCode::kInvalid);
}

TEST_F(GateTest, BytesThatAreNoMessageAreRefused) {
  make(2);
  ASSERT_OK(network_->endpoint(1).send(0, 0x4822, bytes_of("short"), kNoDeadline));
  EXPECT_ERROR(at(0).pass(1, {}, kNoDeadline), ErrorCode::kCorrupt);
}

TEST_F(GateTest, PassesOverTcp) {
  constexpr int kPasses = 300;
  const auto env = make_posix_env();
  TcpRanks ranks(*env, 2);
  const Bytes state(5000);  // as long as the generator of a CPU
  on_ranks(2, [&](int rank) {
    Gate gate(*env, ranks.at(rank), {0, 1});
    for (int64_t update = 1; update <= kPasses; ++update) {
      ASSERT_OK(gate.pass(update, state, env->now() + 60s));
    }
  });
}

// Two records are more than the transport keeps for a rank: that of the last update,
// sent again after it, and that of this gate.
TEST_F(GateTest, RanksThatAllSendLongRecordsReceiveMeanwhile) {
  constexpr int64_t kQueueBytes = 3000;
  const auto env = make_posix_env();
  for (const int size : {2, 3, 5}) {
    LocalNetwork network(*env, size, 1024, kQueueBytes);
    on_ranks(size, [&](int rank) {
      Gate gate(*env, network.endpoint(rank));
      for (int64_t update = 1; update <= 20; ++update) {
        const Bytes state(2000, static_cast<std::byte>(update));
        ASSERT_OK(gate.pass(update, state, env->now() + 60s));
        EXPECT_EQ(gate.record_of_peer(update)->bytes, state);
        static_cast<void>(gate.refresh(update, state));  // dropped if there is no room
      }
    });
  }
}

// Otherwise a recovery would take an old record for what the peer had at the end.
TEST_F(GateTest, ARefreshWithoutRoomMakesTheRecordOfTheBuddyOneOfTheGate) {
  const Bytes older(2000, std::byte{1}), newer(2000, std::byte{2});
  network_ = std::make_unique<LocalNetwork>(env_, 2, 1024, 3000);
  gates_.clear();
  for (int rank : {0, 1}) {
    gates_.push_back(std::make_unique<Gate>(env_, network_->endpoint(rank)));
  }
  pass_all(1);
  ASSERT_OK(at(0).refresh(1, older));
  EXPECT_EQ(at(1).record_of_peer(1)->refreshed, true);
  ASSERT_OK(at(0).refresh(1, older));
  EXPECT_ERROR(at(0).refresh(1, newer), ErrorCode::kTimeout);
  EXPECT_EQ(at(1).record_of_peer(1)->bytes, older);
  EXPECT_EQ(at(1).record_of_peer(1)->refreshed, false);
  ASSERT_OK(at(0).refresh(1, newer));
  EXPECT_EQ(at(1).record_of_peer(1)->bytes, newer);
  EXPECT_EQ(at(1).record_of_peer(1)->refreshed, true);
  pass_all(2);
  EXPECT_EQ(record(1, 1), fmt::format("{}+", text_of(newer)));
}

// A loop sends more between two gates: what its ranks agree on in between must find room
// next to a record that the buddy receives at its next gate, and a record must find room
// next to a message for which the buddy does not ask yet.
TEST_F(GateTest, LongRecordsAndOtherMessagesDoNotKeepEachOtherBack) {
  constexpr Tag kNow = 1, kMuchLater = 2;
  const auto env = make_posix_env();
  for (const int size : {2, 3}) {
    TcpRanks ranks(*env, size);
    on_ranks(size, [&](int rank) {
      Transport& transport = ranks.at(rank);
      Gate gate(*env, transport);
      const Bytes state(static_cast<size_t>(kQueueBytes) + 1);
      const int buddy = gate.buddy();
      for (int64_t update = 1; update <= 3; ++update) {
        const Instant soon = env->now() + 60s;
        ASSERT_OK(gate.pass(update, state, soon));
        ASSERT_OK(transport.send(buddy, kMuchLater, bytes_of("much later"), soon));
        ASSERT_OK(gate.refresh(update, state));
        ASSERT_OK(transport.send(buddy, kNow, bytes_of("now"), soon));
        ASSERT_OK(transport.recv(gate.peer(), kNow, soon));
      }
    });
  }
}

// All ranks go on after the fault, with the same state.
void expect_recovery(GateRanks& ranks, int size, int64_t until) {
  ASSERT_TRUE(ranks.recover());
  EXPECT_FALSE(ranks.train(until, {}));
  for (int rank = 0; rank < size; ++rank) EXPECT_EQ(ranks.state(rank), until);
}

// Every message of every rank in turn is lost, or is the one at which its rank ends.
TEST(GateFaults, OneFaultAtEachMessage) {
  bool refreshed = false;
  for (const int size : {2, 3, 4}) {
    for (const bool lose : {false, true}) {
      int faults = 0;
      for (int rank = 0; rank < size; ++rank) {
        for (int send = 1;; ++send) {
          SCOPED_TRACE(fmt::format("{} ranks, {} message {} of rank {}", size,
                                   lose ? "lose" : "end at", send, rank));
          GateRanks ranks(size);
          if (!ranks.train(3, {.rank = rank, .send = send, .lose = lose})) break;
          ++faults;
          // Before the first update nobody may have a record yet: all start again.
          if (!ranks.recover()) {
            EXPECT_EQ(ranks.target(), 0);
            continue;
          }
          refreshed |= ranks.refreshed();
          ASSERT_NO_FATAL_FAILURE(expect_recovery(ranks, size, 5));
        }
      }
      fmt::print("{} ranks: {} messages {}\n", size, faults, lose ? "lost" : "ended");
    }
  }
  EXPECT_TRUE(refreshed);
}

// A second rank, or the same one again, is lost at each message of the generation after.
TEST(GateFaults, TwoFaultsInSuccessiveGenerations) {
  constexpr int kSize = 3;
  int pairs = 0, restarts = 0;
  for (int first = 0; first < kSize; ++first) {
    for (int at = 4;; ++at) {
      GateRanks probe(kSize);
      if (!probe.train(2, {.rank = first, .send = at})) break;
      for (int second = 0; second < kSize; ++second) {
        for (int send = 1;; ++send) {
          SCOPED_TRACE(fmt::format("rank {} ends at {}, then rank {} at {}", first, at,
                                   second, send));
          GateRanks ranks(kSize);
          ASSERT_TRUE(ranks.train(2, {.rank = first, .send = at}));
          ASSERT_TRUE(ranks.recover());
          const int64_t target = ranks.target();
          if (!ranks.train(3, {.rank = second, .send = send})) break;
          ++pairs;
          const bool recovered = ranks.recover();
          ASSERT_GE(ranks.target(), target);
          if (!recovered) {
            ++restarts;
            continue;
          }
          ASSERT_NO_FATAL_FAILURE(expect_recovery(ranks, kSize, 4));
        }
      }
    }
  }
  fmt::print("{} pairs of faults, {} of them without a record\n", pairs, restarts);
  EXPECT_GT(pairs, 100);
}

TEST(GateFaults, WithHostsTheRecordsOfALostHostAreOnTheOther) {
  for (int send = 4; send <= 9; ++send) {
    GateRanks ranks(4, {0, 0, 1, 1});
    ASSERT_TRUE(ranks.train(3, {.rank = 2, .send = send}));
    ASSERT_NO_FATAL_FAILURE(expect_recovery(ranks, 4, 5));
  }
}

}  // namespace
}  // namespace holdfast
