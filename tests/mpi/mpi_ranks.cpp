// Tests of the transport by MPI. Every rank runs all tests, in the same order:
//
//   mpirun -n 8 mpi_ranks multiple|serialized|funneled
//
// The argument is the level of threads that MPI is initialised with. Only rank 0 prints
// what passes.
#include <gtest/gtest.h>
#include <mpi.h>

#include <thread>

#include "holdfast/exchange/live_state_testing.h"
#include "holdfast/mpi/mpi_transport.h"

namespace holdfast::tests {
namespace {

using namespace std::chrono_literals;

int level_of_threads = MPI_THREAD_SINGLE;

class MpiRanksTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (level_of_threads < MPI_THREAD_SERIALIZED) GTEST_SKIP() << "too few threads";
    start({});
  }
  void start(const MpiOptions& options) {
    transport_.reset();
    auto started = start_mpi_transport(*env_, MPI_COMM_WORLD, soon(), options);
    ASSERT_OK(started);
    transport_ = *std::move(started);
  }
  Transport& own() { return *transport_; }
  int rank() const { return transport_->rank(); }
  int size() const { return transport_->size(); }
  int next() const { return (rank() + 1) % size(); }
  int previous() const { return (rank() + size() - 1) % size(); }
  Instant soon() { return env_->now() + 60s; }
  Instant past() { return env_->now(); }
  std::string heard(int from, Tag tag) {
    const Result<Bytes> said = own().recv(from, tag, soon());
    return said.ok() ? std::string(text_of(*said)) : message_of(said);
  }

  std::unique_ptr<Env> env_ = make_posix_env();
  std::unique_ptr<Transport> transport_;
};

TEST(MpiThreadsTest, ALevelOfThreadsThatIsTooLowIsRefused) {
  if (level_of_threads >= MPI_THREAD_SERIALIZED) GTEST_SKIP() << "enough threads";
  const auto env = make_posix_env();
  EXPECT_ERROR(start_mpi_transport(*env, MPI_COMM_WORLD, kNoDeadline),
               ErrorCode::kInvalid);
}

TEST_F(MpiRanksTest, EndpointsKnowTheirPlace) {
  const auto all = own().all_gather(bytes_of(std::to_string(rank())), soon());
  ASSERT_OK(all);
  ASSERT_EQ(static_cast<int>(all->size()), size());
  for (size_t r = 0; r < all->size(); ++r) {
    EXPECT_EQ(text_of((*all)[r]), std::to_string(r));
  }
}

TEST_F(MpiRanksTest, MessagesArriveInOrderBySenderAndTag) {
  ASSERT_OK(own().send(next(), 7, bytes_of("a"), soon()));
  ASSERT_OK(own().send(next(), 7, bytes_of("b"), soon()));
  ASSERT_OK(own().send(next(), 0x7fffffff, bytes_of("c"), soon()));
  EXPECT_EQ(heard(previous(), 0x7fffffff), "c");
  EXPECT_EQ(heard(previous(), 7), "a");
  EXPECT_EQ(heard(previous(), 7), "b");
}

TEST_F(MpiRanksTest, ARankMaySendToItselfAndEmptyMessagesAreMessages) {
  for (const int to : {rank(), next()}) ASSERT_OK(own().send(to, 0, {}, soon()));
  for (const int from : {rank(), previous()}) {
    const auto said = own().recv(from, 0, soon());
    ASSERT_OK(said);
    EXPECT_TRUE(said->empty());
  }
}

TEST_F(MpiRanksTest, NothingToReceiveIsATimeoutAtTheDeadline) {
  const Instant deadline = env_->now() + 50ms;
  EXPECT_ERROR(own().recv(previous(), 0, deadline), ErrorCode::kTimeout);
  EXPECT_GE(env_->now(), deadline);
  EXPECT_LT(env_->now(), deadline + 20s);
  Bytes into(8);
  EXPECT_ERROR(own().recv_into(previous(), 0, into, past()), ErrorCode::kTimeout);
  EXPECT_OK(own().barrier(soon()));  // a rank that has left is no timeout
}

TEST_F(MpiRanksTest, AFullQueueIsATimeoutUntilSomebodyReceives) {
  start({.queue = 4});
  for (int i = 0; i < 4; ++i) ASSERT_OK(own().send(next(), i, {}, soon()));
  EXPECT_ERROR(own().send(next(), 9, {}, env_->now() + 20ms), ErrorCode::kTimeout);
  ASSERT_OK(own().barrier(soon()));
  ASSERT_OK(own().recv(previous(), 2, soon()));
  ASSERT_OK(own().send(next(), 9, bytes_of("room"), soon()));
  EXPECT_EQ(heard(previous(), 9), "room");
}

TEST_F(MpiRanksTest, AQueueFullOfBytesIsATimeoutUntilSomebodyReceives) {
  start({.queue_bytes = 1000});
  ASSERT_OK(own().send(next(), 0, Bytes(600), soon()));
  EXPECT_ERROR(own().send_in_place(next(), 0, Bytes(401), env_->now() + 20ms),
               ErrorCode::kTimeout);
  ASSERT_OK(own().barrier(soon()));
  ASSERT_OK(own().recv(previous(), 0, soon()));
  // A message that is longer than the limit is on its way alone.
  ASSERT_OK(own().send_in_place(next(), 0, Bytes(5000), soon()));
  const auto said = own().recv(previous(), 0, soon());
  ASSERT_OK(said);
  EXPECT_EQ(said->size(), 5000u);
}

TEST_F(MpiRanksTest, ALongerMessageThanAllowedIsRefused) {
  start({.most_bytes = 1000});
  EXPECT_ERROR(own().send(next(), 0, Bytes(1001), soon()), ErrorCode::kInvalid);
}

TEST_F(MpiRanksTest, BytesAreSentFromTheirPlaceAndReceivedIntoOne) {
  constexpr size_t kBytes = size_t{5} << 20;
  std::jthread sender([&] {
    Bytes large(kBytes, static_cast<std::byte>(rank()));
    EXPECT_OK(own().send_in_place(next(), 0, large, soon()));
    std::fill(large.begin(), large.end(), std::byte{99});  // too late to be sent
    EXPECT_OK(own().send_in_place(next(), 0, bytes_of("end"), soon()));
  });
  Bytes into(kBytes);
  const auto got = own().recv_into(previous(), 0, into, soon());
  ASSERT_OK(got);
  EXPECT_EQ(*got, kBytes);
  EXPECT_EQ(into, Bytes(kBytes, static_cast<std::byte>(previous())));
  EXPECT_ERROR(own().recv_into(previous(), 0, ByteSpan(into).first(2), soon()),
               ErrorCode::kInvalid);
}

TEST_F(MpiRanksTest, MessagesKeepTheirOrderWhereverTheyAreReceived) {
  constexpr int kMessages = 400;
  // Some are sent at once by MPI, and some only when the receiver is ready.
  const auto size_of = [](int i) {
    return static_cast<size_t>(1 + i * 37 % 900) * (i % 7 == 0 ? 300 : 1);
  };
  std::jthread sender([&] {
    for (int i = 0; i < kMessages; ++i) {
      const Bytes message(size_of(i), static_cast<std::byte>(i % 251));
      EXPECT_OK(own().send_in_place(next(), 0, message, soon()));
    }
  });
  Bytes into(300'000);
  const Instant end = soon();
  for (int i = 0; i < kMessages; ++i) {
    auto got = own().recv_into(previous(), 0, into, past());
    while (!got.ok()) {
      ASSERT_EQ(got.error().code(), ErrorCode::kTimeout);
      ASSERT_LT(env_->now(), end);
      got = own().recv_into(previous(), 0, into,
                            env_->now() + (i % 3 == 0 ? 0us : 200us));
    }
    ASSERT_EQ(*got, size_of(i));
    EXPECT_TRUE(std::all_of(into.begin(), into.begin() + static_cast<long>(*got),
                            [&](std::byte b) {
                              return b == static_cast<std::byte>(i % 251);
                            }))
        << i;
  }
}

TEST_F(MpiRanksTest, NobodyPassesABarrierBeforeAllHaveCome) {
  for (int round = 0; round < 20; ++round) {
    if (rank() == round % size()) std::this_thread::sleep_for(2ms);
    // Ranks of one machine have one clock.
    const auto came = std::to_string(env_->now().time_since_epoch().count());
    ASSERT_OK(own().barrier(soon()));
    const Instant passed = env_->now();
    const auto all = own().all_gather(bytes_of(came), soon());
    ASSERT_OK(all);
    for (const Bytes& one : *all) {
      EXPECT_GE(passed.time_since_epoch().count(),
                std::stoll(std::string(text_of(one))));
    }
  }
}

TEST_F(MpiRanksTest, AMissingRankIsNamedAndWhatIsLeftDoesNotReachTheNextCall) {
  const int last = size() - 1;
  if (rank() == last) {
    // Comes when all others have given up, and finds what they sent.
    for (int from = 0; from < last; ++from) EXPECT_EQ(heard(from, 0), "gave up");
    EXPECT_OK(own().all_gather(bytes_of("old"), soon()));
  } else {
    const auto first = own().all_gather(bytes_of("old"), env_->now() + 100ms);
    EXPECT_ERROR(first, ErrorCode::kTimeout);
    EXPECT_NE(message_of(first).find(std::to_string(last)), std::string::npos);
    EXPECT_OK(own().send(last, 0, bytes_of("gave up"), soon()));
  }
  const auto all = own().all_gather(bytes_of("new"), soon());
  ASSERT_OK(all);
  for (const Bytes& one : *all) EXPECT_EQ(text_of(one), "new");
}

TEST_F(MpiRanksTest, ManySendersAndReceiversAtOnce) {
  start({.queue = 2});
  std::jthread sender([&] {
    for (int i = 0; i < 50; ++i) {
      for (int to = 0; to < size(); ++to) {
        EXPECT_OK(own().send(to, 0, bytes_of(std::to_string(i)), soon()));
      }
    }
  });
  for (int i = 0; i < 50; ++i) {
    for (int from = 0; from < size(); ++from) {
      EXPECT_EQ(heard(from, 0), std::to_string(i));
    }
  }
}

TEST_F(MpiRanksTest, ARankThatLeavesIsMissedAfterItsLastWords) {
  const int last = size() - 1;
  if (rank() == last) {
    for (int to = 0; to < last; ++to) {
      EXPECT_OK(own().send(to, 0, bytes_of("last words"), soon()));
    }
    transport_.reset();
    return;
  }
  EXPECT_EQ(heard(last, 0), "last words");
  EXPECT_ERROR(own().recv(last, 0, soon()), ErrorCode::kUnavailable);
  EXPECT_ERROR(own().send(last, 0, {}, soon()), ErrorCode::kUnavailable);
  EXPECT_ERROR(own().barrier(soon()), ErrorCode::kUnavailable);
}

TEST_F(MpiRanksTest, ARankThatStartsLateIsNotAloneAndAllMayTryAgain) {
  transport_.reset();
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size == 1) GTEST_SKIP() << "needs 2 ranks";
  // The last rank comes when all others have given up.
  if (rank == size - 1) MPI_Barrier(MPI_COMM_WORLD);
  EXPECT_ERROR(start_mpi_transport(*env_, MPI_COMM_WORLD, env_->now() + 200ms),
               ErrorCode::kTimeout);
  if (rank != size - 1) MPI_Barrier(MPI_COMM_WORLD);
  MPI_Barrier(MPI_COMM_WORLD);  // nobody tries again before the last one has given up, too
  for (int again = 0; again < 2; ++again) {
    start({});
    const auto all = own().all_gather(bytes_of(std::to_string(rank)), soon());
    ASSERT_OK(all);
    for (size_t r = 0; r < all->size(); ++r) {
      EXPECT_EQ(text_of((*all)[r]), std::to_string(r));
    }
  }
}

