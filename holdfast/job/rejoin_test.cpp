// Tests a job that goes on after one of its ranks was lost and replaced.
#include <gtest/gtest.h>

#include <thread>

#include "holdfast/base/testing.h"
#include "holdfast/env/event_log.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/job/job.h"
#include "holdfast/schedule/learn.h"
#include "holdfast/store/run.h"
#include "holdfast/transport/local_transport.h"
#include "holdfast/transport/switch_transport.h"

namespace holdfast {
namespace {

constexpr int kRanks = 3;

// The processes of a job, each with a part of a tensor whose every element is the step.
class Rejoin : public ::testing::Test {
 protected:
  struct Process {
    Bytes memory{};  // before the job, which looks at it until its end
    std::unique_ptr<SwitchTransport> transport{};
    std::unique_ptr<Job> job{};
    int64_t next = 0;  // the step that it makes next
    std::vector<int64_t> saved{};
  };

  Process& at(int rank) { return *ranks_[static_cast<size_t>(rank)]; }

  void on_all(const std::function<void(int)>& body) {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] { body(rank); });
    }
  }

  // The new set of processes can talk to each other.
  void connect() {
    network_ = std::make_shared<LocalNetwork>(env_, kRanks);
    ++generation_;
    for (int rank = 0; rank < kRanks; ++rank) {
      std::shared_ptr<Transport> wire(network_, &network_->endpoint(rank));
      if (at(rank).transport != nullptr) {
        at(rank).transport->replace(std::move(wire));
      } else {
        at(rank).transport = std::make_unique<SwitchTransport>(std::move(wire));
      }
    }
  }

  LocalPieces pieces(int rank) {
    const Box box{{2 * rank, 2 * rank + 2}};
    at(rank).memory.resize(16);
    return std::vector{
        make_piece({.name = "w", .dtype = Dtype::kI64, .shape = {2 * kRanks}}, box,
                   at(rank).memory, Map::dense(box, 8))};
  }

  Result<void> open(int rank) {
    JobOptions options{.schedule = {.every = EverySteps{4}}, .signals = false};
    options.saver.ring_bytes = 1 << 20;
    options.saver.block_bytes = 64 << 10;
    options.saver.space_reserve = 0;
    options.saver.guard = Guard::kSample;
    options.saver.ranks_are_replaced = true;
    // Each process is on a host of its own, so only the job tells that one is dead.
    options.saver.identity = Identity{.host = fmt::format("host-{}", ++processes_),
                                      .boot = "boot",
                                      .pid = 100,
                                      .started = 7,
                                      .job = "launch 12",
                                      .restart = generation_};
    at(rank).job =
        HOLDFAST_TRY(Job::open(env_, "run", at(rank).transport.get(), options));
    return {};
  }

  void start() {
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks_.push_back(std::make_unique<Process>());
    }
    connect();
    on_all([&](int rank) {
      ASSERT_OK(open(rank));
      ASSERT_OK(at(rank).job->attach(pieces(rank)));
    });
  }

  void train(int rank, int64_t until) {
    Process& self = at(rank);
    for (; self.next <= until; ++self.next) {
      self.job->settle();
      for (size_t i = 0; i < self.memory.size(); i += 8) {
        store_little_endian(static_cast<uint64_t>(self.next),
                            ByteSpan(self.memory).subspan(i));
      }
      const Result<Due> due = self.job->due(self.next);
      ASSERT_OK(due);
      if (!due->save) continue;
      ASSERT_OK(self.job->save({.step = self.next, .pieces = pieces(rank)}));
      self.saved.push_back(self.next);
    }
  }

  // All ranks begin to save, but the rank is lost before it votes. One survivor has
  // reached a later step than the other.
  void lose(int lost) {
    std::vector<std::optional<SaveHandle>> handles(kRanks);
    const int ahead = lost == 2 ? 1 : 2;
    on_all([&](int rank) {
      train(rank, 6);
      Result<SaveHandle> handle =
          at(rank).job->save({.step = 6, .pieces = pieces(rank)});
      ASSERT_OK(handle);
      handles[static_cast<size_t>(rank)] = *handle;
      if (rank != lost) at(rank).job->settle();
    });
    ASSERT_OK(at(ahead).job->due(7));
    at(ahead).next = 8;
    for (int rank = 0; rank < kRanks; ++rank) network_->kill(rank);
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == lost) continue;
      ASSERT_OK(at(rank).job->drop_saves(kNoDeadline));
      EXPECT_FALSE(handles[static_cast<size_t>(rank)]->durable().ok());
    }
    // The lost process is stopped, not gone: it still holds the run if it was rank 0.
    lost_.push_back(
        std::exchange(ranks_[static_cast<size_t>(lost)], std::make_unique<Process>()));
    at(lost).next = 7;
  }

  void recover(int lost) {
    connect();
    on_all([&](int rank) {
      ASSERT_OK(rank == lost ? open(rank) : at(rank).job->rejoin());
      ASSERT_OK(at(rank).job->attach(pieces(rank)));
      EXPECT_TRUE(at(rank).job->take_warnings().empty());
    });
  }

  Learned learned() {
    const Result<EventLog> log = read_events(env_, "run/events/rank-0000.jsonl");
    return log.ok() ? learn(log->events) : Learned{};
  }

  MemoryEnv env_{1};
  std::shared_ptr<LocalNetwork> network_;
  std::vector<std::unique_ptr<Process>> ranks_;
  std::vector<std::unique_ptr<Process>> lost_;
  std::atomic<int> processes_ = 0;
  int64_t generation_ = -1;
};

