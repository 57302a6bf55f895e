#include "holdfast/checkpoint/tier_copier.h"

#include "holdfast/checkpoint/events.h"
#include "holdfast/store/retention.h"
#include "holdfast/store/run.h"

namespace holdfast {

// An unfinished copy in an object store that is older than this was left by a process
// that has ended.
constexpr Duration kLongAgo = std::chrono::hours(1);

TierCopier::TierCopier(Env& env, const Path& run, std::vector<TierCopy> tiers,
                       EventSink* events, bool background)
    : env_(env),
      path_(run),
      run_(make_folder_tier(env, run)),
      tiers_(std::move(tiers)),
      events_(events) {
  if (background && !tiers_.empty()) thread_ = std::jthread([this] { work(); });
}

TierCopier::~TierCopier() {
  MutexLock lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
}

void TierCopier::committed() {
  if (tiers_.empty()) return;
  int64_t count = 0;
  {
    MutexLock lock(mutex_);
    count = ++committed_;
    changed_.notify_all();
    if (thread_.joinable()) return;
    copied_ = count;
  }
  copy_newest(count - 1, count);
}

std::string TierCopier::reading() const {
  MutexLock lock(mutex_);
  return reading_;
}

bool TierCopier::wait_idle(Instant deadline) {
  MutexLock lock(mutex_);
  while (copied_ < committed_ && env_.now() < deadline) {
    env_.wait_until(changed_, mutex_, deadline);
  }
  return copied_ == committed_;
}

// Removes what earlier processes left half done. Ignores failures, because a tier that
// cannot be reached is reported when a step is copied to it.
void TierCopier::sweep() {
  for (const TierCopy& to : tiers_) {
    const Result<int64_t> removed = to.tier->sweep(env_.wall_now() - kLongAgo);
    if (!removed.ok() || *removed == 0 || events_ == nullptr) continue;
    emit(*events_, env_, TierSwept{.tier = to.tier->name(), .removed = *removed});
  }
}

void TierCopier::work() {
  sweep();
  while (true) {
    int64_t before = 0, count = 0;
    {
      MutexLock lock(mutex_);
      while (copied_ == committed_ && !stopping_) changed_.wait(mutex_);
      if (copied_ == committed_) return;
      before = copied_;
      count = committed_;
    }
    copy_newest(before, count);
    MutexLock lock(mutex_);
    copied_ = count;
    changed_.notify_all();
  }
}

void TierCopier::copy_newest(int64_t before, int64_t count) {
  const Result<std::vector<TierStep>> steps = run_->steps();
  if (!steps.ok()) return tell_failure(-1, run_->name(), steps.error());
  if (steps->empty()) return;
  const TierStep& newest = steps->front();
  {
    MutexLock lock(mutex_);
    reading_ = newest.id;
  }
  for (const TierCopy& to : tiers_) {
    if (count / to.every == before / to.every) continue;
    const Instant start = env_.now();
    const Result<void> copied = copy_step(*run_, newest, *to.tier);
    if (!copied.ok()) {
      tell_failure(newest.manifest.step, to.tier->name(), copied.error());
    } else if (events_ != nullptr) {
      emit(*events_, env_,
           StepCopied{
               .step = newest.manifest.step,
               .tier = to.tier->name(),
               .seconds = std::chrono::duration<double>(env_.now() - start).count()});
    }
    if (copied.ok()) retain_in(to);
  }
  MutexLock lock(mutex_);
  reading_.clear();
}

void TierCopier::tell_failure(int64_t step, const std::string& tier,
                              const Error& error) {
  if (events_ == nullptr) return;
  emit(*events_, env_,
       TierCopyFailed{.step = step, .tier = tier, .reason = error.message()});
}

void TierCopier::retain_in(const TierCopy& to) {
  if (!to.keep.has_value()) return;
  RetainOptions options;
  options.on_removed = [&](const TierStep& gone, const TierStep& newest) {
    if (events_ == nullptr) return;
    emit(*events_, env_,
         TierStepRemoved{.step = gone.manifest.step,
                         .tier = to.tier->name(),
                         .newest = newest.manifest.step});
  };
  const auto remove = [&]() -> Result<void> {
    const Run run = HOLDFAST_TRY(Run::open(env_, path_));
    for (const StepName& name : HOLDFAST_TRY(pinned_steps(run))) {
      options.pinned.insert(name.step);
    }
    return retain(*to.tier, *to.keep, options);
  };
  const Result<void> removed = remove().within(to.tier->name());
  if (removed.ok() || events_ == nullptr) return;
  emit(*events_, env_, RetentionFailed{.reason = removed.error().message()});
}

}  // namespace holdfast
