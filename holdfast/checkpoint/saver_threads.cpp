// The background threads of a saver, which capture, commit and renew the lease, and how
// they are shut down.
#include "holdfast/base/thread_priority.h"
#include "holdfast/checkpoint/events.h"
#include "holdfast/checkpoint/run_saver_internal.h"

namespace holdfast {
namespace {

// How long a capture waits at most until the training thread has made the objects of
// the save.
constexpr std::chrono::milliseconds kMostObjectsWait{10};
// Up to this many bytes are hashed so fast that the capture may wait for it.
constexpr int64_t kFewBytes = int64_t{1} << 20;

Error lost_rank(const SaveTask& task) {
  return unavailable("step {}: skipped, because a rank was lost", task.step);
}

}  // namespace

void RunSaver::capture_tasks() {
  use_batch_scheduling();
  while (const Task task = next_to_capture()) {
    // Begins to write what the capture has copied so far. save() wakes only this
    // thread, because waking two would cost the training thread more time.
    commits_.notify_one();
    capture(*task);
  }
}

// Waits for the next save. Null if the saver stops and no save is left.
RunSaver::Task RunSaver::next_to_capture() {
  MutexLock lock(mutex_);
  while (to_capture_.empty() && !stopping_) captures_.wait(mutex_);
  if (to_capture_.empty()) return nullptr;
  const Task task = to_capture_.front();
  to_capture_.pop_front();
  return task;
}

void RunSaver::capture(SaveTask& task) {
  // Copying host memory uses a core, maybe the one on which the training thread still
  // makes the objects, which takes about a millisecond. So the copying waits for them.
  // GPUs copy by DMA, which needs no core.
  if (task.host_pieces) task.objects->await_a_moment(kMostObjectsWait);
  // Digests come first if they are short, or if training does not wait for this capture
  // because the tensors were copied inside their devices.
  const bool digests_first =
      task.replicas != nullptr &&
      (task.replicas->bytes() <= kFewBytes || task.is_copied_on_devices());
  if (digests_first) take_digests(task);
  task.staged = task.writer != nullptr && stage(task).ok();
  task.handle.set_captured();  // also after a failure: nothing reads the tensors now
  if (task.replicas != nullptr && !digests_first) take_digests(task);
  if (!task.staged) return;  // the committing thread gets the error from the writer
  tell(SaveCaptured{.step = task.step,
                    .bytes = task.plan->shard_bytes(),
                    .seconds = since(task.started),
                    .why = task.why});
}

Result<void> RunSaver::stage(SaveTask& task) {
  if (task.guard == nullptr) return task.writer->stage();
  return task.writer->stage(
      [&](int64_t offset, ByteView bytes) { task.guard->staged(offset, bytes); });
}

// Computes the digests of replicas. Tensors on devices are copied to the host through a
// block of the staging ring if one is free, because copies into pinned memory are
// faster.
void RunSaver::take_digests(SaveTask& task) {
  std::optional<ByteSpan> block;
  if (ring_->block_bytes() >= Replicas::kPart) block = ring_->try_take_block();
  Bytes unpinned(block.has_value() ? 0 : static_cast<size_t>(Replicas::kPart));
  task.replicas->take(block.has_value() ? *block : ByteSpan(unpinned));
  if (block.has_value()) ring_->give_back(*block);
}

void RunSaver::commit_tasks() {
  use_batch_scheduling();
  while (const Task task = next_to_commit()) commit(*task);
}

// Waits for the next save. Null if the saver stops and no save is left.
RunSaver::Task RunSaver::next_to_commit() {
  MutexLock lock(mutex_);
  while (to_commit_.empty() && !stopping_) commits_.wait(mutex_);
  if (to_commit_.empty()) return nullptr;
  committing_ = to_commit_.front();
  to_commit_.pop_front();
  return committing_;
}

// Renews the lease three times in its duration, also during a long write, so that other
// jobs see that the owner of the run is alive.
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
  const Result<Durable> outcome =
      is_dropping() ? Result<Durable>(lost_rank(task)) : committer_.commit(task, busy);
  if (outcome.ok() && task.index.has_value()) {
    history_.remember(outcome->folder, task.attempt, *task.index);
  }
  if (is_skipped(task, outcome)) {
    tell(SaveSkipped{.step = task.step});
  } else {
    record_outcome(task, outcome);
  }
  // Waits: if the save has failed, the capturing thread may still be reading the
  // tensors.
  static_cast<void>(task.handle.captured());
  complete(task, outcome);
  if (outcome.ok()) {
    committer_.retain(busy);
    copier_.committed();
  }
  MutexLock lock(mutex_);
  committing_ = nullptr;
  --unfinished_;
  changed_.notify_all();
}

