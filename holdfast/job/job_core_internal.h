// What a Job is made of: a saver, a scheduler that decides on rank 0 when the next save
// is made, and an agenda that tells all ranks.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "holdfast/checkpoint/channel.h"
#include "holdfast/checkpoint/fetch.h"
#include "holdfast/checkpoint/layout_agreement.h"
#include "holdfast/handover/survey.h"
#include "holdfast/job/agenda.h"
#include "holdfast/job/job.h"
#include "holdfast/job/retries.h"
#include "holdfast/job/stop_signals.h"
#include "holdfast/job/warnings.h"
#include "holdfast/schedule/scheduler.h"

namespace holdfast {

// The serial number of the message about steps from tiers, the only one with its tag.
inline constexpr int64_t kFetchSerial = 1;

// The functions of Job use its members. Its own functions are what they share, and what
// is called back.
struct Job::Core {
  Core(Env& env, const Path& run, Transport* transport, JobOptions options,
       Scheduler scheduler);
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  // Fetches the newest step from the tiers, opens the saver and learns from the event
  // log of earlier processes. Called once, before all other functions.
  Result<void> open_run(const Path& run);
  Result<void> fetch(const Path& run);
  Result<void> hear_fetched();
  Result<bool> meet_ranks(bool survivor);
  bool drop_newest();
  std::optional<Appointment> decide(int64_t first, int64_t last);
  void consult(int64_t step);
  void learn_outcome();
  Result<LocalState> agree(const JobState& job, std::optional<Message>& decision);
  Result<LocalPieces> separate_replicas(const LocalPieces& pieces,
                                        const LocalState& state, const OwnPieces& own,
                                        CudaStream stream);
  Result<void> separate_replicas_of(JobState& job, const LocalState& state);
  void tell_late(const std::vector<int>& missing);

  // What a handover needs (handover.cpp).
  JobRanks ranks() const { return {.env = &env_, .transport = transport_}; }
  Result<std::optional<RestoredState>> adopt_left(const StateFor& into,
                                                  const RestoreOptions& options,
                                                  std::vector<SkippedStep>& skipped,
                                                  const Result<RestoredState>* found);
  Result<RestoredState> restore_or_adopt(const StateFor& into,
                                         const RestoreOptions& options);
  Result<RestoredState> take_left(const Survey& survey, const FoundStep& left,
                                  const StateFor& into, const RestoreOptions& options);
  Result<bool> is_older(const Manifest& left, std::optional<int64_t> step) const;
  Result<bool> agree_is_older(const FoundStep& left, std::optional<int64_t> step,
                              const Result<RestoredState>* found);
  Result<int64_t> greatest_left_epoch(int64_t of_host) const;
  int64_t left_epoch(const Path& run) const;
  void forget_left();
  void clear_left(Instant deadline);
  void warn_of_left(const Result<RestoredState>& restored);
  std::optional<std::string> why_to_stop() const;
  double seconds_since(Instant start) const {
    return std::chrono::duration<double>(env_.now() - start).count();
  }
  Result<void> let_go(Result<void> closed, bool orderly);

  Env& env_;
  Transport* transport_;
  Learned learned_{};  // from the events of earlier processes; rank 0's
  std::unique_ptr<EventSink> log_;
  Warnings warnings_;  // passes the events on to the log
  const JobOptions options_;
  Fetched fetched_;  // what open() copied from the tiers
  // Declared before the saver, so that it is destroyed after it: while the saver
  // finishes its last save, a second signal must not end the process.
  std::unique_ptr<StopSignals> signals_;
  std::unique_ptr<Saver> saver_;
  // Where the state is left in memory, if the options say so.
  std::optional<SharedPlace> place_;
  // The memory of this host has steps. They are removed when a newer one is durable.
  bool has_left_ = false;
  // The attempts of steps in memory that could not be taken by this resume().
  std::set<uint64_t> tried_left_;
  std::optional<SaveHandle> replaces_left_;  // the save that shall be that one
  LayoutAgreement layouts_;
  Agenda agenda_;
  Channel ranks_;
  Channel end_;                 // for all_agree()
  bool dropped_saves_ = false;  // drop_saves() was called since the last rejoin()
  bool asked_ = false;          // a wish to stop was passed on to the agenda
  std::optional<std::string> stop_why_;  // what ask_to_stop() was called with
  bool stopping_ = false;       // the next save is the last
  std::string parent_;          // the step folder that the job resumed from
  // How often replicas seemed to differ in a save and were equal in the check after it.
  // The same number on all ranks.
  int false_alarms_ = 0;
  // Where this rank waits for the other ranks; behind the words, the number of a step.
  struct Doing {
    std::string_view words = "the start";
    std::optional<int64_t> step = std::nullopt;

    std::string text() const;
  } doing_;

  // Rank 0 decides with these when the next save is made.
  Scheduler scheduler_;
  std::optional<int64_t> resumed_;     // the step that the job resumed from
  bool started_ = false;               // the scheduler was started
  int64_t reached_ = -1;               // the newest step that due() was called with
  int64_t appointed_ = -1;             // the newest step that EverySteps has chosen
  std::optional<std::string> wanted_;  // why a save should be made as soon as possible
  std::optional<std::string> change_;  // what change() was called with
  Retries retries_;
  // The newest save, until its outcome is learned.
  struct Newest {
    SaveHandle handle;
    int64_t step;
    Instant begun;
    int64_t bytes;
    Duration stall;  // how long save() and settle() have kept training waiting
    bool settled = false;
  };
  std::optional<Newest> newest_;
};

}  // namespace holdfast
