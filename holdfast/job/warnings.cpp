#include "holdfast/job/warnings.h"

#include <fmt/format.h>

#include "holdfast/checkpoint/events.h"
#include "holdfast/job/events.h"

namespace holdfast {
namespace {

constexpr size_t kMost = 100;  // that wait for somebody who never asks
constexpr Duration kAgain = std::chrono::seconds(55);  // it is said every minute

// Of events that stand for themselves.
std::optional<std::string> sentence_of(const EventRecord& record) {
  if (const auto failed = event_as<MirrorFailed>(record); failed.ok()) {
    return failed->step < 0 ? fmt::format("tier {}: {}", failed->tier, failed->reason)
                            : fmt::format("step {} is not on {}: {}", failed->step,
                                          failed->tier, failed->reason);
  }
  if (const auto failed = event_as<RetentionFailed>(record); failed.ok()) {
    return fmt::format("old steps were not removed: {}", failed->reason);
  }
  if (const auto late = event_as<RanksLate>(record); late.ok()) {
    return fmt::format(
        "rank {} has waited for {:.0f} s for {} to come to {}: the ranks may make "
        "different numbers of steps (uneven data, DDP's join()), one may be compiling, "
        "or only some have a Checkpointer",
        late->rank, late->seconds, late->missing, late->what);
  }
  return std::nullopt;
}

}  // namespace

void Warnings::put(const EventRecord& record) {
  if (next_ != nullptr) next_->put(record);
  MutexLock lock(mutex_);
  note(record);
}

void Warnings::note(const EventRecord& record) {
  if (const auto durable = event_as<SaveDurable>(record); durable.ok()) {
    durable_ = durable->step;
    failing_.reset();
  } else if (const auto restored = event_as<Restored>(record); restored.ok()) {
    durable_ = restored->step;
  } else if (const auto failed = event_as<SaveFailed>(record); failed.ok()) {
    note_failure(failed->step, failed->reason);
  } else if (std::optional<std::string> sentence = sentence_of(record)) {
    keep(*std::move(sentence));
  }
}

void Warnings::note_failure(int64_t step, const std::string& reason) {
  if (failing_.has_value()) {
    failing_->reason = reason;
    return;
  }
  const Instant now = env_.now();
  failing_ = {.since = now, .said = now, .reason = reason};
  keep(fmt::format("step {} was not saved: {}; training goes on, and {}", step, reason,
                   newest()));
}

std::string Warnings::newest() const {
  if (!durable_.has_value()) return "no step is durable yet";
  return fmt::format("the last durable step is {}", *durable_);
}

void Warnings::keep(std::string sentence) {
  if (kept_.size() < kMost) kept_.push_back(std::move(sentence));
}

std::vector<std::string> Warnings::take() {
  MutexLock lock(mutex_);
  const Instant now = env_.now();
  if (failing_.has_value() && now - failing_->said >= kAgain) {
    const std::chrono::duration<double> passed = now - failing_->since;
    failing_->said = now;
    keep(fmt::format("saves have failed for {:.0f} s: {}; {}", passed.count(),
                     failing_->reason, newest()));
  }
  return std::exchange(kept_, {});
}

}  // namespace holdfast
