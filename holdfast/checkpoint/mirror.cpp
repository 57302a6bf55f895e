#include "holdfast/checkpoint/mirror.h"

#include "holdfast/checkpoint/events.h"

namespace holdfast {

Mirror::Mirror(Env& env, const Path& run, std::vector<MirrorTo> tiers,
               EventSink* events, bool background)
    : env_(env),
      run_(make_folder_tier(env, run)),
      tiers_(std::move(tiers)),
      events_(events) {
  if (background && !tiers_.empty()) thread_ = std::jthread([this] { work(); });
}

Mirror::~Mirror() {
  MutexLock lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
}

void Mirror::committed() {
  if (tiers_.empty()) return;
  int64_t count = 0;
  {
    MutexLock lock(mutex_);
    count = ++committed_;
    changed_.notify_all();
    if (thread_.joinable()) return;
    copied_ = count;
  }
  copy_newest(count);
}

bool Mirror::wait_idle(Instant deadline) {
  MutexLock lock(mutex_);
  while (copied_ < committed_ && env_.now() < deadline) {
    env_.wait_until(changed_, mutex_, deadline);
  }
  return copied_ == committed_;
}

void Mirror::work() {
  while (true) {
    int64_t count = 0;
    {
      MutexLock lock(mutex_);
      while (copied_ == committed_ && !stopping_) changed_.wait(mutex_);
      if (copied_ == committed_) return;
      count = committed_;
    }
    copy_newest(count);
    MutexLock lock(mutex_);
    copied_ = count;
    changed_.notify_all();
  }
}

void Mirror::copy_newest(int64_t count) {
  const Result<std::vector<TierStep>> steps = run_->steps();
  if (!steps.ok() || steps->empty()) return;  // the next commit looks again
  for (const MirrorTo& to : tiers_) {
    if (count % to.every != 0) continue;
    const Instant start = env_.now();
    const Result<void> copied = copy_to(to, steps->front());
    if (events_ == nullptr) continue;
    if (copied.ok()) {
      emit(*events_, env_,
           StepMirrored{
               .step = steps->front().manifest.step,
               .tier = to.tier->name(),
               .seconds = std::chrono::duration<double>(env_.now() - start).count()});
    } else {
      emit(*events_, env_,
           MirrorFailed{.step = steps->front().manifest.step,
                        .tier = to.tier->name(),
                        .reason = copied.error().message()});
    }
  }
}

Result<void> Mirror::copy_to(const MirrorTo& to, const TierStep& newest) {
  HOLDFAST_TRY(copy_step(*run_, newest, *to.tier));
  if (to.keep_last == 0) return {};
  return keep_newest(*to.tier, to.keep_last);
}

}  // namespace holdfast
