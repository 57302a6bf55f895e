// What a person should hear of while the job goes on: saves that were dropped, tiers that
// did not get their copy, ranks that others wait for.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "holdfast/env/event.h"

namespace holdfast {

// Passes events on, and keeps a sentence of some of them until it is asked for: a warning,
// or a note of what is as it should be and yet not to be done in silence. While saves fail,
// there is one warning about the first failure and then one a minute, which names the last
// durable step, however often a save is tried. Safe from several threads.
class Warnings : public EventSink {
 public:
  // `next` may be null. It and env must outlive this.
  explicit Warnings(Env& env, EventSink* next = nullptr) : env_(env), next_(next) {}

  void put(const EventRecord& record) override;
  // Those since the last call, in order. To be called every second or so.
  std::vector<std::string> take();
  std::vector<std::string> take_notes();

 private:
  // Saves fail, and none has succeeded since.
  struct Failing {
    Instant since;
    Instant said;  // when a sentence was last made of it
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
  std::optional<int64_t> durable_ HOLDFAST_GUARDED_BY(mutex_);  // the last such step
  std::optional<Failing> failing_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast
