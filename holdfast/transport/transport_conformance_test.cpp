// Tests what every Transport promises, with each of them.
#include <gtest/gtest.h>

#include <atomic>

#include "holdfast/env/memory_env.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/transport/local_transport.h"
#include "holdfast/transport/switch_transport.h"
#include "holdfast/transport/transport_testing.h"

namespace holdfast::transport_conformance_test {
namespace {

using namespace std::chrono_literals;

constexpr int64_t kFewBytes = 1000;  // may wait for one receiver

// Connected ranks.
class Network {
 public:
  virtual ~Network() = default;
  virtual Transport& at(int rank) = 0;
  virtual void kill(int rank) = 0;
};

class LocalRanks : public Network {
 public:
  LocalRanks(Env& env, int size, size_t queue)
      : network_(env, size, queue, kFewBytes) {}
  Transport& at(int rank) override { return network_.endpoint(rank); }
  void kill(int rank) override { network_.kill(rank); }

 private:
  LocalNetwork network_;
};

class TcpNetwork : public Network {
 public:
  TcpNetwork(Env& env, int size, size_t queue)
      : ranks_(env, size, {.queue = queue, .queue_bytes = kFewBytes}) {}
  Transport& at(int rank) override { return ranks_.at(rank); }
  void kill(int rank) override { ranks_.at(rank).close(); }

 private:
  TcpRanks ranks_;
};

// Ranks behind a SwitchTransport whose inner transport was replaced once.
class SwitchedRanks : public Network {
 public:
  SwitchedRanks(Env& env, int size, size_t queue)
      : old_(std::make_shared<LocalNetwork>(env, size, queue, kFewBytes)),
        network_(std::make_shared<LocalNetwork>(env, size, queue, kFewBytes)) {
    for (int rank = 0; rank < size; ++rank) {
      ranks_.push_back(std::make_unique<SwitchTransport>(in(old_, rank)));
      ranks_.back()->replace(in(network_, rank));
    }
  }
  Transport& at(int rank) override { return *ranks_[static_cast<size_t>(rank)]; }
  void kill(int rank) override { network_->kill(rank); }

 private:
  using Networks = std::shared_ptr<LocalNetwork>;
  static std::shared_ptr<Transport> in(const Networks& network, int rank) {
    return {network, &network->endpoint(rank)};
  }

  Networks old_, network_;
  std::vector<std::unique_ptr<SwitchTransport>> ranks_;
};

struct Kind {
  const char* name;
  std::function<std::unique_ptr<Network>(Env&, int, size_t)> make;

  friend void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }
};

template <typename T>
std::unique_ptr<Network> make(Env& env, int size, size_t queue) {
  return std::make_unique<T>(env, size, queue);
}

class TransportConformanceTest : public ::testing::TestWithParam<Kind> {
 protected:
  Instant past() { return env_.now(); }
  Transport& at(int rank) { return network_->at(rank); }
  std::string heard(int by, int from, Tag tag) {
    return std::string(text_of(*at(by).recv(from, tag, kNoDeadline)));
  }
  void on_all(int size, const std::function<void(Transport&)>& body) {
    on_ranks(size, [&](int rank) { body(at(rank)); });
  }

