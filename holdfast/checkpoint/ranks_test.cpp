// Tests ranks that fail, vanish, or whose messages are lost: all others agree on the
// outcome of the save, and the next save works.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <latch>

#include "holdfast/checkpoint/channel.h"
#include "holdfast/checkpoint/checkpoint_testing.h"
#include "holdfast/env/faulty_env.h"

namespace holdfast::tests::ranks_test {
namespace {

constexpr Duration kSoon = std::chrono::seconds(10);

std::vector<Tensor> tensors() {
  return {{.name = "w", .dtype = Dtype::kF32, .shape = {40, 30}},
          {.name = "b", .dtype = Dtype::kBf16, .shape = {7}}};
}

std::vector<Memory> values_at(int64_t step) {
  Dice dice(static_cast<uint64_t>(step));
  return random_values(dice, tensors());
}

TEST(Channel, LateMessagesAreSkipped) {
  MemoryEnv env(1);
  LocalNetwork network(env, 2);
  Channel first(env, &network.endpoint(0), 1), second(env, &network.endpoint(1), 1);
  for (int64_t serial : {1, 2}) {
    ASSERT_OK(first.tell_all({.serial = serial, .kind = "go"}, kSoon));
    ASSERT_OK(second.report({.serial = serial, .kind = "vote"}, kSoon));
  }
  EXPECT_EQ(second.hear(2, kSoon).value().serial, 2);
  EXPECT_FALSE(first.collect({.serial = 2}, kSoon)[1].error.has_value());
}

TEST(Channel, AMessageThatIsLostDoesNotTakeTheNextOneWithIt) {
  MemoryEnv env(1);
  LocalNetwork network(env, 2);
  Channel first(env, &network.endpoint(0), 1), second(env, &network.endpoint(1), 1);
  network.drop(0, 1);
  network.drop(1, 0);
  for (int64_t serial : {1, 2}) {
    ASSERT_OK(first.tell_all({.serial = serial, .kind = "go"}, kSoon));
    ASSERT_OK(second.report({.serial = serial, .kind = "vote"}, kSoon));
  }
  EXPECT_ERROR(second.hear(1, kSoon), ErrorCode::kUnavailable);
  EXPECT_OK(second.hear(2, kSoon));
  EXPECT_TRUE(first.collect({.serial = 1}, kSoon)[1].error.has_value());
  EXPECT_FALSE(first.collect({.serial = 2}, kSoon)[1].error.has_value());
}

TEST(Channel, RanksThatAreLateAreToldWhileTheWaitGoesOn) {
  MemoryEnv env(1);
  LocalNetwork network(env, 4);
  std::vector<std::vector<int>> told;
  const auto tell = [&](const std::vector<int>& missing) {
    told.push_back(missing);
    env.advance(std::chrono::minutes(1));
  };
  Transport& first = network.endpoint(0);
  first.set_late_watch({.after = Duration::zero(), .tell = tell});
  Channel watched(env, &first, 1, true), other(env, &first, 3);
  Channel second(env, &network.endpoint(2), 1);
  ASSERT_OK(second.report({.serial = 1}, kSoon));
  const std::vector<Message> heard =
      watched.collect({.serial = 1}, std::chrono::minutes(1));
  EXPECT_EQ(told, (std::vector<std::vector<int>>{{1, 3}}));
  ASSERT_EQ(heard.size(), 4u);
  EXPECT_FALSE(heard[2].error.has_value());
  for (const size_t rank : {1u, 3u}) {
    ASSERT_TRUE(heard[rank].error.has_value());
    const std::string& why = heard[rank].error->message();
    EXPECT_NE(why.find("ranks 1, 3 within 60 s"), std::string::npos) << why;
  }
  other.collect({.serial = 1}, Duration::zero());
  EXPECT_EQ(told.size(), 1u);
}

struct Ranks : ::testing::Test {
  static constexpr int kRanks = 3;

