// A Job as Python holds it: keeps what saves need alive, lets two threads of Python use it,
// and does nothing in a forked process.
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

// All calls need the GIL and let go of it while they wait.
class HeldJob {
 public:
  // `options` without `interrupted`, which is Python's Ctrl-C.
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

  // While another thread is in a call, too: it may be waiting for other ranks.
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

  HeldHandle save(JobState state, nb::object owners);

  // Ctrl-C and the timeout end the wait for what is to be settled; then nothing is.
  Settled settle(const std::vector<std::string>& changed, CudaStream stream,
                 std::optional<double> timeout);
  // `alone`: without a word to other ranks.
  void close(std::optional<double> timeout, bool alone, bool orderly);

 private:
  void check_process() const;
  void forget_done();

  const pid_t process_ = ::getpid();
  const int forks_ = forks();
  nb::object transport_;  // outlives the job
  Interruption interruption_;
  std::deque<HeldHandle> under_way_;  // guarded by the GIL
  // Guards the job, and is taken without the GIL. What a save asks of Python may use the
  // job, too.
  std::recursive_mutex mutex_;
  std::unique_ptr<Job> job_;
};

}  // namespace holdfast::python
