// Tests what only TCP has: processes that die, strangers and wrong bytes.
// transport_conformance_test.cpp has the rest.
#include "holdfast/transport/tcp_transport.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "holdfast/env/memory_env.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/transport/tcp_address_internal.h"
#include "holdfast/transport/tcp_frame_internal.h"
#include "holdfast/transport/transport_testing.h"

namespace holdfast {
namespace {

using namespace std::chrono_literals;

constexpr JobToken kToken = {std::byte{1}, std::byte{2}, std::byte{3}};
constexpr JobToken kOtherToken = {std::byte{1}, std::byte{2}, std::byte{4}};

// A plain TCP client that sends whatever the test chooses.
class Stranger {
 public:
  explicit Stranger(const std::string& address) {
    const SocketAddress to = parse_address(address).value();
    socket_ = ::socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
    HOLDFAST_CHECK(::connect(socket_, to.generic(), to.size) == 0, "no connection");
  }
  ~Stranger() { ::close(socket_); }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;

  void say(ByteView bytes) {
    HOLDFAST_CHECK(::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
                       static_cast<ssize_t>(bytes.size()),
                   "not sent");
  }
  // Receives exactly `size` bytes.
  Bytes hear(size_t size) {
    Bytes bytes(size);
    const ssize_t count = ::recv(socket_, bytes.data(), size, MSG_WAITALL);
    HOLDFAST_CHECK(count == static_cast<ssize_t>(size), "heard {} of {}", count, size);
    return bytes;
  }
  // Waits until the other side closes the connection.
  bool is_closed() {
    std::byte byte{};
    return ::recv(socket_, &byte, 1, 0) <= 0;
  }
  // Sends the hello of a rank.
  void introduce(const JobToken& token, int rank, int size) {
    say(encode_hello(token, rank, size));
  }

 private:
  int socket_ = -1;
};

class TcpTransportTest : public ::testing::Test {
 protected:
  std::unique_ptr<TcpTransport> listen(int rank, int size, TcpOptions options = {}) {
    options.token = kToken;
    if (options.host.empty()) options.host = "127.0.0.1";
    return TcpTransport::listen(env_, rank, size, options).value();
  }
  // Rank 0 of two ranks; the test itself plays rank 1.
  std::unique_ptr<TcpTransport> rank_0() { return listen(0, 2, {.most_bytes = 1000}); }
  std::unique_ptr<Stranger> rank_1(const TcpTransport& of) {
    auto peer = std::make_unique<Stranger>(of.address());
    peer->introduce(kToken, 1, 2);
    EXPECT_EQ(decode_hello(peer->hear(kHelloBytes), kToken, 2).value(), 0);
    return peer;
  }

