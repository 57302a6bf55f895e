// Makes all ranks of a job save, stop or change after the same steps, without a wait.
//
// Rank 0 decides for all ranks and announces its decision some steps ahead: "until step
// 120 there is one save, after step 117". A rank that comes to a step has received the
// decision about it long before, so training does not wait for a message, and all ranks
// save at the same step, whichever rank is fastest. Decisions are announced about a
// second ahead; rank 0 measures how long a step takes to know how many steps that is.
//
// Any rank may ask for a stop. Rank 0 then chooses the step of the last save.
//
// Threads: all calls come from the training thread.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "holdfast/checkpoint/channel.h"
#include "holdfast/env/env.h"
#include "holdfast/job/job.h"

namespace holdfast {

// A save, or a change, that is planned for a step.
struct Appointment {
  int64_t step = 0;
  Due due{};
};

class Agenda {
 public:
  // Called on rank 0 only. Returns the first save that is wanted among the steps
  // [first, last], or nullopt if there is none.
  using Decide = std::function<std::optional<Appointment>(int64_t first, int64_t last)>;

  // `transport` is null in a job of one rank. The transport and env must outlive the
  // agenda. A rank waits at most `patience` for a message of rank 0.
  Agenda(Env& env, Transport* transport, Decide decide, Duration patience);

  // What is due after this step. Each call names a later step than the call before. If
  // a step is left out, the save that was planned for it is due at the next call. Fails
  // with kTimeout or kUnavailable if no message of rank 0 arrives.
  Result<Due> at(int64_t step);

  // Begins again with a new set of processes, over a transport that has no messages of
  // the old one. `last` is the newest step that at() was called with on any rank, or -1:
  // nothing is due up to it. A stop that was asked for is announced again.
  void rejoin(int64_t last);

  // Asks rank 0 for a save outside the schedule, which all ranks make soon.
  Result<void> ask_to_save(const std::string& why);

  // Tells rank 0 that this process was asked to stop, so that all ranks stop soon.
  // Called at most once.
  Result<void> ask_to_stop(const std::string& why);

 private:
  bool behind(int64_t step) const;
  void announce(int64_t step);
  void measure(int64_t step);
  void hear_stops();
  void hear_wishes();
  Result<void> hear();
  void tell(int64_t until, const std::optional<Appointment>& appointment);
  void note(int64_t until, const std::optional<Appointment>& appointment);

  Env& env_;
  Transport* transport_;
  Channel channel_;
  const Decide decide_;
  const Duration patience_;
  int64_t serial_ = 0;
  std::optional<int64_t> until_;  // saves are decided for all steps up to this one
  std::map<int64_t, Due> appointed_;
  std::optional<std::string> stop_;  // rank 0: why a rank asked for a stop, if one did
  std::optional<std::string> wish_;  // rank 0: why a rank asked for a save, if one did
  bool stopping_ = false;

  // Rank 0 measures with these how long a step takes.
  std::optional<std::pair<int64_t, Instant>> last_;  // the last step, and when
  int64_t lead_ = 2;  // how many steps ahead rank 0 decides
};

}  // namespace holdfast
