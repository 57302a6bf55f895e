// The submitted transfers of a PosixFile: through a ring, or by a pool of threads.
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "holdfast/base/checked.h"
#include "holdfast/env/posix_file_internal.h"

namespace holdfast {
namespace {

// Limits the depth of a ring: in old kernels a ring counts as locked memory, for which
// the limit is small.
constexpr int kDeepestRing = 1024;

// A transfer that a thread of the pool runs and that another thread waits for.
struct Running {
  Mutex mutex;
  Condition finished;
  std::optional<Result<size_t>> result HOLDFAST_GUARDED_BY(mutex);
};

// True if the transfer must only be made again. -ECANCELED comes when the thread that
// submitted has ended: the kernel then cancels what the thread had queued.
bool is_no_failure(int64_t outcome) {
  return outcome == -EINTR || outcome == -EAGAIN || outcome == -ECANCELED;
}

bool fits(int64_t offset, size_t size) {
  return checked_add(offset, static_cast<int64_t>(size)).has_value();
}

}  // namespace

ThreadPool& PosixIo::pool() {
  MutexLock lock(mutex_);
  if (!pool_) {
    pool_ = std::make_unique<ThreadPool>(
        ThreadPoolOptions{.threads = options_.io_threads,
                          .queue = static_cast<size_t>(options_.in_flight)});
  }
  return *pool_;
}

std::unique_ptr<Uring> PosixIo::make_ring() const {
  if (!options_.uring) return nullptr;
  return make_uring(
      static_cast<unsigned>(std::clamp(options_.in_flight, 1, kDeepestRing)));
}

Uring* PosixFile::ring() {
  MutexLock lock(mutex_);
  if (std::exchange(ring_asked_for_, true)) return ring_.get();
  // Clears O_NONBLOCK, which was only for opening: on some file systems a ring's
  // transfers would fail instead of waiting.
  if (::fcntl(descriptor_, F_SETFL, direct() ? O_DIRECT : 0) != 0) return nullptr;
  ring_ = io_.make_ring();
  return ring_.get();
}

Ticket PosixFile::submit_read(int64_t offset, ByteSpan into) {
  // A wrong request fails at wait(), as all errors of submitted transfers do.
  if (!check_read(offset, into).ok()) return File::submit_read(offset, into);
  Uring* const ring = fits(offset, into.size()) ? this->ring() : nullptr;
  if (ring != nullptr) return start_in_ring(*ring, {.offset = offset, .memory = into});
  return start_in_pool([this, offset, into] { return read_at(offset, into); });
}

Ticket PosixFile::submit_write(int64_t offset, ByteView bytes) {
  if (!check_write(offset, bytes).ok()) return File::submit_write(offset, bytes);
  Uring* const ring = fits(offset, bytes.size()) ? this->ring() : nullptr;
  if (ring == nullptr) {
    return start_in_pool([this, offset, bytes] { return write_whole(offset, bytes); });
  }
  const ByteSpan memory{const_cast<std::byte*>(bytes.data()), bytes.size()};
  return start_in_ring(*ring, {.write = true, .offset = offset, .memory = memory});
}

Ticket PosixFile::start_in_pool(Transfer transfer) {
  // Shared by the waiter and the thread of the pool, which may still use it after the
  // waiter has its result.
  const auto running = std::make_shared<Running>();
  io_.pool().submit([running, transfer = std::move(transfer)] {
    Result<size_t> result = transfer();
    MutexLock lock(running->mutex);
    running->result = std::move(result);
    running->finished.notify_all();
  });
  return put_off([running] {
    MutexLock lock(running->mutex);
    while (!running->result) running->finished.wait(running->mutex);
    return *std::move(running->result);
  });
}

Ticket PosixFile::start_in_ring(Uring& ring, UringPiece whole) {
  whole.descriptor = descriptor_;
  whole.copies = !direct();
  std::vector<Piece> pieces;
  for (size_t done = 0; done < whole.memory.size(); done += kUringPiece) {
    UringPiece piece = whole;
    piece.offset += static_cast<int64_t>(done);
    piece.memory =
        whole.memory.subspan(done, std::min(kUringPiece, whole.memory.size() - done));
    pieces.push_back({.what = piece, .id = ring.submit(piece)});
  }
  return put_off(
      [this, &ring, pieces = std::move(pieces)] { return finish_all(ring, pieces); });
}

// Waits for every piece, also after a failure, because the kernel uses the caller's
// memory until then.
Result<size_t> PosixFile::finish_all(Uring& ring, const std::vector<Piece>& pieces) {
  Result<size_t> total = size_t{0};
  bool ended = false;
  for (const Piece& piece : pieces) {
    const Result<size_t> one = finish(ring, piece);
    if (ended) continue;
    ended = !one.ok() || *one < piece.what.memory.size();
    total = one.ok() ? Result<size_t>(*total + *one) : one;
  }
  return total;
}

Result<size_t> PosixFile::finish(Uring& ring, const Piece& piece) {
  const UringPiece& what = piece.what;
  int64_t outcome = ring.wait(piece.id);
  if (is_no_failure(outcome)) outcome = 0;
  if (outcome < 0) {
    return transfer_failure(static_cast<int>(-outcome), what.write ? "write" : "read");
  }
  const auto done = static_cast<size_t>(outcome);
  return done == what.memory.size() ? done : go_on(what, done);
}

// Finishes a transfer that the kernel ended early. This is rare, so it blocks: read_at
// and write_whole know how to go on and where to end.
Result<size_t> PosixFile::go_on(const UringPiece& piece, size_t done) {
  const size_t part = direct() ? done % static_cast<size_t>(kDirectAlignment) : 0;
  if (part != 0 && !piece.write) return done;  // the end of the file
  done -= part;
  const int64_t offset = piece.offset + static_cast<int64_t>(done);
  const ByteSpan rest = piece.memory.subspan(done);
  return done +
         HOLDFAST_TRY(piece.write ? write_whole(offset, rest) : read_at(offset, rest));
}

}  // namespace holdfast
