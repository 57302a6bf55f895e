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

// Waits until fewer than `room` of the saves are under way, so that the next one need not;
// Ctrl-C ends this wait. Needs the GIL.
void wait_room(const std::deque<HeldHandle>& saves, size_t room);
// Saves that may be under way before one more has to wait; no end of them unless it waits.
inline size_t room_of(Backpressure backpressure, int in_flight) {
  return backpressure == Backpressure::kWait ? static_cast<size_t>(in_flight)
                                             : SIZE_MAX;
}

// All calls need the GIL and let go of it while they wait. A copy of it in a forked process
// does nothing: threads and ownership stay with the parent.
class HeldSaver {
 public:
  // `warnings` are where its events go; `room` is that of wait_room.
  HeldSaver(std::unique_ptr<Saver> saver, std::unique_ptr<Warnings> warnings,
            size_t room)
      : room_(room), warnings_(std::move(warnings)), saver_(std::move(saver)) {}
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
  const size_t room_;
  std::deque<HeldHandle> under_way_;  // guarded by the GIL
  LocalState last_;                   // guarded by the mutex
  std::mutex mutex_;  // taken without the GIL; save and close are one thread's
  std::unique_ptr<Warnings> warnings_;  // outlive the saver
  std::unique_ptr<Saver> saver_;
};

}  // namespace holdfast::python
