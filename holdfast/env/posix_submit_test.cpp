// Tests submitted transfers of the machine's files, through a ring and by threads. A
// scripted ring gives answers that a real ring here does not give.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <limits>
#include <thread>

#include "holdfast/base/testing.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/env/posix_file_internal.h"

namespace holdfast {
namespace {

Bytes pattern(size_t size, int seed) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>((i * 31 + i / 4096) ^ static_cast<size_t>(seed));
  }
  return bytes;
}

class SubmitTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam() && make_uring(1) == nullptr) GTEST_SKIP() << "no io_uring here";
  }
  std::unique_ptr<File> open(OpenMode mode, bool direct = false) {
    return env_->open(path_, {.mode = mode, .direct = direct}).value();
  }

  std::unique_ptr<Env> env_ =
      make_posix_env({.io_threads = 3, .in_flight = 4, .uring = GetParam()});
  TempFolder temp_;
  const Path path_ = temp_.path() / "a";
};

INSTANTIATE_TEST_SUITE_P(Ways, SubmitTest, ::testing::Values(true, false),
                         [](const auto& test) {
                           return test.param ? "Ring" : "Threads";
                         });

TEST_P(SubmitTest, ThreadsShareAFileAndEachGetsItsOwnBytes) {
  constexpr int kThreads = 6, kEach = 40;
  constexpr size_t kSize = 5000;
  const auto file = open(OpenMode::kCreate);
  const auto work = [&](int thread) {
    std::deque<std::pair<Ticket, Bytes>> written;
    for (int i = 0; i < kEach; ++i) {
      const int64_t offset = (i * kThreads + thread) * int64_t{kSize};
      Bytes& bytes = written.emplace_back(Ticket{}, pattern(kSize, thread)).second;
      written.back().first = file->submit_write(offset, bytes);
    }
    std::reverse(written.begin(), written.end());
    for (const auto& [ticket, bytes] : written) EXPECT_EQ(*file->wait(ticket), kSize);
    for (int i = 0; i < kEach; ++i) {
      Bytes back(kSize);
      const int64_t offset = (i * kThreads + thread) * int64_t{kSize};
      EXPECT_EQ(*file->wait(file->submit_read(offset, back)), kSize);
      EXPECT_EQ(back, pattern(kSize, thread)) << "thread " << thread << ", block " << i;
    }
  };
  std::vector<std::jthread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(work, i);
}

TEST_P(SubmitTest, OneThreadWaitsForWhatOthersThatEndedHaveSubmitted) {
  constexpr int kThreads = 8;
  constexpr size_t kSize = 1 << 20;
  const Bytes bytes = pattern(kSize, 1);
  const auto file = open(OpenMode::kCreate);
  std::vector<Ticket> tickets(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    std::jthread([&, i] {
      tickets[static_cast<size_t>(i)] = file->submit_write(i * int64_t{kSize}, bytes);
    });
  }
  for (const Ticket ticket : tickets) EXPECT_EQ(*file->wait(ticket), kSize);
  ASSERT_OK(file->close());
  const Bytes back = env_->read_file(path_).value();
  ASSERT_EQ(back.size(), kThreads * kSize);
  for (size_t i = 0; i < kThreads; ++i) {
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(),
                           back.begin() + static_cast<ptrdiff_t>(i * kSize)));
  }
}

TEST_P(SubmitTest, ManyTransfersAreHeldUntilSomebodyWaits) {
  constexpr int kCount = 500;  // far more than may be in flight
  const auto file = open(OpenMode::kCreate);
  const Bytes bytes = pattern(100, 2);
  std::vector<Ticket> tickets;
  for (int i = 0; i < kCount; ++i)
    tickets.push_back(file->submit_write(i * 100, bytes));
  std::reverse(tickets.begin(), tickets.end());
  for (const Ticket ticket : tickets) ASSERT_EQ(*file->wait(ticket), 100u);
  EXPECT_EQ(*file->size(), kCount * 100);
}

