// A Saver as Python holds it. It keeps the arrays of a save alive until they are
// captured, and may be used by several Python threads.
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

// A save under way, and the Python object that keeps its arrays alive. The GIL guards
// it.
struct HeldHandle {
  // True if the arrays may change again. Then it also releases the owners.
  bool is_captured() const {
    if (!handle.is_captured()) return false;
    // Destroying the owners may run any Python code, so the member is emptied first.
    const nb::object last = std::exchange(*owners, nb::object());
    return true;
  }

  SaveHandle handle;
  // Shared by the copies of this handle: one in the saver, one in Python's hands.
  std::shared_ptr<nb::object> owners;
};

// Notices Ctrl-C during a call that waits without the GIL (SaverOptions::interrupted).
class Interruption {
 public:
  bool seen() {
    const nb::gil_scoped_acquire locked;
    if (PyErr_CheckSignals() == 0) return false;
    raised_.emplace();
    return true;
  }
  // Makes the call. If it fails after Ctrl-C, raises the exception of Ctrl-C instead of
  // the call's error.
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

// All calls need the GIL and release it while they wait. In a forked child save() and
// close() raise, and the destructor does nothing: the threads and the ownership of the
// run stay with the parent.
class HeldSaver {
 public:
  // Leave `events` and `interrupted` of the options unset: the constructor sets them.
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
  // Locked without the GIL. Saver's save() and close() may not run at the same time.
  std::mutex mutex_;
  std::unique_ptr<Warnings> warnings_;  // declared before the saver, which uses it
  std::unique_ptr<Saver> saver_;
};

}  // namespace holdfast::python