  MemoryEnv env_;
};

void say(Stranger& to, const Outgoing& frame) {
  to.say(frame.head);
  if (frame.body != nullptr) to.say(*frame.body);
}

Outgoing message(Tag tag, std::string_view text) {
  return encode_frame(FrameKind::kMessage, tag,
                      std::make_shared<const Bytes>(copy_of(bytes_of(text))));
}

TEST_F(TcpTransportTest, AStrangerIsClosedAtOnceAndHarmsNobody) {
  const auto transport = rank_0();
  Stranger silent(transport->address());
  Stranger garbage(transport->address());
  garbage.say(Bytes(1000, std::byte{0x5a}));
  EXPECT_TRUE(garbage.is_closed());
  Stranger other_job(transport->address());
  other_job.introduce(kOtherToken, 1, 2);
  EXPECT_TRUE(other_job.is_closed());
  Stranger other_size(transport->address());
  other_size.introduce(kToken, 1, 3);
  EXPECT_TRUE(other_size.is_closed());
  Stranger below(transport->address());
  below.introduce(kToken, 0, 2);
  EXPECT_TRUE(below.is_closed());

  const auto peer = rank_1(*transport);
  say(*peer, message(4, "hello"));
  EXPECT_EQ(text_of(*transport->recv(1, 4, kNoDeadline)), "hello");
}

TEST_F(TcpTransportTest, ManyStrangersDoNotKeepARankOut) {
  const auto transport = listen(0, 2);
  std::vector<std::unique_ptr<Stranger>> strangers;
  for (int i = 0; i < 300; ++i) {
    strangers.push_back(std::make_unique<Stranger>(transport->address()));
  }
  const auto peer = rank_1(*transport);
  EXPECT_TRUE(strangers.front()->is_closed());
}

TEST_F(TcpTransportTest, NobodyIsLetInWhenAllAreThere) {
  const auto transport = rank_0();
  const std::string address = transport->address();
  const auto peer = rank_1(*transport);
  const SocketAddress to = parse_address(address).value();
  const int late = ::socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_NE(::connect(late, to.generic(), to.size), 0);
  ::close(late);
}

TEST_F(TcpTransportTest, ARankThatSaysGarbageIsGoneAfterItsMessages) {
  const Bytes noise(64, std::byte{0x5a});
  const Outgoing too_long =
      encode_frame(FrameKind::kMessage, 0, std::make_shared<const Bytes>(Bytes(1001)));
  const Outgoing not_sent = encode_frame(FrameKind::kReceived, 1);
  const Outgoing no_tag = encode_frame(FrameKind::kMessage, int64_t{1} << 40);
  for (const Bytes& bytes : {noise, too_long.head, not_sent.head, no_tag.head}) {
    const auto transport = rank_0();
    const auto peer = rank_1(*transport);
    say(*peer, message(4, "before"));
    peer->say(bytes);
    EXPECT_TRUE(peer->is_closed());
    EXPECT_EQ(text_of(*transport->recv(1, 4, kNoDeadline)), "before");
    EXPECT_ERROR(transport->recv(1, 4, kNoDeadline), ErrorCode::kUnavailable);
  }
}

TEST_F(TcpTransportTest, ARankThatSendsMoreThanTheQueueHoldsIsGone) {
  const auto transport = listen(0, 2, {.queue = 2});
  const auto peer = rank_1(*transport);
  for (int i = 0; i < 3; ++i) say(*peer, message(0, "x"));
  EXPECT_TRUE(peer->is_closed());
}

TEST_F(TcpTransportTest, HalfAFrameIsNoMessage) {
  const auto transport = rank_0();
  auto peer = rank_1(*transport);
  const Outgoing whole = message(4, "whole");
  peer->say(whole.head);
  peer->say(ByteView(*whole.body).first(2));
  EXPECT_ERROR(transport->recv(1, 4, env_.now()), ErrorCode::kTimeout);
  peer->say(ByteView(*whole.body).subspan(2));
  EXPECT_EQ(text_of(*transport->recv(1, 4, kNoDeadline)), "whole");
  peer->say(ByteView(whole.head).first(7));
  peer.reset();
  EXPECT_ERROR(transport->recv(1, 4, kNoDeadline), ErrorCode::kUnavailable);
}

TEST_F(TcpTransportTest, AMessageAboveTheLimitIsInvalid) {
  TcpRanks ranks(env_, 2, {.most_bytes = 10});
  EXPECT_ERROR(ranks.at(0).send(1, 0, Bytes(11), kNoDeadline), ErrorCode::kInvalid);
  EXPECT_ERROR(ranks.at(0).all_gather(Bytes(11), kNoDeadline), ErrorCode::kInvalid);
  EXPECT_OK(ranks.at(0).send(1, 0, Bytes(10), kNoDeadline));
}

TEST_F(TcpTransportTest, ConnectingNeedsAddressesThatAreSome) {
  const auto transport = listen(0, 2);
  const std::string own = transport->address();
  EXPECT_ERROR(transport->connect({own}, kNoDeadline), ErrorCode::kInvalid);
  for (const char* wrong : {"", ":", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "::1:80",
                            "no-such-host:80", "127.0.0.1:99999999", "[]:80"}) {
    EXPECT_ERROR(transport->connect({own, wrong}, kNoDeadline), ErrorCode::kInvalid);
  }
}

TEST_F(TcpTransportTest, ARankThatIsNotThereAnyMoreIsSeenWhileConnecting) {
  std::string nobody = listen(0, 2)->address();
  const auto transport = listen(1, 2);
  EXPECT_ERROR(transport->connect({nobody, transport->address()}, kNoDeadline),
               ErrorCode::kUnavailable);
}

TEST_F(TcpTransportTest, AnotherJobsRankIsSeenWhileConnecting) {
  const auto other =
      TcpTransport::listen(env_, 0, 2, {.token = kOtherToken, .host = "127.0.0.1"})
          .value();
  const auto transport = listen(1, 2);
  EXPECT_ERROR(
      transport->connect({other->address(), transport->address()}, kNoDeadline),
      ErrorCode::kUnavailable);
}

TEST_F(TcpTransportTest, ARankThatDoesNotComeIsATimeoutThatNamesIt) {
  const auto transport = listen(0, 3);
  const Stranger one(transport->address());
  const auto connected =
      transport->connect(std::vector<std::string>(3, transport->address()), env_.now());
  EXPECT_ERROR(connected, ErrorCode::kTimeout);
  EXPECT_NE(message_of(connected).find("2 of 3 ranks: 1, 2"), std::string::npos)
      << message_of(connected);
}

TEST_F(TcpTransportTest, AJobOfOneRankNeedsNobody) {
  const auto transport = listen(0, 1);
  ASSERT_OK(transport->connect({transport->address()}, env_.now()));
  EXPECT_OK(transport->barrier(env_.now()));
  ASSERT_OK(transport->send(0, 0, bytes_of("me"), env_.now()));
  EXPECT_EQ(text_of(*transport->recv(0, 0, env_.now())), "me");
}

TEST_F(TcpTransportTest, ListensAtTheHostItIsToldAndElseWhereOthersFindIt) {
  EXPECT_EQ(listen(0, 2, {.host = "127.0.0.1"})->address().find("127.0.0.1:"), 0u);
  EXPECT_ERROR(TcpTransport::listen(env_, 0, 2, {.host = "192.0.2.1"}),
               ErrorCode::kInvalid);
  EXPECT_ERROR(TcpTransport::listen(env_, 0, 2, {.host = "no such host"}),
               ErrorCode::kInvalid);
  const auto anywhere = TcpTransport::listen(env_, 0, 2, {});
  ASSERT_OK(anywhere);
  EXPECT_OK(parse_address((*anywhere)->address()));
  if (const auto six = TcpTransport::listen(env_, 0, 2, {.host = "::1"}); six.ok()) {
    EXPECT_EQ((*six)->address().find("[::1]:"), 0u);
    EXPECT_EQ(to_text(parse_address((*six)->address()).value()), (*six)->address());
  }
}

TEST_F(TcpTransportTest, WhatWasSentArrivesThoughItsSenderLeavesAtOnce) {
  const Bytes large(size_t{20} << 20, std::byte{7});
  TcpRanks ranks(env_, 2, {});
  ASSERT_OK(ranks.at(1).send(0, 0, large, kNoDeadline));
  ASSERT_OK(ranks.at(0).send(1, 0, large, kNoDeadline));
  ranks.at(1).close();
  EXPECT_EQ(*ranks.at(0).recv(1, 0, kNoDeadline), large);
  EXPECT_ERROR(ranks.at(0).recv(1, 0, kNoDeadline), ErrorCode::kUnavailable);
}

TEST_F(TcpTransportTest, BytesThatWereNotSentInTimeAreSentAsTheyWere) {
  const auto transport = listen(0, 2);
  const auto peer = rank_1(*transport);
  say(*peer, message(4, "here"));
  ASSERT_OK(transport->recv(1, 4, kNoDeadline));
  EXPECT_GT(peer->hear(kFrameHeaderBytes).size(), 0u);  // "received"
  Bytes large(size_t{20} << 20, std::byte{7});          // more than the sockets hold
  EXPECT_ERROR(transport->send_in_place(1, 4, large, env_.now()), ErrorCode::kTimeout);
  std::ranges::fill(large, std::byte{8});
  EXPECT_EQ(peer->hear(kFrameHeaderBytes).size(), kFrameHeaderBytes);
  EXPECT_TRUE(peer->hear(large.size()) == Bytes(large.size(), std::byte{7}));
}

TEST_F(TcpTransportTest, ManyThreadsAndTagsAtOnce) {
  constexpr int kRanks = 3;
  constexpr int kTags = 4;
  constexpr int kRounds = 20;
  const auto env = make_posix_env();
  TcpRanks ranks(*env, kRanks);
  const auto text = [](int from, Tag tag, int round) {
    const size_t size = round == 7 ? size_t{1} << 20 : 10;
    return std::to_string(from * 1000 + tag * 100 + round) + std::string(size, 'x');
  };
  const Instant deadline = env->now() + 60s;
  on_ranks(kRanks * kTags * 2, [&](int i) {
    const int rank = i % kRanks;
    const Tag tag = i / kRanks % kTags;
    Transport& transport = ranks.at(rank);
    for (int round = 0; round < kRounds; ++round) {
      for (int peer = 0; peer < kRanks; ++peer) {
        if (i < kRanks * kTags) {
          const std::string said = text(rank, tag, round);
          EXPECT_OK(transport.send(peer, tag, bytes_of(said), deadline));
        } else {
          const auto heard = transport.recv(peer, tag, deadline);
          ASSERT_OK(heard);
          EXPECT_EQ(text_of(*heard), text(peer, tag, round));
        }
      }
    }
    if (tag == 0 && i < kRanks * kTags) EXPECT_OK(transport.barrier(deadline));
  });
}

// A rank in a process of its own, which is forked before this process has threads. It
// sends its address, receives ours, connects, and lives until it is killed.
class OtherProcess {
 public:
  explicit OtherProcess(const std::function<void(TcpTransport&)>& body) {
    HOLDFAST_CHECK(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair_) == 0, "no pair");
    child_ = ::fork();
    if (child_ != 0) return;
    const auto env = make_posix_env();
    const auto transport =
        TcpTransport::listen(*env, 1, 2, {.token = kToken, .host = "127.0.0.1"})
            .value();
    tell(pair_[1], transport->address());
    const std::string other = hear(pair_[1]);
    HOLDFAST_CHECK(transport->connect({other, transport->address()}, kNoDeadline).ok(),
                   "cannot connect");
    body(*transport);
    while (true) ::pause();
  }
  ~OtherProcess() {
    kill();
    ::close(pair_[0]);
    ::close(pair_[1]);
  }
  OtherProcess(const OtherProcess&) = delete;
  OtherProcess& operator=(const OtherProcess&) = delete;

