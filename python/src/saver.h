// A Saver as Python holds it: keeps the arrays of a save alive until they are captured,
// and lets several threads of Python use one saver.
#pragma once

#include <unistd.h>

#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "array.h"
#include "env.h"
#include "holdfast/checkpoint/saver.h"
#include "holdfast/job/warnings.h"

namespace holdfast::python {

// "wait", "skip" or "newest"; throws for anything else.
Backpressure backpressure_of(const std::string& name);

// "30m", "90" (seconds); none for none and for "never".
std::optional<Duration> fail_after_of(const std::optional<std::string>& text);

// A save under way, and whatever keeps its arrays' memory alive. The GIL guards it.
struct HeldHandle {
  // Lets go of the owners if the arrays may change again. True if so.
  bool is_captured() const {
    if (!handle.is_captured()) return false;
    const nb::object last = std::exchange(*owners, nb::object());  // may run any code
    return true;
  }

  SaveHandle handle;
  std::shared_ptr<nb::object> owners;  // of the saver and of Python's handle
};

// Ctrl-C during a call that waits without the GIL, for SaverOptions::interrupted.
class Interruption {
 public:
  bool seen() {
    const nb::gil_scoped_acquire locked;
    if (PyErr_CheckSignals() == 0) return false;
    raised_.emplace();
    return true;
  }
  // Calls, and raises what Ctrl-C raised meanwhile instead of what the call failed with.
  auto watch(const auto& call) {
    raised_.reset();
    try {
      return call();
    } catch (const Raised&) {
      if (raised_.has_value()) throw nb::python_error(*raised_);
      throw;
    }
  }

 private:
  std::optional<nb::python_error> raised_;
};

// All calls need the GIL and let go of it while they wait. A copy of it in a forked process
// does nothing: threads and ownership stay with the parent.
class HeldSaver {
 public:
  // `options` without `events` and `interrupted`.
  HeldSaver(const Path& run, SaverOptions options);
  ~HeldSaver();
  HeldSaver(const HeldSaver&) = delete;
  HeldSaver& operator=(const HeldSaver&) = delete;

  HeldHandle save(SaveRequest request, const std::vector<Array>& arrays,
                  nb::object owners);
  void close(std::optional<double> timeout);
  const Path& run() const { return saver_->run(); }
  std::vector<std::string> take_warnings() { return warnings_->take(); }
  std::vector<std::string> take_notes() { return warnings_->take_notes(); }

 private:
  void check_process() const;
  void forget_done();

  const pid_t process_ = ::getpid();
  Interruption interruption_;
  std::deque<HeldHandle> under_way_;  // guarded by the GIL
  LocalState last_;                   // guarded by the mutex
  std::mutex mutex_;  // taken without the GIL; save and close are one thread's
  std::unique_ptr<Warnings> warnings_;  // outlive the saver
  std::unique_ptr<Saver> saver_;
};

}  // namespace holdfast::python
