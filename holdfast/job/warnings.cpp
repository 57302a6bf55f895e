#include "holdfast/job/warnings.h"

#include <fmt/format.h>

#include <optional>

#include "holdfast/checkpoint/events.h"
#include "holdfast/store/events.h"

namespace holdfast {
namespace {

constexpr size_t kMost = 100;  // that wait for somebody who never asks

std::optional<std::string> sentence_of(const EventRecord& record) {
  if (const auto failed = event_as<MirrorFailed>(record); failed.ok()) {
    return failed->step < 0 ? fmt::format("tier {}: {}", failed->tier, failed->reason)
                            : fmt::format("step {} is not on {}: {}", failed->step,
                                          failed->tier, failed->reason);
  }
  if (const auto failed = event_as<SaveFailed>(record); failed.ok()) {
    return fmt::format("step {} was not saved: {}", failed->step, failed->reason);
  }
  if (const auto failed = event_as<RetentionFailed>(record); failed.ok()) {
    return fmt::format("old steps were not removed: {}", failed->reason);
  }
  if (const auto damaged = event_as<RunFileDamaged>(record); damaged.ok()) {
    return fmt::format("{}; {}", damaged->reason, damaged->remedy);
  }
  // Retention is routine, but not of a step beyond the newest: somebody has gone back.
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
  if (const auto swept = event_as<TierSwept>(record); swept.ok()) {
    return fmt::format("{} leftovers of copies that were cut off were removed from the "
                       "tier {}",
                       swept->removed, swept->tier);
  }
  return std::nullopt;
}

void keep(std::optional<std::string>& sentence, std::vector<std::string>& list) {
  if (list.size() < kMost) list.push_back(*std::move(sentence));
}

}  // namespace

void Warnings::put(const EventRecord& record) {
  if (next_ != nullptr) next_->put(record);
  std::optional<std::string> warning = sentence_of(record);
  std::optional<std::string> note;
  if (!warning.has_value()) note = note_of(record);
  MutexLock lock(mutex_);
  if (warning.has_value()) keep(warning, kept_);
  if (note.has_value()) keep(note, notes_);
}

std::vector<std::string> Warnings::take() {
  MutexLock lock(mutex_);
  return std::exchange(kept_, {});
}

std::vector<std::string> Warnings::take_notes() {
  MutexLock lock(mutex_);
  return std::exchange(notes_, {});
}

}  // namespace holdfast