class RejoinOfEach : public Rejoin, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, RejoinOfEach, ::testing::Values(0, 1, 2));

TEST_P(RejoinOfEach, AllRanksSaveTheSameStepsAgain) {
  const int lost = GetParam();
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(lose(lost));
  ASSERT_NO_FATAL_FAILURE(recover(lost));
  for (int rank = 0; rank < kRanks; ++rank) at(rank).saved.clear();
  on_all([&](int rank) {
    train(rank, 16);
    EXPECT_OK(at(rank).job->close());
  });
  EXPECT_EQ(at(0).saved, at(1).saved);
  EXPECT_EQ(at(0).saved, at(2).saved);
  // The save that was dropped is made again, but at no step that a rank had reached.
  EXPECT_EQ(at(0).saved.front(), 8);
  EXPECT_EQ(at(0).saved.back(), 15);
  const auto steps = Run::open(env_, "run")->steps();
  ASSERT_OK(steps);
  std::vector<int64_t> found;
  for (const Step& step : steps->steps) found.push_back(step.manifest.step);
  EXPECT_TRUE(std::ranges::find(found, 6) == found.end());
  EXPECT_TRUE(std::ranges::find(found, 15) != found.end());
}

TEST_P(RejoinOfEach, ARecoveredDeathIsNoFailureThatNeededACheckpoint) {
  const int lost = GetParam();
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(lose(lost));
  ASSERT_NO_FATAL_FAILURE(recover(lost));
  EXPECT_EQ(learned().failures, 0);
  EXPECT_EQ(learned().recovered, 1);
}

TEST_P(RejoinOfEach, AGenerationThatFailsIsFollowedByAnother) {
  const int lost = GetParam();
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(lose(lost));
  connect();
  on_all([&](int rank) {
    if (rank == lost) return network_->kill(rank);  // dies before it opens its job
    EXPECT_ERROR(at(rank).job->rejoin(), ErrorCode::kUnavailable);
    network_->kill(rank);
  });
  ASSERT_NO_FATAL_FAILURE(recover(lost));
  on_all([&](int rank) {
    train(rank, 12);
    EXPECT_OK(at(rank).job->close());
  });
  EXPECT_EQ(at(0).saved.back(), at(1).saved.back());
  EXPECT_EQ(at(0).saved.back(), at(2).saved.back());
}

TEST_F(Rejoin, ASecondRankIsLostLater) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(lose(0));
  ASSERT_NO_FATAL_FAILURE(recover(0));
  on_all([&](int rank) { train(rank, 10); });
  for (int rank = 0; rank < kRanks; ++rank) network_->kill(rank);
  EXPECT_ERROR(at(1).job->rejoin(), ErrorCode::kInvalid);
  for (const int rank : {1, 2}) ASSERT_OK(at(rank).job->drop_saves(kNoDeadline));
  lost_.push_back(std::exchange(ranks_[0], std::make_unique<Process>()));
  at(0).next = 11;
  ASSERT_NO_FATAL_FAILURE(recover(0));
  on_all([&](int rank) {
    train(rank, 16);
    EXPECT_OK(at(rank).job->close());
  });
  EXPECT_EQ(at(0).saved.back(), 15);
  EXPECT_EQ(learned().failures, 0);
  EXPECT_EQ(learned().recovered, 2);
}

}  // namespace
}  // namespace holdfast