// A save that ends because a rank was lost is not held against the disk. This rank may
// notice the loss before drop_saves() is called.
bool RunSaver::is_skipped(const SaveTask& task, const Result<Durable>& outcome) {
  if (task.dropped) return true;
  if (outcome.ok() || task.torn) return false;
  return is_dropping() || (options_.ranks_are_replaced &&
                           outcome.error().code() == ErrorCode::kUnavailable);
}

bool RunSaver::is_dropping() {
  MutexLock lock(mutex_);
  return dropping_;
}

Result<void> RunSaver::drop_saves(Instant deadline) {
  {
    MutexLock lock(mutex_);
    dropping_ = true;
    std::deque<Task> tasks = to_commit_;
    if (committing_ != nullptr) tasks.push_front(committing_);
    for (const Task& task : tasks) {
      if (task->writer != nullptr) task->writer->cancel(lost_rank(*task));
    }
  }
  settle_captured({}, nullptr);
  if (!wait_idle(deadline)) return still_under_way();
  MutexLock lock(mutex_);
  dropping_ = false;
  failing_since_.reset();
  if (failure_.has_value() && may_pass(*failure_)) failure_.reset();
  return {};
}

// Sets the outcome of the handle and lets another save begin, both under one lock, so
// that a caller that sees the outcome can save again at once. A superseded save has let
// another one begin before.
void RunSaver::complete(SaveTask& task, const Result<Durable>& outcome) {
  MutexLock lock(mutex_);
  if (!task.superseded) --in_flight_;
  task.handle.set_done(outcome, task.torn);
  changed_.notify_all();
}

// Keeps the error that a later save() or close() must return, and emits an event.
void RunSaver::record_outcome(const SaveTask& task, const Result<Durable>& outcome) {
  if (task.unlinked) history_.stop();
  {
    MutexLock lock(mutex_);
    torn_late_.insert(torn_late_.end(), task.torn_names.begin(), task.torn_names.end());
    // A torn save, whose tensors changed while they were copied, does not count as a
    // failure: the caller saves again and copies these tensors at once.
    if (outcome.ok()) {
      failing_since_.reset();
    } else if (!task.torn && !failing_since_.has_value()) {
      failing_since_ = env_.now();
    }
    // A permanent error is kept until save() has returned it; one that may pass gives
    // way to the next outcome. An error that rank 0 sent to this rank is not kept,
    // because rank 0 makes all ranks return it.
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

// False if the deadline passes first.
bool RunSaver::wait_idle(Instant deadline) {
  MutexLock lock(mutex_);
  while (unfinished_ > 0 && env_.now() < deadline) {
    env_.wait_until(changed_, mutex_, deadline);
  }
  return unfinished_ == 0;
}

Error RunSaver::still_under_way() const {
  return timed_out("{}: saves or copies to tiers are still under way at the deadline",
                   run_.path().native());
}

// Stops the threads when all saves are over. At the deadline it stops nothing.
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
  // After the release another job need not wait until the lease ends. A failure is
  // harmless: then that job waits.
  static_cast<void>(std::move(*owner_).release());
  owner_.reset();
  return {};
}

}  // namespace holdfast
