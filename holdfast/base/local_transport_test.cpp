#include "holdfast/base/local_transport.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>

#include "holdfast/base/memory_env.h"
#include "holdfast/base/posix_env.h"
#include "holdfast/base/testing.h"

namespace holdfast {
namespace {

using namespace std::chrono_literals;

// Runs the body once for each rank, each on a thread of its own.
void on_all(LocalNetwork& network, int size,
            const std::function<void(Transport&)>& body) {
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] { body(network.endpoint(rank)); });
  }
}

class LocalTransportTest : public ::testing::Test {
 protected:
  Instant past() { return env_.now(); }
  Transport& at(int rank) { return network_.endpoint(rank); }

  MemoryEnv env_;
  LocalNetwork network_{env_, 3, 4};
};

TEST_F(LocalTransportTest, EndpointsKnowTheirPlace) {
  EXPECT_EQ(at(2).rank(), 2);
  EXPECT_EQ(at(2).size(), 3);
}

TEST_F(LocalTransportTest, MessagesArriveInOrderBySenderAndTag) {
  ASSERT_OK(at(0).send(2, 7, bytes_of("a"), past()));
  ASSERT_OK(at(0).send(2, 7, bytes_of("b"), past()));
  ASSERT_OK(at(0).send(2, 8, bytes_of("c"), past()));
  ASSERT_OK(at(1).send(2, 7, bytes_of("d"), past()));
  EXPECT_EQ(text_of(*at(2).recv(1, 7, past())), "d");
  EXPECT_EQ(text_of(*at(2).recv(0, 8, past())), "c");
  EXPECT_EQ(text_of(*at(2).recv(0, 7, past())), "a");
  EXPECT_EQ(text_of(*at(2).recv(0, 7, past())), "b");
}

TEST_F(LocalTransportTest, ARankMaySendToItselfAndEmptyMessagesAreMessages) {
  ASSERT_OK(at(1).send(1, 0, {}, past()));
  EXPECT_TRUE(at(1).recv(1, 0, past())->empty());
}

TEST_F(LocalTransportTest, NothingToReceiveIsATimeout) {
  EXPECT_ERROR(at(0).recv(1, 0, past()), ErrorCode::kTimeout);
  ASSERT_OK(at(1).send(0, 5, bytes_of("x"), past()));
  EXPECT_ERROR(at(0).recv(1, 0, past()), ErrorCode::kTimeout);
}

TEST_F(LocalTransportTest, AWaitingReceiverTimesOutWhenTheClockPasses) {
  const Instant deadline = env_.now() + 1h;
  std::jthread receiver(
      [&] { EXPECT_ERROR(at(0).recv(1, 0, deadline), ErrorCode::kTimeout); });
  env_.advance(1h);
}

TEST_F(LocalTransportTest, AFullQueueIsATimeoutUntilSomebodyReceives) {
  for (int i = 0; i < 4; ++i) ASSERT_OK(at(0).send(1, i, {}, past()));
  EXPECT_ERROR(at(0).send(1, 9, {}, past()), ErrorCode::kTimeout);
  EXPECT_OK(at(2).send(1, 9, {}, past()));
  ASSERT_OK(at(1).recv(0, 2, past()));
  EXPECT_OK(at(0).send(1, 9, {}, past()));
}

TEST_F(LocalTransportTest, MessagesOfADeadRankAreReceivedBeforeItIsMissed) {
  ASSERT_OK(at(0).send(1, 0, bytes_of("last words"), past()));
  network_.kill(0);
  EXPECT_EQ(text_of(*at(1).recv(0, 0, past())), "last words");
  EXPECT_ERROR(at(1).recv(0, 0, kNoDeadline), ErrorCode::kUnavailable);
  EXPECT_ERROR(at(1).send(0, 0, {}, kNoDeadline), ErrorCode::kUnavailable);
  EXPECT_ERROR(at(0).send(1, 0, {}, kNoDeadline), ErrorCode::kUnavailable);
  EXPECT_ERROR(at(0).recv(1, 0, kNoDeadline), ErrorCode::kUnavailable);
  EXPECT_OK(at(1).send(2, 0, {}, past()));
}

TEST_F(LocalTransportTest, ADeathWakesThoseWhoWait) {
  std::jthread receiver(
      [&] { EXPECT_ERROR(at(0).recv(1, 0, kNoDeadline), ErrorCode::kUnavailable); });
  std::jthread itself(
      [&] { EXPECT_ERROR(at(1).recv(2, 0, kNoDeadline), ErrorCode::kUnavailable); });
  network_.kill(1);
}

TEST_F(LocalTransportTest, DroppedMessagesAreLostInSilence) {
  network_.drop(0, 1, 2);
  for (const char* text : {"a", "b", "c"}) {
    ASSERT_OK(at(0).send(1, 0, bytes_of(text), past()));
  }
  ASSERT_OK(at(0).send(2, 0, bytes_of("d"), past()));
  EXPECT_EQ(text_of(*at(1).recv(0, 0, past())), "c");
  EXPECT_EQ(text_of(*at(2).recv(0, 0, past())), "d");
}