  // Runs body(rank, saver) on all ranks, each with its own Env.
  void run(const std::function<void(int, Saver&)>& body) {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        Result<std::unique_ptr<Saver>> saver = Saver::open(
            *envs[static_cast<size_t>(rank)], kRun, &network.endpoint(rank), options());
        ASSERT_OK(saver);
        body(rank, **saver);
      });
    }
    threads.clear();
    ++boots;
  }
  // The ranks wait practically forever for each other, except for votes and outcomes.
  SaverOptions options() const {
    SaverOptions made = test_options(boots);
    made.timeout = std::chrono::hours(100'000);
    made.background = background;
    made.tiers = tiers;
    made.fail_after = fail_after;
    return made;
  }
  Result<Durable> save(int rank, Saver& saver, int64_t step) {
    Job job(replicated(tensors(), kRanks));
    job.set(values_at(step));
    const LocalState state = job.state(rank);
    const SaveHandle handle = HOLDFAST_TRY(saver.save({.step = step, .state = &state}));
    return handle.durable();
  }
  int64_t newest() {
    Job job(replicated(tensors(), 1));
    const Result<RestoredState> restored = restore_alone(disk, job);
    EXPECT_OK(restored);
    if (!restored.ok()) return -1;
    EXPECT_TRUE(job.has(values_at(restored->step)));
    return restored->step;
  }

  MemoryEnv disk{1};
  FaultyEnv second{disk};
  std::vector<Env*> envs{&disk, &second, &disk};
  LocalNetwork network{disk, kRanks};
  int boots = 1;
  bool background = false;
  std::vector<TierCopy> tiers;
  std::optional<Duration> fail_after;
};

TEST_F(Ranks, AFailureOfOneIsAFailureOfAllAndRaisedOnAllAfterAWhile) {
  fail_after = std::chrono::minutes(30);
  run([&](int rank, Saver& saver) {
    EXPECT_OK(save(rank, saver, 1));
    for (int64_t step : {2, 3, 4}) {
      if (rank == 1) second.fail_at(Op::kOpen, 1, ErrorCode::kIo);
      EXPECT_ERROR(save(rank, saver, step), ErrorCode::kIo);
    }
    if (rank == 0) disk.advance(std::chrono::minutes(30));
    const Result<Durable> raised = save(rank, saver, 5);
    EXPECT_ERROR(raised, ErrorCode::kIo);
    EXPECT_NE(message_of(raised).find("before step 5"), std::string::npos);
    EXPECT_OK(save(rank, saver, 6));
    EXPECT_OK(saver.close());
  });
  EXPECT_EQ(newest(), 6);
}

TEST_F(Ranks, AStateThatOneRankCannotSaveIsRaisedOnAllByTheNextSave) {
  run([&](int rank, Saver& saver) {
    Job job(replicated(tensors(), kRanks));
    LocalState state = job.state(rank);
    if (rank == 2) state.pieces.edit().pop_back();
    const Result<SaveHandle> handle = saver.save({.step = 1, .state = &state});
    ASSERT_OK(handle);
    EXPECT_ERROR(handle->durable(), ErrorCode::kInvalid);
    EXPECT_ERROR(save(rank, saver, 2), ErrorCode::kInvalid);
    EXPECT_OK(save(rank, saver, 3));
    EXPECT_OK(saver.close());  // save() has raised the failure already
  });
  EXPECT_EQ(newest(), 3);
}

TEST_F(Ranks, CloseSaysOnAllWhatTheLastSaveFailedWith) {
  run([&](int rank, Saver& saver) {
    if (rank == 1) second.fail_at(Op::kOpen, 1, ErrorCode::kNoSpace);
    EXPECT_ERROR(save(rank, saver, 1), ErrorCode::kNoSpace);
    EXPECT_ERROR(saver.close(), ErrorCode::kNoSpace);
  });
}

TEST_F(Ranks, ARunThatOneRankCannotOpenIsOpenedByNone) {
  second.fail_at(Op::kAny, 1, ErrorCode::kIo);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        const auto saver = Saver::open(*envs[static_cast<size_t>(rank)], kRun,
                                       &network.endpoint(rank), options());
        EXPECT_ERROR(saver, ErrorCode::kIo);
        EXPECT_NE(message_of(saver).find("rank 1"), std::string::npos);
      });
    }
  }
  run([&](int rank, Saver& saver) { EXPECT_OK(save(rank, saver, 1)); });
  EXPECT_EQ(newest(), 1);
}

TEST_F(Ranks, ClosingDoesNotCountTheSavesThatOnlyRankZeroHasProposed) {
  run([&](int rank, Saver& saver) {
    EXPECT_OK(save(rank, saver, 1));
    if (rank == 0) static_cast<void>(saver.propose(2));  // no other rank hears of it
    EXPECT_OK(saver.close());
  });
}

TEST_F(Ranks, OthersCloseWhileRankZeroStillMirrors) {
  background = true;
  FaultyEnv slow(disk);
  std::latch closed(kRanks - 1);
  slow.before(Op::kRename, 1, [&] { closed.wait(); });
  tiers = {{.tier = make_folder_tier(slow, "/mirror/gpt")}};
  run([&](int rank, Saver& saver) {
    EXPECT_OK(save(rank, saver, 1));
    EXPECT_OK(saver.close());
    if (rank != 0) closed.count_down();
  });
  EXPECT_EQ(tiers[0].tier->steps()->size(), 1u);
}

