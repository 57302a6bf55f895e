#include "holdfast/base/thread_priority.h"
#include "holdfast/checkpoint/events.h"
#include "holdfast/checkpoint/run_saver_internal.h"

namespace holdfast {
namespace {

constexpr std::chrono::milliseconds kMoment{10};
constexpr int64_t kQuick = int64_t{1} << 20;  // bytes that are digested in no time

}  // namespace

void RunSaver::capture_tasks() {
  use_batch_scheduling();
  while (const Task task = next_to_capture()) {
    commits_.notify_one();
    capture(*task);
  }
}

// Null when there is no more.
RunSaver::Task RunSaver::next_to_capture() {
  MutexLock lock(mutex_);
  while (to_capture_.empty() && !stopping_) captures_.wait(mutex_);
  if (to_capture_.empty()) return nullptr;
  const Task task = to_capture_.front();
  to_capture_.pop_front();
  return task;
}

void RunSaver::capture(SaveTask& task) {
  // Copying takes a core, maybe the one on which training still gathers objects, for a
  // millisecond or so; devices copy without one.
  if (task.host_pieces) task.objects->await_a_moment(kMoment);
  // Training waits for a copy that is not made inside a device: it comes first.
  const bool digests_first = task.replicas != nullptr &&
                             (task.replicas->bytes() <= kQuick || task.is_in_rooms());
  if (digests_first) take_digests(task);
  task.staged = task.writer != nullptr && stage(task).ok();
  task.handle.set_captured();
  if (task.replicas != nullptr && !digests_first) take_digests(task);
  if (!task.staged) return;  // the committing half knows why
  tell(SaveCaptured{.step = task.step,
                    .bytes = task.plan->shard_bytes(),
                    .seconds = since(task.started)});
}

Result<void> RunSaver::stage(SaveTask& task) {
  if (task.guard == nullptr) return task.writer->stage();
  return task.writer->stage(
      [&](int64_t offset, ByteView bytes) { task.guard->staged(offset, bytes); });
}

// What is on devices comes by a block of the ring, which is pinned.
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

// Null when there is no more.
RunSaver::Task RunSaver::next_to_commit() {
  MutexLock lock(mutex_);
  while (to_commit_.empty() && !stopping_) commits_.wait(mutex_);
  if (to_commit_.empty()) return nullptr;
  const Task task = to_commit_.front();
  to_commit_.pop_front();
  return task;
}

// Others must hear of this owner also while a long write is under way.
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

// A lease that is lost shows at the next commit.
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
  // Of a save that has failed, the other half may still be reading the tensors.
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

// Says what became of it, and that there is room for another, in one.
void RunSaver::leave(SaveTask& task, const Result<Durable>& outcome) {
  MutexLock lock(mutex_);
  if (!task.superseded) --in_flight_;
  task.handle.set_done(outcome, task.torn);
  changed_.notify_all();
}

void RunSaver::note(const SaveTask& task, const Result<Durable>& outcome) {
  if (task.unlinked) history_.stop();
  {
    MutexLock lock(mutex_);
    torn_late_.insert(torn_late_.end(), task.torn_names.begin(), task.torn_names.end());
    // One that was torn is made again in another way, and is no sign of trouble.
    if (outcome.ok()) {
      failing_since_.reset();
    } else if (!task.torn && !failing_since_.has_value()) {
      failing_since_ = env_.now();
    }
    // What cannot pass stays until it was raised. Rank 0 raises what it has told others,
    // and is alone in knowing whether it has.
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
  // Others then need not wait for the lease; if it fails, they do.
  static_cast<void>(std::move(*owner_).release());
  owner_.reset();
  return {};
}

}  // namespace holdfast