TEST_P(SubmitTest, ReadsPastTheEndGiveNothing) {
  ASSERT_OK(env_->write_file(path_, bytes_of("12345")));
  const auto file = open(OpenMode::kRead);
  Bytes into(8);
  EXPECT_EQ(*file->wait(file->submit_read(5, into)), 0u);
  EXPECT_EQ(*file->wait(file->submit_read(1'000'000, into)), 0u);
  EXPECT_EQ(*file->wait(file->submit_read(4, into)), 1u);
  EXPECT_EQ(*file->wait(file->submit_read(0, {})), 0u);
  constexpr int64_t kLast = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(file->wait(file->submit_read(kLast, into)).ok(),
            file->read_at(kLast, into).ok());
}

TEST_P(SubmitTest, DirectTransfersAreWholeAndCheckedAtWait) {
  constexpr size_t kSize = 3 << 20;
  AlignedBytes out(kSize), in(kSize + kDirectAlignment);
  const Bytes bytes = pattern(kSize, 3);
  std::copy(bytes.begin(), bytes.end(), out.span().begin());
  const auto opened = env_->open(path_, {.mode = OpenMode::kCreate, .direct = true});
  if (!opened.ok()) GTEST_SKIP() << opened.error().message();
  File& file = **opened;
  EXPECT_EQ(*file.wait(file.submit_write(0, out.span())), kSize);
  EXPECT_ERROR(file.wait(file.submit_write(0, out.span().first(100))),
               ErrorCode::kInvalid);
  ASSERT_OK(file.truncate(kSize - 100));
  EXPECT_EQ(*file.wait(file.submit_read(0, in.span())), kSize - 100);
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end() - 100, in.span().begin()));
}

