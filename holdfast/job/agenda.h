// What all ranks of a job do after which step, agreed upon without a wait.
//
// Rank 0 decides for all and says so some steps ahead: "until step 120 there is one save,
// after step 117". A rank that comes to a step has heard about it long before, so training
// never waits for a word, and all save at the same step whoever is first. How far ahead is
// half a second, whatever a step takes.
//
// Any rank may ask for a stop; rank 0 then appoints the last save.
//
// Threads: all calls come from the training thread.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "holdfast/checkpoint/channel.h"
#include "holdfast/env/env.h"

namespace holdfast {

// What is due after a step.
struct Due {
  bool save = false;
  bool stop = false;  // the save is the last, and the process is to end
  std::string why{};

  friend bool operator==(const Due&, const Due&) = default;
};

// A save at some step.
struct Appointment {
  int64_t step = 0;
  Due due{};
};

class Agenda {
 public:
  // Asked on rank 0: the first save that is wanted among the steps [first, last].
  using Decide = std::function<std::optional<Appointment>(int64_t first, int64_t last)>;

  // `transport` is null for one rank; it and env must outlive the agenda. A rank waits for
  // word of rank 0 for `patience` at most.
  Agenda(Env& env, Transport* transport, Decide decide, Duration patience);

  // What is due after this step. Steps ascend; what was appointed for one that was left out
  // is due at the next. kTimeout or kUnavailable if rank 0 is not heard.
  Result<Due> at(int64_t step);

  // This process is asked to stop: all shall, soon. At most once.
  Result<void> ask_to_stop(const std::string& why);

 private:
  bool behind(int64_t step) const;
  void announce(int64_t step);
  void measure(int64_t step);
  void hear_stops();
  Result<void> hear();
  void tell(int64_t until, const std::optional<Appointment>& appointment);
  void note(int64_t until, const std::optional<Appointment>& appointment);

  Env& env_;
  Transport* transport_;
  Channel channel_;
  const Decide decide_;
  const Duration patience_;
  int64_t serial_ = 0;
  std::optional<int64_t> until_;  // appointments are known for steps up to this one
  std::map<int64_t, Due> appointed_;
  std::optional<std::string> stop_;  // rank 0: somebody asked
  bool stopping_ = false;

  // Rank 0: how long a step takes.
  std::optional<std::pair<int64_t, Instant>> last_;
  int64_t lead_ = 2;  // steps
};

}  // namespace holdfast