// A part of the processes, in another order: the odd ones, from the last to the first.
TEST_F(MpiRanksTest, TheProcessesOfACommunicatorHaveItsRanks) {
  const int world = rank();
  const bool takes_part = world % 2 == 1;
  MPI_Comm some = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, takes_part ? 0 : MPI_UNDEFINED, -world, &some);
  const auto started = start_mpi_transport(*env_, some, soon());
  if (!takes_part) {
    EXPECT_ERROR(started, ErrorCode::kInvalid);
    return;
  }
  ASSERT_OK(started);
  MPI_Comm_free(&some);  // the transport has a duplicate
  Transport& odd = **started;
  EXPECT_EQ(odd.size(), size() / 2);
  EXPECT_EQ(odd.rank(), odd.size() - 1 - world / 2);
  const auto all = odd.all_gather(bytes_of(std::to_string(world)), soon());
  ASSERT_OK(all);
  for (int r = 0; r < odd.size(); ++r) {
    EXPECT_EQ(text_of((*all)[static_cast<size_t>(r)]),
              std::to_string(2 * (odd.size() - r) - 1));
  }
}

TEST_F(MpiRanksTest, ACommunicatorBetweenTwoGroupsIsRefused) {
  if (size() < 2) GTEST_SKIP() << "needs 2 ranks";
  MPI_Comm half = MPI_COMM_NULL, between = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank() % 2, 0, &half);
  MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - rank() % 2, 0, &between);
  EXPECT_ERROR(start_mpi_transport(*env_, between, soon()), ErrorCode::kInvalid);
  MPI_Comm_free(&between);
  MPI_Comm_free(&half);
}

