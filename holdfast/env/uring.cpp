// The ring of io_uring, by liburing.
//
// Rules for threads: the submission side of the ring is used only under the mutex.
// The completion side is used only by the one thread that reaps (takes completions
// out), and that thread releases the mutex while it blocks. A thread that waits for a
// completion reaps if no other thread does; else it sleeps until the reaping thread has
// taken something out.
#include <liburing.h>

#include <cerrno>
#include <map>
#include <optional>
#include <thread>

#include "holdfast/base/mutex.h"
#include "holdfast/base/result.h"
#include "holdfast/env/uring_internal.h"

namespace holdfast {
namespace {

// True for errors that go away when the call is made again.
bool is_temporary(int error) {
  return error == -EINTR || error == -EAGAIN || error == -EBUSY || error == -ENOMEM;
}

class LiburingRing : public Uring {
 public:
  explicit LiburingRing(unsigned depth) : depth_(depth) {}

  ~LiburingRing() override {
    if (!open_) return;
    HOLDFAST_CHECK(results_.empty(), "{} pieces in flight at the end of a ring",
                   results_.size());
    io_uring_queue_exit(&ring_);
  }

  bool open() {
    open_ = io_uring_queue_init(depth_, &ring_, 0) == 0;
    return open_ && knows_our_calls() && enters();
  }

  uint64_t submit(const UringPiece& piece) override {
    HOLDFAST_CHECK(piece.memory.size() <= kUringPiece, "a piece of {} bytes",
                   piece.memory.size());
    MutexLock lock(mutex_);
    while (in_flight_ == depth_) reap();
    ++in_flight_;
    const uint64_t id = ++last_id_;
    results_.emplace(id, std::nullopt);
    enqueue(piece, id);
    flush();
    return id;
  }

  int64_t wait(uint64_t id) override {
    MutexLock lock(mutex_);
    const auto found = results_.find(id);
    HOLDFAST_CHECK(found != results_.end(), "no piece {}", id);
    while (!found->second) reap();
    const int64_t result = *found->second;
    results_.erase(found);
    return result;
  }

 private:
  // The first kernels with io_uring do not have these two operations yet.
  bool knows_our_calls() {
    io_uring_probe* probe = io_uring_get_probe_ring(&ring_);
    if (probe == nullptr) return false;
    const bool known = io_uring_opcode_supported(probe, IORING_OP_READ) != 0 &&
                       io_uring_opcode_supported(probe, IORING_OP_WRITE) != 0;
    io_uring_free_probe(probe);
    return known;
  }

  // Tries the ring with an empty operation: a filter of system calls may allow creating
  // a ring and forbid using it.
  bool enters() {
    io_uring_prep_nop(io_uring_get_sqe(&ring_));
    if (io_uring_submit_and_wait(&ring_, 1) != 1) return false;
    io_uring_cqe* done = nullptr;
    if (io_uring_peek_cqe(&ring_, &done) != 0) return false;
    io_uring_cqe_seen(&ring_, done);
    return true;
  }

  void enqueue(const UringPiece& piece, uint64_t id) HOLDFAST_REQUIRES(mutex_) {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    HOLDFAST_CHECK(entry != nullptr, "no room for {} pieces", in_flight_);
    const auto size = static_cast<unsigned>(piece.memory.size());
    const auto offset = static_cast<uint64_t>(piece.offset);
    if (piece.write) {
      io_uring_prep_write(entry, piece.descriptor, piece.memory.data(), size, offset);
    } else {
      io_uring_prep_read(entry, piece.descriptor, piece.memory.data(), size, offset);
    }
    if (piece.copies) io_uring_sqe_set_flags(entry, IOSQE_ASYNC);
    io_uring_sqe_set_data64(entry, id);
  }

  // Hands queued pieces to the kernel. If the kernel has no memory for a piece, the
  // piece stays queued until the next flush.
  void flush() HOLDFAST_REQUIRES(mutex_) {
    const int count = io_uring_submit(&ring_);
    HOLDFAST_CHECK(count >= 0 || is_temporary(count), "io_uring_submit gives {}",
                   count);
  }

  // Waits for completions. Returns when this thread or another has taken something out,
  // or for no reason.
  void reap() HOLDFAST_REQUIRES(mutex_) {
    if (reaping_) return finished_.wait(mutex_);
    const unsigned queued = io_uring_sq_ready(&ring_);
    if (queued != 0) flush();
    // The kernel has none of the pieces yet, so there is no completion to wait for.
    if (queued == in_flight_) return yield();
    reaping_ = true;
    mutex_.unlock();
    block();
    mutex_.lock();
    reaping_ = false;
    take_finished();
    finished_.notify_all();
  }

  void yield() HOLDFAST_REQUIRES(mutex_) {
    mutex_.unlock();
    std::this_thread::yield();
    mutex_.lock();
  }

  void block() {
    io_uring_cqe* done = nullptr;
    const int outcome = io_uring_wait_cqe(&ring_, &done);
    HOLDFAST_CHECK(outcome == 0 || is_temporary(outcome), "io_uring_wait_cqe gives {}",
                   outcome);
  }

  void take_finished() HOLDFAST_REQUIRES(mutex_) {
    io_uring_cqe* done = nullptr;
    while (io_uring_peek_cqe(&ring_, &done) == 0) {
      results_.find(io_uring_cqe_get_data64(done))->second = done->res;
      io_uring_cqe_seen(&ring_, done);
      --in_flight_;
    }
  }

  const unsigned depth_;
  bool open_ = false;
  io_uring ring_{};  // guarded as the top of this file says

  Mutex mutex_;
  Condition finished_;
  bool reaping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  unsigned in_flight_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  uint64_t last_id_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  // The result of every piece that was not waited for yet; empty while the piece runs.
  std::map<uint64_t, std::optional<int64_t>> results_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Uring> make_uring(unsigned depth) {
  auto ring = std::make_unique<LiburingRing>(depth);
  if (!ring->open()) return nullptr;
  return ring;
}

}  // namespace holdfast