TEST_F(Ranks, OneThatEndsAloneWaitsForNobodyAndNobodyForIt) {
  run([&](int rank, Saver& saver) {
    EXPECT_OK(save(rank, saver, 1));
    if (rank == 2) {
      EXPECT_OK(saver.close_alone());
      return network.kill(2);
    }
    const Result<void> closed = saver.close();
    EXPECT_ERROR(closed, ErrorCode::kUnavailable);
    EXPECT_NE(message_of(closed).find("rank 2"), std::string::npos);
  });
  EXPECT_EQ(newest(), 1);
}

TEST_F(Ranks, AllThatEndAloneHaveCommittedTheirLastSave) {
  background = true;
  run([&](int rank, Saver& saver) {
    Job job(replicated(tensors(), kRanks));
    job.set(values_at(1));
    const LocalState state = job.state(rank);
    EXPECT_OK(saver.save({.step = 1, .state = &state}));
    EXPECT_OK(saver.close_alone());
    network.kill(rank);
  });
  EXPECT_EQ(newest(), 1);
}

TEST(Channel, ARankThatGaveUpWaitingFindsTheAnswerLater) {
  MemoryEnv env(1);
  LocalNetwork network(env, 2);
  Channel first(env, &network.endpoint(0), 1), second(env, &network.endpoint(1), 1);
  EXPECT_ERROR(second.agree({}, Duration::zero()), ErrorCode::kTimeout);
  EXPECT_ERROR(second.agree({}, Duration::zero()), ErrorCode::kTimeout);
  EXPECT_OK(first.agree({}, kSoon));
  EXPECT_OK(second.agree({}, kSoon));
  EXPECT_ERROR(second.agree(no_space("full"), Duration::zero()), ErrorCode::kTimeout);
  EXPECT_ERROR(first.agree({}, kSoon), ErrorCode::kNoSpace);
  EXPECT_ERROR(second.agree({}, kSoon), ErrorCode::kNoSpace);
}

// The clock runs from the moment the vote is lost until the save is over, because only
// the timeout of rank 0 can show that the vote is missing.
TEST_F(Ranks, AMissingVoteLeavesTheAttemptUncommittedAndTheNextSaveWorks) {
  std::atomic<bool> voting = false;
  std::atomic<int> over = 0;
  std::barrier all(kRanks + 1);
  std::jthread clock([&] {
    voting.wait(false);
    while (over < kRanks) disk.advance(std::chrono::minutes(1));
    all.arrive_and_wait();
  });
  run([&](int rank, Saver& saver) {
    EXPECT_OK(save(rank, saver, 1));
    if (rank == 1) {
      network.drop(1, 0);
      // This is the last call that rank 1 makes before it votes.
      second.before(Op::kSyncFolder, 1, [&] {
        voting = true;
        voting.notify_all();
      });
    }
    EXPECT_FALSE(save(rank, saver, 2).ok());
    ++over;
    all.arrive_and_wait();
    EXPECT_OK(save(rank, saver, 3));
    EXPECT_OK(saver.close());
  });
  EXPECT_EQ(newest(), 3);
  for (const std::string& name : disk.list(kRun).value()) {
    EXPECT_NE(name, "step-00000002");  // only its uncommitted attempt may be left
  }
}

// Kills a rank at every call that it makes during a save. If any rank says that the
// save is durable, the step must be there.
class Vanishing : public Ranks, public ::testing::WithParamInterface<int> {};

TEST_P(Vanishing, ARankThatIsGoneAtAnyTimeHangsNobodyAndLosesNothing) {
  const int victim = GetParam();
  run([&](int rank, Saver& saver) { EXPECT_OK(save(rank, saver, 100)); });
  for (int64_t call = 1;; ++call) {
    LocalNetwork fresh(disk, kRanks);
    FaultyEnv watched(disk);
    std::atomic<bool> killed = false;
    watched.before(Op::kAny, call, [&] {
      killed = true;
      fresh.kill(victim);
    });
    std::atomic<int> durable = 0;
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        Env& env = rank == victim ? static_cast<Env&>(watched) : disk;
        SaverOptions options = test_options(boots);
        options.keep = Keep{.last = 2};
        auto saver = Saver::open(env, kRun, &fresh.endpoint(rank), options);
        if (saver.ok() && save(rank, **saver, 100 + call).ok()) ++durable;
        fresh.kill(rank);
      });
    }
    threads.clear();
    ++boots;
    const int64_t found = newest();
    ASSERT_TRUE(durable == 0 || found == 100 + call) << "call " << call;
    if (!killed) break;
    ASSERT_LT(call, 2000) << "never ends";
  }
}

INSTANTIATE_TEST_SUITE_P(Victims, Vanishing, ::testing::Values(0, 2));

}  // namespace
}  // namespace holdfast::tests::ranks_test
