// Loses each message of an exchange, damages each window, and ends each rank at each of
// its calls. All ranks that are left commit, or all drop what is new and have their old
// bytes; and nobody waits beyond the deadline.
#include <gtest/gtest.h>

#include <mutex>

#include "holdfast/exchange/live_state_testing.h"

namespace holdfast::tests {
namespace {

using namespace std::chrono_literals;

// Counts the sends and the collective calls of a rank. At the call `lose`, one message
// is lost: the one that is sent, or that of the collective call to the next rank. At the
// call `kill`, the rank ends. Of the window number `damage` a bit is flipped.
struct Fault {
  int rank = -1;
  int lose = 0;
  int kill = 0;
  int damage = 0;
};

class FaultyTransport : public Transport {
 public:
  FaultyTransport(LocalNetwork& network, int rank, const Fault& fault)
      : network_(network), under_(network.endpoint(rank)) {
    if (fault.rank == rank) fault_ = fault;
  }

  int rank() const override { return under_.rank(); }
  int size() const override { return under_.size(); }
  int calls() const { return calls_; }
  int windows() const { return windows_; }
  Result<void> send(int to, Tag tag, ByteView bytes, Instant deadline) override {
    if (begin_call()) return {};
    constexpr size_t kWindow = 500;  // everything else is shorter
    if (bytes.size() < kWindow || ++windows_ != fault_.damage) {
      return under_.send(to, tag, bytes, deadline);
    }
    Bytes copy = copy_of(bytes);
    copy[copy.size() / 2] ^= std::byte{4};
    return under_.send(to, tag, copy, deadline);
  }
  Result<Bytes> recv(int from, Tag tag, Instant deadline) override {
    return under_.recv(from, tag, deadline);
  }
  Result<void> barrier(Instant deadline) override { return under_.barrier(deadline); }
  Result<std::vector<Bytes>> all_gather(ByteView bytes, Instant deadline) override {
    if (begin_call()) network_.drop(rank(), (rank() + 1) % size());
    return under_.all_gather(bytes, deadline);
  }

 private:
  // True if the message of this call is lost.
  bool begin_call() {
    const int call = ++calls_;
    if (call == fault_.kill) network_.kill(rank());
    return call == fault_.lose;
  }

  LocalNetwork& network_;
  Transport& under_;
  Fault fault_;
  std::atomic<int> calls_ = 0, windows_ = 0;
};

struct Ended {
  std::vector<Result<Exchanged>> outcomes;
  std::vector<int> calls, windows;
  bool right = false;      // all that succeeded have exactly the target
  bool untouched = false;  // old bytes are as before
  bool left = false;       // a rank that failed has memory of new pieces
  Duration took{};
};

// The rows of one tensor go from two ranks to all, in other parts. A second tensor goes from
// the first rank to all, so that three ranks pass it on; a third one from the second rank to
// the others, so that the two have a stream in each direction.
LiveState small_change(int ranks) {
  const std::vector<Tensor> tensors{tensor_of("w", {60, 40}), tensor_of("r", {50, 9}),
                                    tensor_of("s", {30, 11})};
  RankLayout before(tensors, ranks), after(tensors, ranks);
  before.put(0, Box{{0, 40}, {0, 40}}, 0);
  before.put(0, Box{{40, 60}, {0, 40}}, 1);
  before.put(1, Box{{0, 50}, {0, 9}}, 0);
  before.put(2, Box{{0, 30}, {0, 11}}, 1);
  const int64_t rows = 60 / ranks;
  for (int r = 0; r < ranks; ++r) {
    after.put(0, Box{{rows * r, rows * r + rows}, {0, 40}}, r);
    after.put(1, Box{{0, 50}, {0, 9}}, r);
    if (r != 1) after.put(2, Box{{0, 30}, {0, 11}}, r);
  }
  return LiveState(before.build(), after.build(), Topology::uniform(1));
}

Ended run_with(Env& env, const Fault& fault, ExchangeOptions options, int ranks = 3) {
  LiveState state = small_change(ranks);
  LocalNetwork network(env, ranks);
  std::vector<std::unique_ptr<FaultyTransport>> transports;
  for (int r = 0; r < ranks; ++r) {
    transports.push_back(std::make_unique<FaultyTransport>(network, r, fault));
  }
  const Instant begun = env.now();
  Ended ended;
  ended.outcomes = state.run(
      env, [&](int r) -> Transport& { return *transports[static_cast<size_t>(r)]; },
      options);
  ended.took = env.now() - begun;
  ended.right = true;
  for (size_t r = 0; r < ended.outcomes.size(); ++r) {
    const bool good = ended.outcomes[r].ok();
    if (good) ended.right &= state.is_right(r, *ended.outcomes[r]);
    ended.left |= !good && state.storages[r]->bytes() > 0;
    ended.calls.push_back(transports[r]->calls());
    ended.windows.push_back(transports[r]->windows());
  }
  ended.untouched = state.old_is_untouched();
  return ended;
}

class ExchangeFailuresTest : public ::testing::Test {
 protected:
  // Runs the faults at the same time, as most of them wait.
  std::vector<Ended> run_all(const std::vector<Fault>& faults,
                             const ExchangeOptions& options, int ranks) {
    constexpr size_t kAtOnce = 12;
    std::vector<Ended> all(faults.size());
    for (size_t first = 0; first < faults.size(); first += kAtOnce) {
      const size_t count = std::min(kAtOnce, faults.size() - first);
      on_ranks(static_cast<int>(count), [&](int i) {
        const size_t at = first + static_cast<size_t>(i);
        all[at] = run_with(*env_, faults[at], options, ranks);
      });
    }
    return all;
  }
  // All ranks but `gone` have the same outcome, and nothing was harmed.
  static void expect_agreed(const Ended& ended, int gone = -1) {
    int good = 0, bad = 0;
    for (size_t r = 0; r < ended.outcomes.size(); ++r) {
      if (static_cast<int>(r) == gone) continue;
      (ended.outcomes[r].ok() ? good : bad) += 1;
    }
    EXPECT_TRUE(good == 0 || bad == 0) << good << " ranks committed, " << bad << " not";
    EXPECT_TRUE(ended.right);
    EXPECT_TRUE(ended.untouched);
    EXPECT_FALSE(ended.left);
  }

