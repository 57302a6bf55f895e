// One training process with its checkpoints: what a training loop holds, in C++ or behind
// the Python face.
//
//   job = Job::open(env, "runs/gpt", transport, {.schedule = {.every = EverySteps{500}}});
//   job->attach(pieces);                       // what this rank holds
//   start = job->resume(pieces)                // newest whole checkpoint, any layout
//   for each step: train;
//     job->settle();                           // before the update: copies are complete
//     update;
//     due = job->due(step);                    // agreed by all ranks, without a wait
//     if (due.save) job->save({.step = step, ...});
//     if (due.stop) leave;                     // saved; exit with kStoppedExit
//   job->close();                              // all is durable
//
// All ranks make the same calls in the same order. Failures are those of Saver (saver.h).
// Threads: all calls come from the training thread.
#pragma once

#include <memory>
#include <optional>

#include "holdfast/checkpoint/fetch.h"
#include "holdfast/checkpoint/layout_agreement.h"
#include "holdfast/checkpoint/restore.h"
#include "holdfast/checkpoint/saver.h"
#include "holdfast/job/agenda.h"
#include "holdfast/job/retries.h"
#include "holdfast/job/stop_signals.h"
#include "holdfast/job/warnings.h"
#include "holdfast/schedule/scheduler.h"

namespace holdfast {

// Of a process that was asked to stop, has saved, and may be started again.
inline constexpr int kStoppedExit = 143;

struct JobOptions {
  // When to save (scheduler.h). Its `workers` is the number of ranks, whatever it says.
  SchedulerOptions schedule{};
  // For the save after a stop signal, until it is durable.
  Duration grace = std::chrono::seconds(60);
  bool signals = true;  // SIGTERM and SIGUSR1 ask all ranks to save and stop
  // Its `events` are those of the job; if not set, they go to events/rank-0000.jsonl and so
  // on in the run directory.
  SaverOptions saver{};
};

// Asked for on all ranks when tensors are found to differ that several ranks hold: the same
// pieces with names that are each rank's own, or without those that another rank holds.
using OwnPieces = std::function<Result<LocalPieces>(const std::vector<Differing>&)>;

// What goes into a checkpoint beside the pieces.
struct JobState {
  int64_t step = 0;
  LocalPieces pieces{};
  SaveObjects objects{};
  std::function<Result<SaveObjects>()> make_objects{};  // as in SaveRequest
  std::map<std::string, double> metrics{};
  std::string parallel{};
  CudaStream stream = nullptr;  // training's, for pieces on devices
  // With it, a part of what several ranks hold is compared in the background (replicas.h),
  // on all ranks alike. Where some differs, the save is dropped and made again.
  OwnPieces own{};
};

using PiecesFor = std::function<Result<LocalPieces>(const StepFiles&)>;

class Job {
 public:
  // Opens the saver, on all ranks together. What only its tiers have is brought back
  // first (fetch.h): the newest step may be there, and the run with it. `transport` is null
  // for one rank; it, env and what the options point to must outlive the job.
  static Result<std::unique_ptr<Job>> open(Env& env, const Path& run,
                                           Transport* transport, JobOptions options);
  ~Job();

  // Looks at the pieces before the first step: they tile, replicas are equal, the ring is
  // there. Again where tensors were added: a save does not compare their replicas. Not needed
  // after resume(). What is on devices is looked at as it is after what was put into
  // training's stream so far. Replicas that differ are refused, unless `own` makes them own.
  Result<void> attach(const LocalPieces& pieces, CudaStream stream = nullptr,
                      const OwnPieces& own = {});

  // Fills the pieces; see restore(), whose tiers are the tiers unless the options name
  // others, and whose stream is training's. kNotFound if there is no checkpoint.
  Result<RestoredState> resume(const LocalPieces& pieces,
                               const RestoreOptions& options = {});
  // The same for pieces that are made to fit what is in the checkpoint. Asked for on all
  // ranks, once for every step that is tried.
  Result<RestoredState> resume(const PiecesFor& pieces_for,
                               const RestoreOptions& options = {});

