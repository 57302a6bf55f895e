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
  return std::nullopt;
}

}  // namespace

void Warnings::put(const EventRecord& record) {
  if (next_ != nullptr) next_->put(record);
  std::optional<std::string> sentence = sentence_of(record);
  if (!sentence.has_value()) return;
  MutexLock lock(mutex_);
  if (kept_.size() < kMost) kept_.push_back(*std::move(sentence));
}

std::vector<std::string> Warnings::take() {
  MutexLock lock(mutex_);
  return std::exchange(kept_, {});
}

}  // namespace holdfast
