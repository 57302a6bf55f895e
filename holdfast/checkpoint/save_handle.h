// The handle of a save under way, with its two promises: captured and durable.
#pragma once

#include <memory>
#include <optional>

#include "holdfast/base/mutex.h"
#include "holdfast/env/env.h"

namespace holdfast {

// Where a checkpoint is safe.
struct Durable {
  Path folder;       // the folder of the step
  std::string tier;  // the name of the tier, e.g. "disk"
};

// Copies of a handle stand for the same save. Safe from several threads.
class SaveHandle {
 public:
  explicit SaveHandle(Env& env) : state_(std::make_shared<State>(env)) {}

  // Waits until the tensors may change again. Fails only with kTimeout, at the
  // deadline. A save that failed also counts as captured; durable() says why it failed.
  Result<void> captured(Instant deadline = kNoDeadline) const;
  bool is_captured() const;

  // Waits until no crash can lose the checkpoint. Fails with kTimeout at the deadline,
  // or with the error of the save: kConflict with "skipped" in its message if the save
  // was skipped or dropped by back-pressure.
  Result<Durable> durable(Instant deadline = kNoDeadline) const;
  bool is_done() const;  // true if the save is durable or has failed
  // True if the save failed because tensors were written to before they were captured
  // (guard.h), on any rank, or because replicas differ (replicas.h). Then it makes
  // sense to save again at once.
  bool is_torn() const;

  // Called by the saver. The first call counts, later ones are ignored. Only the thread
  // that reads the tensors may call set_captured(), and it must do so for failed saves
  // too.
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
  std::shared_ptr<State> state_;  // shared by the caller and the saver's threads
};

}  // namespace holdfast
