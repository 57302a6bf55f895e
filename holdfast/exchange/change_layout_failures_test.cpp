// Loses each message and ends each rank at each of its calls: the memory is right, or
// the call is refused, and it always ends.
#include <gtest/gtest.h>

#include "holdfast/exchange/exchange_testing.h"

namespace holdfast::tests {
namespace {

using namespace std::chrono_literals;

class ChangeLayoutFailuresTest : public ::testing::Test {
 protected:
  struct Outcome {
    std::vector<Result<Exchanged>> results;
    bool right = false;
    std::vector<int> calls{};
  };

  // Fills ranks 1 and 3 of four from ranks 0 and 2. The messages are several windows.
  Outcome run(LocalNetwork& network, const CountingTransport::AtCall& at_call,
              Duration at_most, int damaging = -1, int damage = -1) {
    static const Ranks kFresh(
        replicas({tensor_of("w", {900, 700}), tensor_of("b", {3})}, 4),
        {true, false, true, false});
    Ranks ranks = kFresh;
    std::vector<std::unique_ptr<CountingTransport>> counting;
    for (int r = 0; r < 4; ++r) {
      counting.push_back(
          std::make_unique<CountingTransport>(network.endpoint(r), at_call));
      if (r == damaging) counting.back()->damage = damage;
    }
    Outcome outcome{
        .results = ranks.run(
            *env_,
            [&](int r) -> Transport& { return *counting[static_cast<size_t>(r)]; },
            at_most, shared_memory_)};
    EXPECT_TRUE(ranks.whole_ranks_are_unchanged());
    outcome.right = ranks.is_right();
    for (const auto& one : counting) outcome.calls.push_back(one->calls());
    return outcome;
  }
  // How many calls each rank makes if nothing fails.
  std::vector<int> calls() {
    LocalNetwork network(*env_, 4);
    const Outcome outcome = run(
        network, [](int, int) { return false; }, 60s);
    EXPECT_TRUE(outcome.right);
    return outcome.calls;
  }

  std::unique_ptr<Env> env_ = make_posix_env();
  // Through shared memory, the number of calls depends on how long ranks wait.
  bool shared_memory_ = false;
};

TEST_F(ChangeLayoutFailuresTest, EachRankIsKilledAtEachOfItsCalls) {
  const std::vector<int> count = calls();
  for (int rank = 0; rank < 4; ++rank) {
    for (int call = 1; call <= count[static_cast<size_t>(rank)]; ++call) {
      LocalNetwork network(*env_, 4);
      const auto kill = [&](int r, int c) {
        if (r == rank && c == call) network.kill(rank);
        return false;
      };
      const Outcome outcome = run(network, kill, 60s);
      // When all have said that they are done, a death makes no difference.
      int good = 0;
      for (int r = 0; r < 4; ++r) {
        const Result<Exchanged>& result = outcome.results[static_cast<size_t>(r)];
        good += result.ok() && r != rank ? 1 : 0;
        if (!result.ok()) EXPECT_ERROR(result, ErrorCode::kUnavailable);
      }
      EXPECT_TRUE(good == 0 || (good == 3 && outcome.right)) << rank << " " << call;
      EXPECT_TRUE(good == 0 || call > count[static_cast<size_t>(rank)] - 6);
    }
  }
}

TEST_F(ChangeLayoutFailuresTest, EachMessageIsLost) {
  const std::vector<int> count = calls();
  for (int rank = 0; rank < 4; ++rank) {
    for (int call = 1; call <= count[static_cast<size_t>(rank)]; ++call) {
      LocalNetwork network(*env_, 4);
      // If the call is a collective one, the message to the next rank is lost.
      const auto lose = [&](int r, int c) {
        if (r != rank || c != call) return false;
        const bool collective = c == 1 || c == count[static_cast<size_t>(rank)];
        if (collective) network.drop(r, (r + 1) % 4);
        return !collective;
      };
      const Outcome outcome = run(network, lose, 400ms);
      int good = 0;
      for (const Result<Exchanged>& result : outcome.results) {
        good += result.ok() ? 1 : 0;
        EXPECT_TRUE(outcome.right || !result.ok()) << rank << " " << call;
      }
      // Only a lost message about the outcome is noticed by its receiver alone.
      const bool last = call == count[static_cast<size_t>(rank)];
      EXPECT_TRUE(good == 0 || good == 4 || (last && good == 3)) << rank << " " << call;
    }
  }
}

// Windows, seals, grants and words: a damaged one is noticed, or makes no difference.
TEST_F(ChangeLayoutFailuresTest, NoDamagedMessageLeavesWrongBytes) {
  const std::vector<int> count = calls();
  int corrupt = 0;
  for (const int sender : {0, 2}) {
    for (int call = 2; call <= count[static_cast<size_t>(sender)]; ++call) {
      LocalNetwork network(*env_, 4);
      const Outcome outcome = run(
          network, [](int, int) { return false; }, 2s, sender, call);
      const Result<Exchanged>& first = outcome.results[0];
      for (const Result<Exchanged>& result : outcome.results) {
        EXPECT_TRUE(!result.ok() || outcome.right) << sender << " " << call;
      }
      if (first.ok() || first.error().code() != ErrorCode::kCorrupt) continue;
      ++corrupt;
      EXPECT_NE(message_of(first).find(fmt::format("rank {}", sender)),
                std::string::npos);
      for (const Result<Exchanged>& result : outcome.results) {
        EXPECT_EQ(message_of(result), message_of(first));
      }
    }
  }
  EXPECT_GE(corrupt, 8);  // each sender sends two windows and the seals to two ranks
}

TEST_F(ChangeLayoutFailuresTest, ARankIsKilledWhileBytesGoThroughSharedMemory) {
  shared_memory_ = true;
  for (int rank = 0; rank < 4; ++rank) {
    // The meeting, the address of the ring or the answer to it, and what follows.
    for (int call = 1; call <= 3; ++call) {
      LocalNetwork network(*env_, 4);
      const auto kill = [&](int r, int c) {
        if (r == rank && c == call) network.kill(rank);
        return false;
      };
      for (const Result<Exchanged>& result : run(network, kill, 60s).results) {
        EXPECT_ERROR(result, ErrorCode::kUnavailable);
      }
    }
  }
}

}  // namespace
}  // namespace holdfast::tests
