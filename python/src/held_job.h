// A Job as Python holds it. It keeps alive what saves need, may be used by several
// Python threads, and refuses to work in a forked process.
#pragma once

#include <unistd.h>

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "holdfast/job/job.h"
#include "saver.h"

namespace holdfast::python {

// All calls need the GIL and release it while they wait.
class HeldJob {
 public:
  // Leave `options.saver.interrupted` unset: the constructor sets it to Python's
  // Ctrl-C.
  HeldJob(const Path& run, nb::object transport, JobOptions options);
  ~HeldJob();
  HeldJob(const HeldJob&) = delete;
  HeldJob& operator=(const HeldJob&) = delete;

  template <typename Call>
  auto call(const Call& call) {
    check_process();
    const nb::gil_scoped_release unlocked;
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    return unwrap(call(*job_));
  }

  // Does not take the mutex, so that it also works while another thread is inside a
  // call, perhaps waiting for other ranks. The same holds for take_notes().
  std::vector<std::string> take_warnings() {
    check_process();
    const nb::gil_scoped_release unlocked;
    return job_->take_warnings();
  }
  std::vector<std::string> take_notes() {
    check_process();
    const nb::gil_scoped_release unlocked;
    return job_->take_notes();
  }

  // Writes an event. Does not take the mutex either.
  template <typename Event>
  void write(const Event& event) {
    check_process();
    const nb::gil_scoped_release unlocked;
    emit(job_->events(), env(), event);
  }

  HeldHandle save(JobState state, nb::object owners);

  // If Ctrl-C or the timeout ends the wait for the capture, raises and settles nothing.
  Settled settle(const std::vector<std::string>& changed, CudaStream stream,
                 std::optional<double> timeout);
  // `alone` closes without other ranks (Job::close_alone). `orderly` is used only then.
  void close(std::optional<double> timeout, bool alone, bool orderly);

 private:
  void check_process() const;
  void forget_done();

  const pid_t process_ = ::getpid();
  const int forks_ = forks();
  nb::object transport_;  // declared before the job, which must not outlive it
  Interruption interruption_;
  std::deque<HeldHandle> under_way_;  // guarded by the GIL
  // Guards the job, and is locked without the GIL. It is recursive because a save calls
  // Python functions, and these may use the job.
  std::recursive_mutex mutex_;
  std::unique_ptr<Job> job_;
};

}  // namespace holdfast::python
