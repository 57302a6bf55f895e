// A save under way, with its two promises.
#pragma once

#include <memory>
#include <optional>

#include "holdfast/base/mutex.h"
#include "holdfast/env/env.h"

namespace holdfast {

// Where a checkpoint is safe.
struct Durable {
  Path folder;       // of the step
  std::string tier;  // "disk", ...
};

// Copies are the same save. Safe from several threads.
class SaveHandle {
 public:
  explicit SaveHandle(Env& env) : state_(std::make_shared<State>(env)) {}

  // The tensors may change again. Fails with kTimeout at the deadline; otherwise returns
  // when they may, also if the save has failed: that is what durable() says.
  Result<void> captured(Instant deadline = kNoDeadline) const;
  bool is_captured() const;

  // No crash can lose the checkpoint. kTimeout at the deadline, else why there is none:
  // kConflict with "skipped" if a save under way left no room for it (Backpressure).
  Result<Durable> durable(Instant deadline = kNoDeadline) const;
  bool is_done() const;  // durable, or failed
  // It failed because tensors were written to before they were captured (guard.h), on
  // whatever rank, or because replicas differ (replicas.h): the next save is worth making at
  // once.
  bool is_torn() const;

  // For whoever carries the save out; each once, the later ones are ignored. Only the half
  // that reads the tensors may promise the first, also of a save that has failed.
  void set_captured();
  void set_done(Result<Durable> outcome, bool torn = false);

 private:
  struct State {
    explicit State(Env& environment) : env(environment) {}
    Env& env;
    Mutex mutex;
    Condition changed;
    bool captured HOLDFAST_GUARDED_BY(mutex) = false;
    bool torn HOLDFAST_GUARDED_BY(mutex) = false;
    std::optional<Result<Durable>> done HOLDFAST_GUARDED_BY(mutex);
  };
  std::shared_ptr<State> state_;  // of the caller and of the threads that save
};

}  // namespace holdfast
