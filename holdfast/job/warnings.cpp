#include "holdfast/job/warnings.h"

#include <fmt/format.h>

#include "holdfast/checkpoint/events.h"
#include "holdfast/job/events.h"
#include "holdfast/store/events.h"

namespace holdfast {
namespace {

// More sentences are dropped: perhaps nobody ever takes them.
constexpr size_t kMost = 100;
// The warning about failing saves comes each minute. 55 s rather than 60 s, because
// take() is called only now and then.
constexpr Duration kAgain = std::chrono::seconds(55);

// The warning for an event that needs no knowledge of earlier events; nullopt for
// others.
std::optional<std::string> sentence_of(const EventRecord& record) {
  if (const auto failed = event_as<TierCopyFailed>(record); failed.ok()) {
    return failed->step < 0 ? fmt::format("tier {}: {}", failed->tier, failed->reason)
                            : fmt::format("step {} is not on {}: {}", failed->step,
                                          failed->tier, failed->reason);
  }
  if (const auto failed = event_as<RetentionFailed>(record); failed.ok()) {
    return fmt::format("old steps were not removed: {}", failed->reason);
  }
  if (const auto ended = event_as<ReplicaChecksEnded>(record); ended.ok()) {
    return fmt::format(
        "replicas seemed to differ {} times and were equal: the program writes to "
        "tensors while a save is made, so replicas are not compared any more",
        ended->false_alarms);
  }
  if (const auto missing = event_as<DeviceSealsMissing>(record); missing.ok()) {
    return fmt::format(
        "device {} cannot compute seals: {}; they are computed from copies in host "
        "memory, so damage to a copy before that is not found",
        missing->device, missing->reason);
  }
  if (const auto left = event_as<LeftNotTaken>(record); left.ok()) {
    return fmt::format(
        "{}: has step {}, which is newer and is not taken; expected handover=True",
        left->folder, left->step);
  }
  if (const auto damaged = event_as<RunFileDamaged>(record); damaged.ok()) {
    return fmt::format("{}; {}", damaged->reason, damaged->remedy);
  }
  if (const auto late = event_as<RanksLate>(record); late.ok()) {
    return fmt::format(
        "rank {} has waited for {:.0f} s for {} to come to {}: the ranks may make "
        "different numbers of steps (uneven data, DDP's join()), one may be compiling, "
        "or only some have a Checkpointer",
        late->rank, late->seconds, late->missing, late->what);
  }
  // Removing old steps is routine. A step newer than the newest one of the run is
  // removed only if the run was continued from an earlier step, and that deserves a
  // warning.
  const auto removed = event_as<TierStepRemoved>(record);
  if (removed.ok() && removed->step > removed->newest) {
    return fmt::format("step {} was removed from the tier {}, which ends at step {}",
                       removed->step, removed->tier, removed->newest);
  }
  return std::nullopt;
}

std::optional<std::string> note_of(const EventRecord& record) {
  if (const auto removed = event_as<TierStepRemoved>(record); removed.ok()) {
    return fmt::format("step {} was removed from the tier {}", removed->step,
                       removed->tier);
  }
  if (const auto removed = event_as<OldPlaceRemoved>(record); removed.ok()) {
    return fmt::format("{}: what a run or a boot that is gone had left was removed",
                       removed->folder);
  }
  if (const auto swept = event_as<TierSwept>(record); swept.ok()) {
    return fmt::format(
        "{} leftovers of copies that were cut off were removed from the "
        "tier {}",
        swept->removed, swept->tier);
  }
  return std::nullopt;
}

void keep(std::string sentence, std::vector<std::string>& list) {
  if (list.size() < kMost) list.push_back(std::move(sentence));
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
  } else if (std::optional<std::string> warning = sentence_of(record)) {
    keep(*std::move(warning), kept_);
  } else if (std::optional<std::string> sentence = note_of(record)) {
    keep(*std::move(sentence), notes_);
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
                   newest()),
       kept_);
}

std::string Warnings::newest() const {
  if (!durable_.has_value()) return "this process has saved none";
  return fmt::format("the last durable step is {}", *durable_);
}

std::vector<std::string> Warnings::take() {
  MutexLock lock(mutex_);
  const Instant now = env_.now();
  if (failing_.has_value() && now - failing_->said >= kAgain) {
    const std::chrono::duration<double> passed = now - failing_->since;
    failing_->said = now;
    keep(fmt::format("saves have failed for {:.0f} s: {}; {}", passed.count(),
                     failing_->reason, newest()),
         kept_);
  }
  return std::exchange(kept_, {});
}

std::vector<std::string> Warnings::take_notes() {
  MutexLock lock(mutex_);
  return std::exchange(notes_, {});
}

}  // namespace holdfast
