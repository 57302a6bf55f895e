// SaveHandle (saver.h).
#include "holdfast/base/mutex.h"
#include "holdfast/checkpoint/saver.h"

namespace holdfast {

struct SaveHandle::State {
  explicit State(Env& environment) : env(environment) {}
  Env& env;
  Mutex mutex;
  Condition changed;
  bool captured HOLDFAST_GUARDED_BY(mutex) = false;
  bool torn HOLDFAST_GUARDED_BY(mutex) = false;
  std::optional<Result<Durable>> done HOLDFAST_GUARDED_BY(mutex);
  std::optional<Instant> done_at HOLDFAST_GUARDED_BY(mutex);
};

SaveHandle::SaveHandle(Env& env) : state_(std::make_shared<State>(env)) {}

Result<void> SaveHandle::captured(Instant deadline) const {
  MutexLock lock(state_->mutex);
  while (!state_->captured) {
    if (state_->env.now() >= deadline)
      return timed_out("save: was not captured before the deadline");
    state_->env.wait_until(state_->changed, state_->mutex, deadline);
  }
  return {};
}

bool SaveHandle::is_captured() const {
  MutexLock lock(state_->mutex);
  return state_->captured;
}

Result<Durable> SaveHandle::durable(Instant deadline) const {
  MutexLock lock(state_->mutex);
  while (!state_->done.has_value()) {
    if (state_->env.now() >= deadline)
      return timed_out("save: was not durable before the deadline");
    state_->env.wait_until(state_->changed, state_->mutex, deadline);
  }
  return *state_->done;
}

bool SaveHandle::is_done() const {
  MutexLock lock(state_->mutex);
  return state_->done.has_value();
}

std::optional<Instant> SaveHandle::done_at() const {
  MutexLock lock(state_->mutex);
  return state_->done_at;
}

void SaveHandle::set_captured() {
  MutexLock lock(state_->mutex);
  state_->captured = true;
  state_->changed.notify_all();
}

bool SaveHandle::is_torn() const {
  MutexLock lock(state_->mutex);
  return state_->torn;
}

void SaveHandle::set_done(Result<Durable> outcome, bool torn) {
  MutexLock lock(state_->mutex);
  if (!state_->done.has_value()) {
    state_->done = std::move(outcome);
    state_->done_at = state_->env.now();
    state_->torn = torn;
  }
  state_->changed.notify_all();
}

}  // namespace holdfast
