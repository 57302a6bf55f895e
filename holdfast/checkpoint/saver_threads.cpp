// What the background threads of a saver do: capture, commit, and renew the lease.
#include "holdfast/base/thread_priority.h"
#include "holdfast/checkpoint/events.h"
#include "holdfast/checkpoint/run_saver_internal.h"

namespace holdfast {
namespace {

// How long capturing waits at most for training to collect its objects.
constexpr std::chrono::milliseconds kMoment{10};
// The digests of so many bytes take too little time to delay the capture.
constexpr int64_t kQuick = int64_t{1} << 20;

}  // namespace

void RunSaver::capture_tasks() {
  use_batch_scheduling();
  while (const Task task = next_to_capture()) {
    commits_.notify_one();
    capture(*task);
  }
}

// Waits for the next save. Null when the saver stops.
RunSaver::Task RunSaver::next_to_capture() {
  MutexLock lock(mutex_);
  while (to_capture_.empty() && !stopping_) captures_.wait(mutex_);
  if (to_capture_.empty()) return nullptr;
  const Task task = to_capture_.front();
  to_capture_.pop_front();
  return task;
}

void RunSaver::capture(SaveTask& task) {
  // Copying host memory uses a core, maybe the one on which training still collects its
  // objects, which takes about a millisecond. So the copying waits for the objects.
  // Devices copy without a core.
  if (task.host_pieces) task.objects->await_a_moment(kMoment);
  // Unless all copies are made inside devices, training waits for the capture, so the
  // capture comes before long digests.
  const bool digests_first = task.replicas != nullptr &&
                             (task.replicas->bytes() <= kQuick || task.is_in_rooms());
  if (digests_first) take_digests(task);
  task.staged = task.writer != nullptr && stage(task).ok();
  task.handle.set_captured();
  if (task.replicas != nullptr && !digests_first) take_digests(task);
  if (!task.staged) return;  // the committing thread reports the error
  tell(SaveCaptured{.step = task.step,
                    .bytes = task.plan->shard_bytes(),
                    .seconds = since(task.started)});
}

Result<void> RunSaver::stage(SaveTask& task) {
  if (task.guard == nullptr) return task.writer->stage();
  return task.writer->stage(
      [&](int64_t offset, ByteView bytes) { task.guard->staged(offset, bytes); });
}

// Makes the digests of replicas. Tensors on devices are read through a block of the
// ring if one is free, because the ring is pinned.
void RunSaver::take_digests(SaveTask& task) {
  std::optional<ByteSpan> block;
  if (ring_->block_bytes() >= Replicas::kPart) block = ring_->try_take_block();
  Bytes own(block.has_value() ? 0 : static_cast<size_t>(Replicas::kPart));
  task.replicas->take(block.has_value() ? *block : ByteSpan(own));
  if (block.has_value()) ring_->give_back(*block);
}

void RunSaver::commit_tasks() {
  use_batch_scheduling();
  while (const Task task = next_to_commit()) commit(*task);
}

// Waits for the next save. Null when the saver stops.
RunSaver::Task RunSaver::next_to_commit() {
  MutexLock lock(mutex_);
  while (to_commit_.empty() && !stopping_) commits_.wait(mutex_);
  if (to_commit_.empty()) return nullptr;
  const Task task = to_commit_.front();
  to_commit_.pop_front();
  return task;
}

// Renews the lease regularly, also during a long write, so that other jobs see that
// this owner is alive.
void RunSaver::keep_lease() {
  while (true) {
    {
      MutexLock lock(mutex_);
      const Instant renewal = env_.now() + options_.lease / 3;
      while (!stopping_ && env_.now() < renewal) {
        env_.wait_until(stops_, mutex_, renewal);
      }
      if (stopping_) return;
    }
    renew_lease();
  }
}

// Ignores failures: if the lease is lost, the next commit fails.
void RunSaver::renew_lease() {
  if (owner_.has_value()) static_cast<void>(owner_->renew());
}

void RunSaver::commit(SaveTask& task) {
  renew_lease();
  const auto busy = [this] { return bases_in_use(); };
  const Result<Durable> outcome = committer_.commit(task, busy);
  if (outcome.ok() && task.index.has_value()) {
    history_.remember(outcome->folder, task.attempt, *task.index);
  }
  if (task.dropped) {
    tell(SaveSkipped{.step = task.step});
  } else {
    note(task, outcome);
  }
  // If the save has failed, the capturing thread may still be reading the tensors.
  static_cast<void>(task.handle.captured());
  leave(task, outcome);
  if (outcome.ok()) {
    committer_.retain(busy);
    copier_.committed();
  }
  MutexLock lock(mutex_);
  --unfinished_;
  changed_.notify_all();
}

// Sets the outcome of the handle and makes room for another save, both under one lock,
// so that a caller that sees the outcome also finds the room.
void RunSaver::leave(SaveTask& task, const Result<Durable>& outcome) {
  MutexLock lock(mutex_);
  if (!task.superseded) --in_flight_;
  task.handle.set_done(outcome, task.torn);
  changed_.notify_all();
}

// Remembers what a later save() or close() must raise, and emits an event.
void RunSaver::note(const SaveTask& task, const Result<Durable>& outcome) {
  if (task.unlinked) history_.stop();
  {
    MutexLock lock(mutex_);
    torn_late_.insert(torn_late_.end(), task.torn_names.begin(), task.torn_names.end());
    // A torn save does not count as a failure here, because the caller makes it again
    // in another way.
    if (outcome.ok()) {
      failing_since_.reset();
    } else if (!task.torn && !failing_since_.has_value()) {
      failing_since_ = env_.now();
    }
    // An error that cannot pass is kept until it was raised. An error that rank 0 sent
    // to this rank is not kept: rank 0 raises it, and only rank 0 knows whether it has.
    if (!failure_.has_value() || may_pass(*failure_)) {
      failure_ = std::nullopt;
      if (!outcome.ok() && !task.told) failure_ = outcome.error();
    }
  }
  if (outcome.ok()) {
    tell(SaveDurable{.step = task.step,
                     .folder = outcome->folder.filename().native(),
                     .seconds = since(task.started)});
  } else {
    tell(SaveFailed{.step = task.step,
                    .code = std::string(name_of(outcome.error().code())),
                    .reason = outcome.error().message()});
  }
}

bool RunSaver::wait_idle(Instant deadline) {
  MutexLock lock(mutex_);
  while (unfinished_ > 0 && env_.now() < deadline) {
    env_.wait_until(changed_, mutex_, deadline);
  }
  return unfinished_ == 0;
}

Error RunSaver::still_under_way() const {
  return timed_out("{}: saves are still under way", run_.path().native());
}

Result<void> RunSaver::finish(Instant deadline) {
  if (!wait_idle(deadline) || !copier_.wait_idle(deadline)) return still_under_way();
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  for (Condition* one : {&captures_, &commits_, &stops_}) one->notify_all();
  if (capturer_.joinable()) capturer_.join();
  if (committer_thread_.joinable()) committer_thread_.join();
  if (keeper_.joinable()) keeper_.join();
  if (!owner_.has_value()) return {};
  // After the release another job need not wait until the lease ends. If the release
  // fails, it has to.
  static_cast<void>(std::move(*owner_).release());
  owner_.reset();
  return {};
}

}  // namespace holdfast