  // What all ranks do after this step. `updated`: an update was made since the last call;
  // otherwise nothing new is wanted but a stop.
  Result<Due> due(int64_t step, bool updated = true);
  // True if any rank says so. Collective.
  Result<bool> any(bool own);
  // The loss after a step, for policies that look at it; every k-th step will do.
  void loss(int64_t step, double value) { scheduler_.loss(step, value); }
  // A save is wanted, by whoever knows better: all ranks make it soon. Rank 0's counts. While
  // saves fail, the next try comes when it is time for one.
  void want(const std::string& why) {
    if (!retries_.failing()) wanted_ = why;
  }
  // The interval that the policy has found, and why: one line.
  std::string explain() const { return scheduler_.explain(); }
  // What went wrong since the last call and did not stop the job: one sentence each. Safe
  // from all threads, at any time: for one that looks every second, also while this one
  // waits for other ranks.
  std::vector<std::string> take_warnings() { return warnings_.take(); }
  // What was done since the last call and should not go unsaid: one sentence each. Safe
  // as take_warnings() is.
  std::vector<std::string> take_notes() { return warnings_.take_notes(); }
  // Saves, on all ranks together; whether it was due or not. Once a stop is due it waits
  // for room, whatever Backpressure says.
  Result<SaveHandle> save(JobState state);
  // Waits for the last save to be durable, for as long as `grace` allows.
  Result<Durable> wait_stopped(const SaveHandle& handle);
  // Before the pieces change (Saver::settle); may_tear() is the saver's, too.
  bool may_tear() const { return saver_->may_tear(); }
  Settled settle(const std::vector<std::string>& changed = {},
                 CudaStream stream = nullptr);

  // The waiting of settle() alone (Saver::await_capture).
  Result<void> await_capture(Instant deadline);

  Result<void> close(Instant deadline = kNoDeadline);
  // For a process that ends before its time (Saver::close_alone). `orderly`: it leaves
  // because its program ends, not because something failed; the next process then does not
  // count this end as a failure.
  Result<void> close_alone(Instant deadline = kNoDeadline, bool orderly = false);

 private:
  Job(Env& env, const Path& run, Transport* transport, JobOptions options,
      Scheduler scheduler);

  Result<void> fetch(const Path& run);
  std::optional<Appointment> decide(int64_t first, int64_t last);
  void consult(int64_t step);
  void learn_outcome();
  Result<LocalState> gather(const JobState& job, std::optional<Message>& decision);
  Result<LocalPieces> part(const LocalPieces& pieces, const LocalState& state,
                           const OwnPieces& own, CudaStream stream);
  Result<void> part_save(JobState& job, const LocalState& state);
  void tell_late(const std::vector<int>& missing);
  Result<void> let_go(Result<void> closed, bool orderly);

  Env& env_;
  Transport* transport_;
  Learned learned_{};  // from the events of earlier processes; rank 0's
  std::unique_ptr<EventSink> log_;
  Warnings warnings_;  // before the log
  const JobOptions options_;
  Fetched fetched_;  // when it was opened
  // Before the saver: a signal that comes again shall not end its last save.
  std::unique_ptr<StopSignals> signals_;
  std::unique_ptr<Saver> saver_;
  LayoutAgreement gatherer_;
  Agenda agenda_;
  Channel ranks_;
  bool asked_ = false;     // to stop
  bool stopping_ = false;  // the next save is the last
  std::string parent_;     // the step folder that the job goes on from
  // Saves of replicas that differed, and then did not; the same on all ranks.
  int false_alarms_ = 0;
  std::string doing_ = "the start";  // what other ranks are waited for to come to

  // Rank 0's, for the next decision.
  Scheduler scheduler_;
  std::optional<int64_t> resumed_;  // the step that it goes on from
  bool started_ = false;
  int64_t appointed_ = -1;             // the last step of an appointment by steps
  std::optional<std::string> wanted_;  // a save, as soon as can be, and why
  Retries retries_;
  // The newest save, until its outcome is learned.
  struct Newest {
    SaveHandle handle;
    int64_t step;
    Instant begun;
    int64_t bytes;
  };
  std::optional<Newest> newest_;
  Duration awaited_ = Duration::zero();  // before settle()
};

}  // namespace holdfast