TEST_F(LocalTransportTest, AllGatherGivesEveryRankEverything) {
  on_all(network_, 3, [](Transport& transport) {
    for (int round = 0; round < 50; ++round) {
      const std::string mine(static_cast<size_t>(transport.rank() + round), 'x');
      const auto all = transport.all_gather(bytes_of(mine), kNoDeadline);
      ASSERT_OK(all);
      ASSERT_EQ(all->size(), 3u);
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_EQ((*all)[i].size(), i + static_cast<size_t>(round));
      }
    }
  });
}

TEST_F(LocalTransportTest, NobodyPassesABarrierBeforeAllHaveCome) {
  std::atomic<int> come = 0;
  on_all(network_, 3, [&](Transport& transport) {
    for (int round = 1; round <= 50; ++round) {
      ++come;
      EXPECT_OK(transport.barrier(kNoDeadline));
      EXPECT_GE(come, 3 * round);
    }
  });
}

TEST_F(LocalTransportTest, ACollectiveCallWithADeadRankIsUnavailableToAll) {
  network_.kill(2);
  on_all(network_, 2, [](Transport& transport) {
    EXPECT_ERROR(transport.barrier(kNoDeadline), ErrorCode::kUnavailable);
    EXPECT_ERROR(transport.all_gather({}, kNoDeadline), ErrorCode::kUnavailable);
  });
}

TEST_F(LocalTransportTest, WhatADeadRankContributedCounts) {
  EXPECT_ERROR(at(2).all_gather(bytes_of("last words"), past()), ErrorCode::kTimeout);
  network_.kill(2);
  on_all(network_, 2, [](Transport& transport) {
    const auto all = transport.all_gather(bytes_of("alive"), kNoDeadline);
    ASSERT_OK(all);
    EXPECT_EQ(text_of((*all)[2]), "last words");
    EXPECT_ERROR(transport.barrier(kNoDeadline), ErrorCode::kUnavailable);
  });
  EXPECT_ERROR(at(2).barrier(kNoDeadline), ErrorCode::kUnavailable);
}

TEST_F(LocalTransportTest, WhatAFailedCollectiveLeftDoesNotReachTheNext) {
  // Ranks 0 and 1 give up before rank 2 comes.
  EXPECT_ERROR(at(0).all_gather(bytes_of("old"), past()), ErrorCode::kTimeout);
  EXPECT_ERROR(at(1).all_gather(bytes_of("old"), past()), ErrorCode::kTimeout);
  // Rank 2 finds what they sent and is through; the next call is everybody's second.
  EXPECT_OK(at(2).all_gather(bytes_of("old"), past()));
  on_all(network_, 3, [](Transport& transport) {
    const auto all = transport.all_gather(bytes_of("new"), kNoDeadline);
    ASSERT_OK(all);
    for (const Bytes& one : *all) EXPECT_EQ(text_of(one), "new");
  });
}

TEST_F(LocalTransportTest, ALostMessageOfACollectiveIsATimeoutForItsReceiverAlone) {
  network_.drop(0, 1);
  std::atomic<int> waiting = 2;
  const Instant deadline = env_.now() + 1h;
  on_all(network_, 3, [&](Transport& transport) {
    const Result<void> passed = transport.barrier(deadline);
    if (transport.rank() == 1) {
      EXPECT_ERROR(passed, ErrorCode::kTimeout);
      return;
    }
    EXPECT_OK(passed);
    if (--waiting == 0) env_.advance(1h);
  });
}

TEST_F(LocalTransportTest, ManySendersAndReceiversAtOnce) {
  const auto env = make_posix_env();
  LocalNetwork network(*env, 4, 2);
  const Instant deadline = env->now() + 60s;
  on_all(network, 4, [&](Transport& transport) {
    std::jthread sender([&] {
      for (int i = 0; i < 100; ++i) {
        for (int to = 0; to < 4; ++to) {
          EXPECT_OK(transport.send(to, 0, bytes_of(std::to_string(i)), deadline));
        }
      }
    });
    for (int i = 0; i < 100; ++i) {
      for (int from = 0; from < 4; ++from) {
        EXPECT_EQ(text_of(*transport.recv(from, 0, deadline)), std::to_string(i));
      }
    }
  });
}

TEST(LocalTransportRealTimeTest, ADeadlineOfTheMachineEndsTheWait) {
  const auto env = make_posix_env();
  LocalNetwork network(*env, 2);
  EXPECT_ERROR(network.endpoint(0).recv(1, 0, env->now() + 1ms), ErrorCode::kTimeout);
}

TEST(LocalTransportDeathTest, RanksAndTagsOutOfRangeAreBugs) {
  MemoryEnv env;
  LocalNetwork network(env, 2);
  EXPECT_DEATH((void)network.endpoint(0).send(2, 0, {}, kNoDeadline), "rank 2 of 2");
  EXPECT_DEATH((void)network.endpoint(0).recv(1, -1, kNoDeadline), "tag -1");
}

}  // namespace
}  // namespace holdfast