// Carries the change out. Every process makes the same state, and uses its own rank's.
// Ranks that hold nothing take part, too.
void exchange_all(Env& env, Transport& transport, LiveState& state,
                  const ExchangeOptions& options) {
  const int rank = transport.rank();
  ASSERT_LE(state.ranks(), transport.size());
  ExchangeTask task = state.task_of(std::min(rank, state.ranks() - 1));
  if (rank >= state.ranks()) {
    task.holder = fmt::format("spare {}", rank);
    task.old = {};
  }
  HostStorage storage;
  const auto done = exchange(env, transport, task, storage, options);
  ASSERT_OK(done);
  if (rank < state.ranks()) {
    EXPECT_TRUE(state.is_right(static_cast<size_t>(rank), *done));
  }
  int64_t own = 0;
  for (const int64_t bytes : done->received) own += bytes;
  const auto counted =
      transport.all_gather(bytes_of(std::to_string(own)), env.now() + 60s);
  ASSERT_OK(counted);
  int64_t received = 0;
  for (const Bytes& one : *counted) received += std::stoll(std::string(text_of(one)));
  EXPECT_EQ(received, state.made.figures.moved);
  EXPECT_EQ(received, state.made.figures.moved_bound);
  const bool only_by_mpi = !options.direct && !options.shared_memory;
  if (only_by_mpi) {
    EXPECT_EQ(done->received[static_cast<size_t>(Carrier::kTransport)], own);
  }
}

TEST_F(MpiRanksTest, AnyLayoutBecomesAnyOther) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    LiveState state = random_change(seed);
    ExchangeOptions options{.direct = false, .shared_memory = seed % 4 == 0};
    if (seed % 2 == 0) options.mode = ExchangeMode::kWindowed;
    ASSERT_NO_FATAL_FAILURE(exchange_all(*env_, own(), state, options));
  }
}

// Four ranks hold rows of the tensors, and eight shall: several windows for each pair.
LiveState four_to_eight() {
  const std::vector<Tensor> tensors{tensor_of("a", {3000, 1000}),
                                    tensor_of("b", {1600, 900}, Dtype::kBf16)};
  const auto cut = [&](int ranks) {
    RankLayout layout(tensors, ranks);
    for (TensorId t = 0; t < tensors.size(); ++t) {
      const int64_t n = tensors[t].shape[0];
      for (int r = 0; r < ranks; ++r) {
        layout.put(t,
                   Box::whole(tensors[t].shape)
                       .with(0, {n * r / ranks, n * (r + 1) / ranks}),
                   r);
      }
    }
    return layout.build();
  };
  return LiveState(cut(4), cut(8), Topology::uniform(1));
}

TEST_F(MpiRanksTest, FourBecomeEightInBothModes) {
  if (size() < 8) GTEST_SKIP() << "needs 8 ranks";
  for (const ExchangeMode mode : {ExchangeMode::kShadow, ExchangeMode::kWindowed}) {
    LiveState state = four_to_eight();
    ASSERT_NO_FATAL_FAILURE(exchange_all(
        *env_, own(), state, {.mode = mode, .direct = false, .shared_memory = false}));
  }
}

TEST_F(MpiRanksTest, ARankThatDoesNotComeEndsTheExchangeAtItsDeadline) {
  if (size() < 8) GTEST_SKIP() << "needs 8 ranks";
  LiveState state = four_to_eight();
  const int last = size() - 1;
  if (rank() != last) {
    const Instant begun = env_->now();
    HostStorage storage;
    const auto done = exchange(*env_, own(), state.task_of(rank()), storage,
                               {.deadline = begun + 300ms, .direct = false});
    EXPECT_ERROR(done, ErrorCode::kTimeout);
    EXPECT_LT(env_->now(), begun + 20s);
    EXPECT_TRUE(state.old_is_untouched());
    EXPECT_EQ(storage.bytes(), 0);
    // No rank leaves before all have waited in vain: that would be another error.
    EXPECT_OK(own().send(last, 0, bytes_of("waited"), soon()));
    EXPECT_EQ(heard(last, 1), "all have waited");
  } else {
    for (int from = 0; from < last; ++from) EXPECT_EQ(heard(from, 0), "waited");
    for (int to = 0; to < last; ++to) {
      EXPECT_OK(own().send(to, 1, bytes_of("all have waited"), soon()));
    }
  }
}

// Prints failures only, with the rank.
class FailurePrinter : public ::testing::EmptyTestEventListener {
 public:
  explicit FailurePrinter(int rank) : rank_(rank) {}
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    fmt::print(stderr, "rank {}: {}:{}: {}\n", rank_,
               result.file_name() == nullptr ? "?" : result.file_name(),
               result.line_number(), result.message());
  }

 private:
  const int rank_;
};

int run_as_rank(int argc, char** argv) {
  const std::string_view asked = argc > 1 ? argv[1] : "multiple";
  const int wanted = asked == "multiple"     ? MPI_THREAD_MULTIPLE
                     : asked == "serialized" ? MPI_THREAD_SERIALIZED
                                             : MPI_THREAD_FUNNELED;
  MPI_Init_thread(&argc, &argv, wanted, &level_of_threads);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank != 0) {
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailurePrinter(rank));
  }
  const int outcome = RUN_ALL_TESTS();
  MPI_Finalize();
  return outcome;
}

}  // namespace
}  // namespace holdfast::tests

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  return holdfast::tests::run_as_rank(argc, argv);
}
