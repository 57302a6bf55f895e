#include "holdfast/checkpoint/tier_copier.h"

#include <algorithm>

#include "holdfast/checkpoint/events.h"
#include "holdfast/store/retention.h"
#include "holdfast/store/run.h"

namespace holdfast {

// An unfinished copy in an object store that is older than this was left by a process
// that has ended.
constexpr Duration kLongAgo = std::chrono::hours(1);

TierCopier::TierCopier(Env& env, const Path& run, std::vector<TierCopy> tiers,
                       EventSink* events, bool background, double duty)
    : env_(env),
      path_(run),
      run_(make_folder_tier(env, run)),
      tiers_(std::move(tiers)),
      events_(events),
      duty_(duty),
      turns_(tiers_.size()) {
  if (background && !tiers_.empty()) thread_ = std::jthread([this] { work(); });
}

TierCopier::~TierCopier() {
  MutexLock lock(mutex_);
  stopping_ = hurries_ = true;
  changed_.notify_all();
}

void TierCopier::committed() {
  if (tiers_.empty()) return;
  {
    MutexLock lock(mutex_);
    ++committed_;
    changed_.notify_all();
    if (thread_.joinable()) return;
  }
  copy_newest();
}

std::string TierCopier::reading() const {
  MutexLock lock(mutex_);
  return reading_;
}

bool TierCopier::wait_idle(Instant deadline) {
  {
    MutexLock lock(mutex_);
    hurries_ = true;
    changed_.notify_all();
  }
  if (!thread_.joinable()) copy_newest();
  MutexLock lock(mutex_);
  while (any_due() && env_.now() < deadline) {
    env_.wait_until(changed_, mutex_, deadline);
  }
  return !any_due();
}

bool TierCopier::any_due() const {
  return noted_ < committed_ || std::ranges::any_of(turns_, &Turn::due);
}

bool TierCopier::any_ready() const {
  if (noted_ < committed_) return true;
  for (const Turn& turn : turns_) {
    if (is_ready(turn)) return true;
  }
  return false;
}

bool TierCopier::is_ready(const Turn& turn) const {
  return turn.due && (hurries_ || env_.now() >= turn.not_before);
}

void TierCopier::wait_for_turn() {
  Instant next = kNoDeadline;
  for (const Turn& turn : turns_) {
    if (turn.due) next = std::min(next, turn.not_before);
  }
  if (next == kNoDeadline) return changed_.wait(mutex_);
  env_.wait_until(changed_, mutex_, next);
}

// Removes what earlier processes left half done. Ignores failures, because a tier that
// cannot be reached is reported when a step is copied to it.
void TierCopier::sweep() {
  const Result<Run> run = Run::open(env_, path_);
  if (!run.ok()) return;
  for (const TierCopy& to : tiers_) {
    const Result<int64_t> removed =
        to.tier->sweep(run->id(), env_.wall_now() - kLongAgo);
    if (!removed.ok() || *removed == 0 || events_ == nullptr) continue;
    emit(*events_, env_, TierSwept{.tier = to.tier->name(), .removed = *removed});
  }
}

void TierCopier::work() {
  sweep();
  while (true) {
    {
      MutexLock lock(mutex_);
      while (!any_ready() && !stopping_) wait_for_turn();
      if (!any_due()) return;
    }
    copy_newest();
  }
}

std::vector<size_t> TierCopier::take_turns() {
  MutexLock lock(mutex_);
  std::vector<size_t> ready;
  for (size_t i = 0; i < tiers_.size(); ++i) {
    const int64_t every = tiers_[i].every;
    if (committed_ / every != noted_ / every) turns_[i].due = true;
    if (is_ready(turns_[i])) ready.push_back(i);
  }
  noted_ = committed_;
  changed_.notify_all();
  return ready;
}

// The next turn comes when the copy has taken only duty_ of the time since it began.
void TierCopier::end_turn(size_t tier, Duration took) {
  MutexLock lock(mutex_);
  const std::chrono::duration<double> pause(took * (1 / duty_ - 1));
  turns_[tier] = {
      .due = false,
      .not_before = env_.now() + std::chrono::duration_cast<Duration>(pause)};
  changed_.notify_all();
}

void TierCopier::copy_newest() {
  const std::vector<size_t> ready = take_turns();
  if (ready.empty()) return;
  const Result<std::vector<TierStep>> steps = run_->steps();
  if (!steps.ok()) tell_failure(-1, run_->name(), steps.error());
  const bool any = steps.ok() && !steps->empty();
  if (any) {
    MutexLock lock(mutex_);
    reading_ = steps->front().id;
  }
  for (const size_t tier : ready) {
    const Instant start = env_.now();
    if (any) copy_to(tiers_[tier], steps->front());
    end_turn(tier, env_.now() - start);
  }
  MutexLock lock(mutex_);
  reading_.clear();
}

void TierCopier::copy_to(const TierCopy& to, const TierStep& newest) {
  const Instant start = env_.now();
  const Result<void> copied = copy_step(*run_, newest, *to.tier);
  if (!copied.ok()) {
    return tell_failure(newest.manifest.step, to.tier->name(), copied.error());
  }
  if (events_ != nullptr) {
    emit(*events_, env_,
         StepCopied{
             .step = newest.manifest.step,
             .tier = to.tier->name(),
             .seconds = std::chrono::duration<double>(env_.now() - start).count()});
  }
  retain_in(to);
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
