// Turns events into sentences that a person should read while the job goes on: saves
// that were dropped, tiers that did not get their copy, late ranks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "holdfast/base/mutex.h"
#include "holdfast/env/event.h"

namespace holdfast {

// Passes all events on, and makes a sentence of some of them: a warning if something
// went wrong, a note if all is well but a person should know, such as steps removed
// from a tier. The sentences are kept until they are taken. While saves fail, there is
// one warning about the first failure and then one each minute, however often a save is
// tried; both name the last durable step. Safe from several threads.
class Warnings : public EventSink {
 public:
  // `next` gets all events and may be null. `next` and env must outlive this object.
  explicit Warnings(Env& env, EventSink* next = nullptr) : env_(env), next_(next) {}

  void put(const EventRecord& record) override;
  // The warnings, or the notes, since the last call, oldest first. Call take() about
  // every second: it also makes the warning of each minute.
  std::vector<std::string> take();
  std::vector<std::string> take_notes();

 private:
  // Set while saves fail: from the first failure until a save is durable.
  struct Failing {
    Instant since;
    Instant said;  // when the last warning about it was made
    std::string reason;
  };

  void note(const EventRecord& record) HOLDFAST_REQUIRES(mutex_);
  void note_failure(int64_t step, const std::string& reason) HOLDFAST_REQUIRES(mutex_);
  std::string newest() const HOLDFAST_REQUIRES(mutex_);

  Env& env_;
  EventSink* const next_;
  Mutex mutex_;
  std::vector<std::string> kept_ HOLDFAST_GUARDED_BY(mutex_);
  std::vector<std::string> notes_ HOLDFAST_GUARDED_BY(mutex_);
  std::optional<int64_t> durable_ HOLDFAST_GUARDED_BY(mutex_);  // the last durable step
  std::optional<Failing> failing_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast
