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
  // `room` is that of wait_room.
  HeldJob(std::unique_ptr<Job> job, nb::object transport, size_t room)
      : room_(room), transport_(std::move(transport)), job_(std::move(job)) {}
  ~HeldJob();
  HeldJob(const HeldJob&) = delete;
  HeldJob& operator=(const HeldJob&) = delete;

  template <typename Call>
  auto call(const Call& call) {
    check_process();
    const nb::gil_scoped_release unlocked;
    const std::lock_guard<std::mutex> lock(mutex_);
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

  // `state` without objects: they follow, and the save waits for them.
  HeldHandle save(JobState state, nb::object owners);
  void give_objects(Result<SaveObjects> objects);
  // Of a save whose caller did not come so far: others shall not wait for it.
  void give_up_objects(std::string_view why = "they were never given");

  // Ctrl-C and the timeout end the wait for what is to be settled; then nothing is.
  Settled settle(const std::vector<std::string>& changed, CudaStream stream,
                 std::optional<double> timeout);
  // `alone`: without a word to other ranks.
  void close(std::optional<double> timeout, bool alone, bool orderly);

 private:
  void check_process() const;
  void forget_done();
  void make_room(CudaStream stream);

  const pid_t process_ = ::getpid();
  const int forks_ = forks();
  const size_t room_;
  nb::object transport_;                    // outlives the job
  std::shared_ptr<FutureObjects> objects_;  // that the last save waits for
  std::deque<HeldHandle> under_way_;        // guarded by the GIL
  std::mutex mutex_;                        // of the job; taken without the GIL
  std::unique_ptr<Job> job_;
};

}  // namespace holdfast::python
