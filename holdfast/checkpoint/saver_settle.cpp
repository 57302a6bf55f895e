// What the training thread does to settle saves and to close the saver.
#include <algorithm>

#include "holdfast/checkpoint/events.h"
#include "holdfast/checkpoint/run_saver_internal.h"

namespace holdfast {

bool RunSaver::may_tear() const {
  return std::ranges::any_of(unsettled_, [](const Task& task) {
    return std::ranges::any_of(task->shard.shard().pieces, [](const LocalPiece& piece) {
      return !piece.at_once && piece.bytes() > 0;
    });
  });
}

Result<Settled> RunSaver::settle(const std::vector<std::string>& changed,
                                 CudaStream stream, Instant deadline) {
  const Instant start = env_.now();
  for (const Task& task : unsettled_) {
    if (is_awaited(*task)) HOLDFAST_TRY(wait_captured(*task, deadline));
  }
  if (unguarded_) HOLDFAST_TRY(unguarded_->captured(deadline));
  Settled settled = settle_captured(changed, stream);
  settled.waited = since(start);
  return settled;
}

// Waits for saves that are not captured yet, however long that takes.
Settled RunSaver::settle_captured(const std::vector<std::string>& changed,
                                  CudaStream stream) {
  Settled settled;
  for (const Task& task : std::exchange(unsettled_, {})) {
    Result<void> verdict = settle_task(*task, changed, stream, settled);
    // Must come before guard->decide(), after which the committing thread sends the
    // digests.
    if (task->replicas != nullptr) {
      task->replicas->stop(stream, !changed.empty() || !verdict.ok());
    }
    task->guard->decide(std::move(verdict));
  }
  for (const auto& digests : std::exchange(comparing_, {})) digests->stop(stream);
  MutexLock lock(mutex_);
  const std::vector<std::string> late = std::exchange(torn_late_, {});
  settled.torn.insert(settled.torn.end(), late.begin(), late.end());
  return settled;
}

// A save without a writer has failed already, so settle() does not wait for it.
bool RunSaver::is_awaited(const SaveTask& task) const {
  return task.writer != nullptr && (task.host_pieces || options_.guard == Guard::kFull);
}

// While the training thread waits, the threads that empty the ring hold off, so that
// the capture is over sooner.
Result<void> RunSaver::wait_captured(SaveTask& task, Instant deadline) {
  if (task.handle.is_captured()) return {};
  if (ring_ != nullptr) ring_->begin_rush();
  Result<void> captured = task.handle.captured(deadline);
  if (ring_ != nullptr) ring_->end_rush();
  return captured;
}

// Waits until the pieces in host memory are captured, and compares the copy with the
// tensors. Does not wait for devices: makes `stream` wait for them.
Result<void> RunSaver::settle_task(SaveTask& task,
                                   const std::vector<std::string>& changed,
                                   CudaStream stream, Settled& settled) {
  if (task.writer == nullptr) return {};
  if (is_awaited(task)) {
    HOLDFAST_TRY(wait_captured(task, kNoDeadline));
    if (!task.staged) return {};
  }
  if (task.shot != nullptr) {
    for (const Device* device : task.shot->by_ring()) {
      HOLDFAST_TRY(task.writer->make_wait(stream, *device));
    }
  }
  const std::vector<size_t> seen = HOLDFAST_TRY(task.guard->changed());
  const std::vector<std::string> torn = task.shard.names(seen, changed);
  if (torn.empty()) {
    task.guard->probe(rooms_, stream);
    return {};
  }
  tell(SaveTorn{.step = task.step, .tensors = std::ssize(torn), .first = torn.front()});
  settled.torn.insert(settled.torn.end(), torn.begin(), torn.end());
  return torn_save(task.step, torn);
}

Result<void> RunSaver::close(Instant deadline) {
  closed_ = true;
  settle_captured({}, nullptr);
  const Result<void> agreed = agree_on_end(deadline);
  const Result<void> finished = finish(deadline);
  return agreed.ok() ? finished : agreed;
}

Result<void> RunSaver::close_alone(Instant deadline) {
  closed_ = true;
  settle_captured({}, nullptr);
  const Result<void> own = last_outcome(deadline).within("close");
  const Result<void> finished = finish(deadline);
  return own.ok() ? finished : own;
}

// Agrees with the other ranks on the outcome of the last save. Happens before rank 0
// waits for its copies to further tiers, which may take longer than the other ranks
// wait for rank 0. Happens once: if the copies are not done in time, only rank 0 calls
// close() again.
Result<void> RunSaver::agree_on_end(Instant deadline) {
  if (ended_) return {};
  Result<void> agreed =
      close_.agree(last_outcome(deadline), options_.timeout).within("close");
  ended_ = agreed.ok() || agreed.error().code() != ErrorCode::kTimeout;
  return agreed;
}

// Returns the error of the last save, if this rank has to report it. kTimeout if saves
// are still under way at the deadline.
Result<void> RunSaver::last_outcome(Instant deadline) {
  if (!wait_idle(deadline)) return still_under_way();
  MutexLock lock(mutex_);
  if (!failure_.has_value()) return {};
  return *failure_;
}

}  // namespace holdfast