  static constexpr Duration kPatience = 1200ms;
  static constexpr Duration kSlow = 20s;  // a machine with other load
  // No bytes of this test need more time.
  static ExchangeOptions options_for(CarrierCase way) {
    way.options.patience = kPatience;
    way.options.slowest = int64_t{1} << 50;
    return way.options;
  }

  void lose_each_message(int ranks) {
    with_each_fault(ranks, [](int rank, int call) {
      return Fault{.rank = rank, .lose = call};
    });
  }
  void kill_at_each_call(int ranks) {
    with_each_fault(ranks, [](int rank, int call) {
      return Fault{.rank = rank, .kill = call};
    });
  }
  // Runs a fault for each rank and each of its calls, over each carrier.
  void with_each_fault(int ranks, const std::function<Fault(int, int)>& fault_at) {
    for (const CarrierCase& way : all_carriers()) {
      SCOPED_TRACE(name_of(way.carrier));
      const Ended well = run_with(*env_, {}, way.options, ranks);
      for (const auto& outcome : well.outcomes) ASSERT_OK(outcome);
      std::vector<Fault> faults;
      for (int rank = 0; rank < ranks; ++rank) {
        const int calls = well.calls[static_cast<size_t>(rank)];
        for (int call = 1; call <= calls; ++call) faults.push_back(fault_at(rank, call));
      }
      const std::vector<Ended> all = run_all(faults, options_for(way), ranks);
      for (size_t i = 0; i < all.size(); ++i) {
        const Fault& fault = faults[i];
        SCOPED_TRACE(fmt::format("rank {}, call {}", fault.rank, fault.lose + fault.kill));
        expect_agreed(all[i], fault.kill > 0 ? fault.rank : -1);
        EXPECT_LT(all[i].took, kPatience + kSlow);
      }
    }
  }

  std::unique_ptr<Env> env_ = make_posix_env();
};

TEST_F(ExchangeFailuresTest, EachMessageOfThreeRanksIsLost) { lose_each_message(3); }
// Each hears only one other rank, so that a lost "commit" leaves it without any.
TEST_F(ExchangeFailuresTest, EachMessageOfTwoRanksIsLost) { lose_each_message(2); }

TEST_F(ExchangeFailuresTest, EachOfThreeRanksIsKilledAtEachOfItsCalls) {
  kill_at_each_call(3);
}
TEST_F(ExchangeFailuresTest, EachOfTwoRanksIsKilledAtEachOfItsCalls) {
  kill_at_each_call(2);
}

TEST_F(ExchangeFailuresTest, EachDamagedWindowIsFoundByTheSeals) {
  const ExchangeOptions options = all_carriers()[2].options;
  const Ended well = run_with(*env_, {}, options);
  int found = 0;
  for (int rank = 0; rank < 3; ++rank) {
    const int windows = well.windows[static_cast<size_t>(rank)];
    for (int window = 1; window <= windows; ++window) {
      const Ended ended = run_with(*env_, {.rank = rank, .damage = window}, options);
      for (const auto& outcome : ended.outcomes) {
        EXPECT_ERROR(outcome, ErrorCode::kCorrupt);
        EXPECT_EQ(message_of(outcome), message_of(ended.outcomes[0]));
      }
      expect_agreed(ended);
      ++found;
    }
  }
  EXPECT_GE(found, 3);
}

}  // namespace
}  // namespace holdfast::tests