  MemoryEnv env_;
  std::unique_ptr<Network> network_ = GetParam().make(env_, 3, 4);
};

INSTANTIATE_TEST_SUITE_P(All, TransportConformanceTest,
                         ::testing::Values(Kind{"Local", make<LocalRanks>},
                                           Kind{"Tcp", make<TcpNetwork>},
                                           Kind{"Switched", make<SwitchedRanks>}),
                         [](const auto& kind) { return kind.param.name; });

TEST_P(TransportConformanceTest, EndpointsKnowTheirPlace) {
  EXPECT_EQ(at(2).rank(), 2);
  EXPECT_EQ(at(2).size(), 3);
}

TEST_P(TransportConformanceTest, MessagesArriveInOrderBySenderAndTag) {
  ASSERT_OK(at(0).send(2, 7, bytes_of("a"), past()));
  ASSERT_OK(at(0).send(2, 7, bytes_of("b"), past()));
  ASSERT_OK(at(0).send(2, 8, bytes_of("c"), past()));
  ASSERT_OK(at(1).send(2, 7, bytes_of("d"), past()));
  EXPECT_EQ(heard(2, 1, 7), "d");
  EXPECT_EQ(heard(2, 0, 8), "c");
  EXPECT_EQ(heard(2, 0, 7), "a");
  EXPECT_EQ(heard(2, 0, 7), "b");
}

TEST_P(TransportConformanceTest, ARankMaySendToItselfAndEmptyMessagesAreMessages) {
  ASSERT_OK(at(1).send(1, 0, {}, past()));
  EXPECT_TRUE(at(1).recv(1, 0, kNoDeadline)->empty());
}

TEST_P(TransportConformanceTest, NothingToReceiveIsATimeout) {
  EXPECT_ERROR(at(0).recv(1, 0, past()), ErrorCode::kTimeout);
  ASSERT_OK(at(1).send(0, 5, bytes_of("x"), past()));
  EXPECT_ERROR(at(0).recv(1, 0, past()), ErrorCode::kTimeout);
}

TEST_P(TransportConformanceTest, AWaitingReceiverTimesOutWhenTheClockPasses) {
  const Instant deadline = env_.now() + 1h;
  std::jthread receiver(
      [&] { EXPECT_ERROR(at(0).recv(1, 0, deadline), ErrorCode::kTimeout); });
  env_.advance(1h);
}

TEST_P(TransportConformanceTest, AFullQueueIsATimeoutUntilSomebodyReceives) {
  for (int i = 0; i < 4; ++i) ASSERT_OK(at(0).send(1, 9, {}, past()));
  EXPECT_ERROR(at(0).send(1, 9, {}, past()), ErrorCode::kTimeout);
  EXPECT_OK(at(2).send(1, 9, {}, past()));
  ASSERT_OK(at(1).recv(0, 9, kNoDeadline));
  EXPECT_OK(at(0).send(1, 9, {}, kNoDeadline));
}

TEST_P(TransportConformanceTest, AQueueFullOfBytesIsATimeoutUntilSomebodyReceives) {
  ASSERT_OK(at(0).send(1, 0, Bytes(600), past()));
  EXPECT_ERROR(at(0).send(1, 0, Bytes(401), past()), ErrorCode::kTimeout);
  EXPECT_ERROR(at(0).send_in_place(1, 0, Bytes(401), past()), ErrorCode::kTimeout);
  ASSERT_OK(at(0).send(1, 0, Bytes(400), past()));
  ASSERT_OK(at(1).recv(0, 0, kNoDeadline));
  ASSERT_OK(at(1).recv(0, 0, kNoDeadline));
  // A message that is longer than the limit is on its way alone.
  ASSERT_OK(at(0).send(1, 0, Bytes(5000), kNoDeadline));
  EXPECT_ERROR(at(0).send(1, 0, Bytes(1), past()), ErrorCode::kTimeout);
  EXPECT_EQ(at(1).recv(0, 0, kNoDeadline)->size(), 5000u);
  EXPECT_OK(at(0).send(1, 0, Bytes(1), kNoDeadline));
}

// The receiver may wait for any tag first.
TEST_P(TransportConformanceTest, AFullQueueOfOneTagKeepsNoOtherTagBack) {
  ASSERT_OK(at(0).send(1, 3, Bytes(1), past()));
  ASSERT_OK(at(0).send(1, 0, Bytes(5000), past()));
  EXPECT_ERROR(at(0).send(1, 0, Bytes(1), past()), ErrorCode::kTimeout);
  ASSERT_OK(at(0).send(1, 1, Bytes(6000), past()));
  ASSERT_OK(at(0).send_in_place(1, 2, bytes_of("short"), kNoDeadline));
  EXPECT_EQ(heard(1, 0, 2), "short");
  EXPECT_EQ(at(1).recv(0, 1, kNoDeadline)->size(), 6000u);
  EXPECT_ERROR(at(0).send(1, 0, Bytes(1), past()), ErrorCode::kTimeout);
  EXPECT_EQ(at(1).recv(0, 0, kNoDeadline)->size(), 5000u);
  EXPECT_EQ(at(1).recv(0, 3, kNoDeadline)->size(), 1u);
  EXPECT_OK(at(0).send(1, 0, Bytes(5000), kNoDeadline));
}

TEST_P(TransportConformanceTest, BytesAreSentFromTheirPlaceAndReceivedIntoOne) {
  Bytes large(size_t{5} << 20, std::byte{3});
  std::jthread sender([&] {
    EXPECT_OK(at(0).send_in_place(1, 0, large, kNoDeadline));
    std::fill(large.begin(), large.end(), std::byte{4});  // too late to be sent
    EXPECT_OK(at(0).send_in_place(1, 0, bytes_of("end"), kNoDeadline));
  });
  Bytes into(large.size());
  const auto size = at(1).recv_into(0, 0, into, kNoDeadline);
  ASSERT_OK(size);
  EXPECT_EQ(*size, into.size());
  EXPECT_EQ(into, Bytes(into.size(), std::byte{3}));
  EXPECT_ERROR(at(1).recv_into(0, 0, ByteSpan(into).first(2), kNoDeadline),
               ErrorCode::kInvalid);
}

TEST_P(TransportConformanceTest, MessagesKeepTheirOrderWhereverTheyAreReceived) {
  const auto env = make_posix_env();
  const auto network = GetParam().make(*env, 2, 100);
  constexpr int kMessages = 400;
  const auto size_of = [](int i) { return static_cast<size_t>(1 + i * 37 % 900); };
  std::jthread sender([&] {
    for (int i = 0; i < kMessages; ++i) {
      const Bytes message(size_of(i), static_cast<std::byte>(i % 251));
      EXPECT_OK(network->at(0).send_in_place(1, 0, message, kNoDeadline));
    }
  });
  Bytes into(1000);
  for (int i = 0; i < kMessages; ++i) {
    // Some waits end before the message is there, perhaps in its middle.
    auto got = network->at(1).recv_into(0, 0, into, env->now());
    while (!got.ok()) {
      ASSERT_EQ(got.error().code(), ErrorCode::kTimeout);
      got =
          network->at(1).recv_into(0, 0, into, env->now() + (i % 3 == 0 ? 0us : 200us));
    }
    ASSERT_EQ(*got, size_of(i));
    EXPECT_TRUE(
        std::all_of(into.begin(), into.begin() + static_cast<long>(*got),
                    [&](std::byte b) { return b == static_cast<std::byte>(i % 251); }))
        << i;
  }
}

TEST_P(TransportConformanceTest, MessagesOfADeadRankAreReceivedBeforeItIsMissed) {
  ASSERT_OK(at(0).send(1, 0, bytes_of("last words"), past()));
  network_->kill(0);
  EXPECT_EQ(heard(1, 0, 0), "last words");
  EXPECT_ERROR(at(1).recv(0, 0, kNoDeadline), ErrorCode::kUnavailable);
  EXPECT_ERROR(at(1).send(0, 0, {}, kNoDeadline), ErrorCode::kUnavailable);
  EXPECT_ERROR(at(0).send(1, 0, {}, kNoDeadline), ErrorCode::kUnavailable);
  EXPECT_ERROR(at(0).recv(1, 0, kNoDeadline), ErrorCode::kUnavailable);
  EXPECT_OK(at(1).send(2, 0, {}, past()));
}

TEST_P(TransportConformanceTest, ADeathWakesThoseWhoWait) {
  std::jthread receiver(
      [&] { EXPECT_ERROR(at(0).recv(1, 0, kNoDeadline), ErrorCode::kUnavailable); });
  std::jthread itself(
      [&] { EXPECT_ERROR(at(1).recv(2, 0, kNoDeadline), ErrorCode::kUnavailable); });
  network_->kill(1);
}

TEST_P(TransportConformanceTest, AllGatherGivesEveryRankEverything) {
  on_all(3, [](Transport& transport) {
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

TEST_P(TransportConformanceTest, NobodyPassesABarrierBeforeAllHaveCome) {
  std::atomic<int> come = 0;
  on_all(3, [&](Transport& transport) {
    for (int round = 1; round <= 50; ++round) {
      ++come;
      EXPECT_OK(transport.barrier(kNoDeadline));
      EXPECT_GE(come, 3 * round);
    }
  });
}

TEST_P(TransportConformanceTest, ACollectiveCallWithADeadRankIsUnavailableToAll) {
  network_->kill(2);
  on_all(2, [](Transport& transport) {
    EXPECT_ERROR(transport.barrier(kNoDeadline), ErrorCode::kUnavailable);
    EXPECT_ERROR(transport.all_gather({}, kNoDeadline), ErrorCode::kUnavailable);
  });
}

TEST_P(TransportConformanceTest, WhatADeadRankContributedCounts) {
  EXPECT_ERROR(at(2).all_gather(bytes_of("last words"), past()), ErrorCode::kTimeout);
  network_->kill(2);
  on_all(2, [](Transport& transport) {
    const auto all = transport.all_gather(bytes_of("alive"), kNoDeadline);
    ASSERT_OK(all);
    EXPECT_EQ(text_of((*all)[2]), "last words");
    EXPECT_ERROR(transport.barrier(kNoDeadline), ErrorCode::kUnavailable);
  });
  EXPECT_ERROR(at(2).barrier(kNoDeadline), ErrorCode::kUnavailable);
}

TEST_P(TransportConformanceTest, WhatAFailedCollectiveLeftDoesNotReachTheNext) {
  // Ranks 0 and 1 give up before rank 2 comes.
  EXPECT_ERROR(at(0).all_gather(bytes_of("old"), past()), ErrorCode::kTimeout);
  EXPECT_ERROR(at(1).all_gather(bytes_of("old"), past()), ErrorCode::kTimeout);
  // Rank 2 finds what they sent and succeeds. The next call is the second of every
  // rank.
  EXPECT_OK(at(2).all_gather(bytes_of("old"), kNoDeadline));
  on_all(3, [](Transport& transport) {
    const auto all = transport.all_gather(bytes_of("new"), kNoDeadline);
    ASSERT_OK(all);
    for (const Bytes& one : *all) EXPECT_EQ(text_of(one), "new");
  });
}

TEST_P(TransportConformanceTest, ManySendersAndReceiversAtOnce) {
  const auto env = make_posix_env();
  const auto network = GetParam().make(*env, 4, 2);
  const Instant deadline = env->now() + 60s;
  on_ranks(4, [&](int rank) {
    Transport& transport = network->at(rank);
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

TEST_P(TransportConformanceTest, ADeadlineOfTheMachineEndsTheWait) {
  const auto env = make_posix_env();
  const auto network = GetParam().make(*env, 2, 4);
  EXPECT_ERROR(network->at(0).recv(1, 0, env->now() + 1ms), ErrorCode::kTimeout);
}

TEST_P(TransportConformanceTest, RanksAndTagsOutOfRangeAreBugs) {
  EXPECT_DEATH((void)at(0).send(3, 0, {}, kNoDeadline), "rank 3 of 3");
  EXPECT_DEATH((void)at(0).recv(1, -1, kNoDeadline), "tag -1");
}

}  // namespace
}  // namespace holdfast::transport_conformance_test