  // Rank 0 in this process, connected with the other process.
  std::unique_ptr<TcpTransport> connect(Env& env) {
    auto transport =
        TcpTransport::listen(env, 0, 2, {.token = kToken, .host = "127.0.0.1"}).value();
    const std::string other = hear(pair_[0]);
    tell(pair_[0], transport->address());
    EXPECT_OK(transport->connect({transport->address(), other}, kNoDeadline));
    return transport;
  }
  void kill() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
    child_ = -1;
  }

 private:
  static void tell(int to, std::string text) {
    text += '\n';
    HOLDFAST_CHECK(::write(to, text.data(), text.size()) > 0, "not told");
  }
  static std::string hear(int from) {
    std::string text;
    for (char c = 0; c != '\n'; text += c) {
      HOLDFAST_CHECK(::read(from, &c, 1) == 1, "not heard");
    }
    text.pop_back();
    return text;
  }

  int pair_[2] = {-1, -1};
  pid_t child_ = -1;
};

TEST(TcpProcessTest, AKilledProcessIsGoneAtOnceAndItsMessagesCount) {
  OtherProcess other([](TcpTransport& transport) {
    HOLDFAST_CHECK(transport.send(0, 3, bytes_of("last words"), kNoDeadline).ok(), "?");
    HOLDFAST_CHECK(transport.recv(0, 4, kNoDeadline).ok(), "?");
    HOLDFAST_CHECK(transport.send(0, 5, bytes_of("heard"), kNoDeadline).ok(), "?");
  });
  MemoryEnv env;  // its clock stands still, so no deadline ever passes
  const auto transport = other.connect(env);
  ASSERT_OK(transport->send(1, 4, {}, kNoDeadline));
  EXPECT_EQ(text_of(*transport->recv(1, 5, kNoDeadline)), "heard");
  std::jthread waiting([&] {
    EXPECT_ERROR(transport->recv(1, 9, kNoDeadline), ErrorCode::kUnavailable);
  });
  other.kill();
  waiting = {};
  EXPECT_EQ(text_of(*transport->recv(1, 3, kNoDeadline)), "last words");
  EXPECT_ERROR(transport->barrier(kNoDeadline), ErrorCode::kUnavailable);
  EXPECT_ERROR(transport->send(1, 0, {}, kNoDeadline), ErrorCode::kUnavailable);
}

TEST(TcpProcessTest, AForkedChildThatLetGoDoesNotHideItsParentsEnd) {
  int alive[2];
  ASSERT_EQ(::pipe(alive), 0);
  OtherProcess other([&](TcpTransport& transport) {
    // Forks a child that outlives this process, as a worker of a data loader may. It
    // lives until the test ends.
    if (::fork() == 0) {
      transport.close_in_child();
      ::close(alive[1]);
      char byte = 0;
      static_cast<void>(!::read(alive[0], &byte, 1));
      ::_exit(0);
    }
    HOLDFAST_CHECK(transport.send(0, 0, {}, kNoDeadline).ok(), "not sent");
  });
  MemoryEnv env;
  const auto transport = other.connect(env);
  ASSERT_OK(transport->recv(1, 0, kNoDeadline));
  other.kill();
  EXPECT_ERROR(transport->recv(1, 0, kNoDeadline), ErrorCode::kUnavailable);
  ::close(alive[0]);
  ::close(alive[1]);
}

}  // namespace
}  // namespace holdfast
