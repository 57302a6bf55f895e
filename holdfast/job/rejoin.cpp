// How a job goes on after lost ranks were replaced. The survivors call rejoin() while the
// new processes call Job::open(), and both have the same conversation: the steps from
// tiers, the saver, and what the new ones must learn.
#include <algorithm>

#include "holdfast/checkpoint/fetch.h"
#include "holdfast/checkpoint/wire_tags.h"
#include "holdfast/job/events.h"
#include "holdfast/job/job_core_internal.h"

namespace holdfast {
namespace {

// What a rank says of itself in meet_ranks().
const char* const kNew = "new";
const char* const kSurvivor = "survivor";
const char* const kDropped = "survivor whose save was dropped";

}  // namespace

Result<void> Job::Core::hear_fetched() {
  const Message told =
      HOLDFAST_TRY(ranks_.hear(kFetchSerial, options_.saver.write_timeout));
  return told.error.has_value() ? Result<void>(*told.error) : Result<void>();
}

Result<void> Job::drop_saves(Instant deadline) {
  HOLDFAST_TRY(core_->saver_->drop_saves(deadline));
  core_->dropped_saves_ = true;
  return {};
}

Result<void> Job::rejoin() {
  core_->doing_ = {"a new generation"};
  if (!core_->dropped_saves_) {
    return invalid(
        "rejoin: saves may be under way; expected drop_saves() before the "
        "transport was replaced");
  }
  core_->ranks_.reset();
  core_->end_.reset();
  core_->layouts_.forget_ranks();
  if (!core_->options_.saver.tiers.empty() && !core_->ranks_.coordinator()) {
    HOLDFAST_TRY(core_->hear_fetched());
  } else if (!core_->options_.saver.tiers.empty()) {
    // This rank has the run open, so there is nothing to fetch.
    HOLDFAST_TRY(core_->ranks_.tell_all({.serial = kFetchSerial, .kind = "fetch"},
                                        core_->options_.saver.timeout));
  }
  // Their job's epoch is greater than all others, so survivors do not look.
  static_cast<void>(HOLDFAST_TRY(core_->greatest_left_epoch(0)));
  HOLDFAST_TRY(core_->saver_->rejoin());
  static_cast<void>(HOLDFAST_TRY(core_->meet_ranks(true)));
  core_->dropped_saves_ = false;
  emit(core_->warnings_, core_->env_, JobRejoined{});
  return {};
}

// Survivors tell the new processes what those must know. True if this process is new and
// others have survived.
Result<bool> Job::Core::meet_ranks(bool survivor) {
  if (transport_ == nullptr) return false;
  const Message own{.serial = reached_,
                    .kind = !survivor       ? kNew
                            : drop_newest() ? kDropped
                                            : kSurvivor,
                    .attempt = static_cast<uint64_t>(false_alarms_),
                    .text = parent_};
  const std::vector<Bytes> all = HOLDFAST_TRY(
      transport_->all_gather(encode_message(own), env_.now() + options_.saver.timeout));
  bool survivors = false;
  for (const Bytes& bytes : all) {
    const Message other = HOLDFAST_TRY(decode_message(bytes));
    if (other.kind == kNew) continue;
    survivors = true;
    reached_ = std::max(reached_, other.serial);
    false_alarms_ = std::max(false_alarms_, static_cast<int>(other.attempt));
    if (parent_.empty()) parent_ = other.text;
    if (other.kind == kDropped) wanted_ = "the last one was dropped with a lost rank";
  }
  if (!survivors) return false;
  agenda_.rejoin(reached_);
  appointed_ = reached_;
  stopping_ = false;
  asked_ = false;  // a stop signal that came is passed on again
  return !survivor;
}

// Forgets the newest save if it was dropped, or has failed, which may be due to the lost
// rank. True if there was such a save.
bool Job::Core::drop_newest() {
  bool dropped = retries_.failing();
  retries_.succeeded();
  if (newest_.has_value() && newest_->handle.is_done() &&
      !newest_->handle.durable().ok()) {
    scheduler_.dropped(newest_->step);
    newest_.reset();
    dropped = true;
  }
  return dropped;
}

}  // namespace holdfast