// While this object lives, no file of the process can grow beyond the limit.
class SizeLimit {
 public:
  explicit SizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit now{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    HOLDFAST_CHECK(::setrlimit(RLIMIT_FSIZE, &now) == 0, "no limit of {}", bytes);
  }
  ~SizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    (void)std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST_P(SubmitTest, AWriteThatTheSystemCutsAndThenRefusesFailsByName) {
  const Bytes bytes = pattern(100'000, 4);
  const auto file = open(OpenMode::kCreate);
  const SizeLimit limit(150'000);
  const Ticket good = file->submit_write(0, bytes);
  const Ticket cut = file->submit_write(100'000, bytes);
  const Ticket beyond = file->submit_write(300'000, bytes);
  EXPECT_OK(file->wait(good));
  for (const Ticket ticket : {beyond, cut}) {
    const Result<size_t> result = file->wait(ticket);
    EXPECT_ERROR(result, ErrorCode::kIo);
    EXPECT_EQ(message_of(result), path_.native() + ": write: File too large");
  }
  EXPECT_OK(file->close());
}

TEST_P(SubmitTest, CloseTellsTheFirstFailureThatNobodyWaitedFor) {
  const Bytes bytes = pattern(1000, 5);
  const auto file = open(OpenMode::kCreate);
  const SizeLimit limit(50'000);
  (void)file->submit_write(0, bytes);
  (void)file->submit_write(60'000, bytes);
  (void)file->submit_write(-1, bytes);
  EXPECT_EQ(message_of(file->close()), path_.native() + ": write: File too large");
}

// A ring that gives the answers that the test chose, and transfers as many bytes as
// each answer says.
class ToldRing : public Uring {
 public:
  explicit ToldRing(std::deque<int64_t>& answers) : answers_(answers) {}
  uint64_t submit(const UringPiece& piece) override {
    pieces_.push_back(piece);
    return pieces_.size() - 1;
  }
  int64_t wait(uint64_t id) override {
    const UringPiece& piece = pieces_.at(id);
    const int64_t answer =
        answers_.empty() ? std::ssize(piece.memory) : answers_.front();
    if (!answers_.empty()) answers_.pop_front();
    if (answer <= 0) return answer;
    const auto size = static_cast<size_t>(answer);
    return piece.write
               ? ::pwrite(piece.descriptor, piece.memory.data(), size, piece.offset)
               : ::pread(piece.descriptor, piece.memory.data(), size, piece.offset);
  }

 private:
  std::deque<int64_t>& answers_;
  std::vector<UringPiece> pieces_;
};

class ToldRingTest : public ::testing::Test {
 protected:
  struct ToldIo : PosixIo {
    ToldIo() : PosixIo({}) {}
    std::unique_ptr<Uring> make_ring() const override {
      return std::make_unique<ToldRing>(*answers);
    }
    std::unique_ptr<std::deque<int64_t>> answers =
        std::make_unique<std::deque<int64_t>>();
  };

  Result<size_t> write(File& file, ByteView bytes, int64_t answer) {
    *io_.answers = {answer};
    return file.wait(file.submit_write(0, bytes));
  }
  Result<size_t> read(File& file, ByteSpan into, int64_t answer) {
    *io_.answers = {answer};
    return file.wait(file.submit_read(0, into));
  }

  ToldIo io_;
  TempFolder temp_;
  const Path path_ = temp_.path() / "a";
};

TEST_F(ToldRingTest, WhatWasCutOrInterruptedIsDoneToTheEnd) {
  const auto file = PosixFile::open(path_, {.mode = OpenMode::kCreate}, io_).value();
  int seed = 0;
  for (const int64_t answer : {0, 1, 5000, 9999, -EINTR, -EAGAIN, -ECANCELED}) {
    const Bytes bytes = pattern(10'000, ++seed);
    Bytes back(20'000);
    EXPECT_EQ(*write(*file, bytes, answer), 10'000u) << answer;
    EXPECT_EQ(*read(*file, back, answer), 10'000u) << answer;
    back.resize(10'000);
    EXPECT_EQ(back, bytes) << answer;
  }
}

TEST_F(ToldRingTest, DirectTransfersGoOnFromAWholeBlock) {
  const auto opened =
      PosixFile::open(path_, {.mode = OpenMode::kCreate, .direct = true}, io_);
  if (!opened.ok()) GTEST_SKIP() << opened.error().message();
  AlignedBytes out(3 * kDirectAlignment), in(3 * kDirectAlignment);
  std::fill(out.span().begin(), out.span().end(), std::byte{9});
  EXPECT_EQ(*write(**opened, out.span(), kDirectAlignment), out.size());
  EXPECT_EQ(*read(**opened, in.span(), 2 * kDirectAlignment), in.size());
  EXPECT_TRUE(std::ranges::equal(in.span(), out.span()));
}

TEST_F(ToldRingTest, ErrorsAreToldWithThePathAndTheWord) {
  const auto file = PosixFile::open(path_, {.mode = OpenMode::kCreate}, io_).value();
  Bytes bytes(10);
  EXPECT_ERROR(write(*file, bytes, -ENOSPC), ErrorCode::kNoSpace);
  EXPECT_ERROR(read(*file, bytes, -EIO), ErrorCode::kIo);
  EXPECT_EQ(message_of(read(*file, bytes, -EIO)),
            path_.native() + ": read: Input/output error");
}

TEST_F(ToldRingTest, HugeTransfersAreSplitAndAllPiecesWaitedFor) {
  // Only the few bytes that the answers allow are ever touched.
  const size_t huge = 2 * kUringPiece + 10;
  std::unique_ptr<std::byte, decltype(&std::free)> memory(
      static_cast<std::byte*>(std::malloc(huge)), &std::free);
  if (memory == nullptr) GTEST_SKIP() << "no " << huge << " bytes";
  ASSERT_OK(make_posix_env()->write_file(path_, bytes_of("12345")));
  const auto file = PosixFile::open(path_, {}, io_).value();
  *io_.answers = {5, 0, 0};
  EXPECT_EQ(*file->wait(file->submit_read(0, {memory.get(), huge})), 5u);
  EXPECT_TRUE(io_.answers->empty());
  *io_.answers = {5, -EIO, -ENOSPC};
  EXPECT_EQ(*file->wait(file->submit_read(0, {memory.get(), huge})), 5u);
  EXPECT_TRUE(io_.answers->empty());
  *io_.answers = {-EIO, 1, 1};
  EXPECT_ERROR(file->wait(file->submit_read(0, {memory.get(), huge})), ErrorCode::kIo);
  EXPECT_TRUE(io_.answers->empty());
}

}  // namespace
}  // namespace holdfast
