// One training process and its checkpoints. A training loop in C++ uses this class
// directly; in Python, Checkpointer uses it.
//
//   job = Job::open(env, "runs/gpt", transport, {.schedule = {.every = EverySteps{500}}});
//   job->attach(pieces);                       // the pieces that this rank holds
//   start = job->resume(pieces)                // the newest undamaged checkpoint
//   for each step: train;
//     job->settle();                           // waits until a save is captured
//     update;
//     due = job->due(step);                    // the same on all ranks, without a wait
//     if (due.save) job->save({.step = step, ...});
//     if (due.stop) leave;                     // it is saved; exit with kStoppedExit
//   job->close();                              // returns when all saves are durable
//
// All ranks make the same calls in the same order. Calls fail as those of Saver do
// (saver.h).
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

// The exit status of a process that was asked to stop and has saved. It may be started
// again.
inline constexpr int kStoppedExit = 143;

struct JobOptions {
  // When to save (scheduler.h). Job::open() sets `workers` to the number of ranks.
  SchedulerOptions schedule{};
  // After a stop signal, wait_stopped() waits this long for the last save to be
  // durable.
  Duration grace = std::chrono::seconds(60);
  bool signals = true;  // SIGTERM and SIGUSR1 ask all ranks to save and stop
  // saver.events gets the events of the job, too. If it is null, they are written to
  // events/rank-0000.jsonl, events/rank-0001.jsonl and so on in the run directory.
  SaverOptions saver{};
};

// Called on all ranks when replicas of tensors turn out to differ. Returns the same
// pieces, but each differing replica either has a name that only this rank uses, or is
// left out because another rank saves it.
using OwnPieces = std::function<Result<LocalPieces>(const std::vector<Differing>&)>;

// What goes into a checkpoint.
struct JobState {
  int64_t step = 0;
  LocalPieces pieces{};
  SaveObjects objects{};
  std::function<Result<SaveObjects>()> make_objects{};  // as in SaveRequest
  std::map<std::string, double> metrics{};
  std::string parallel{};
  CudaStream stream = nullptr;  // training's stream, for pieces on devices
  // If set (on all ranks or on none), each save compares some of the replicas in the
  // background (replicas.h). If replicas differ, the save is dropped and made again.
  OwnPieces own{};
};

// Makes the pieces that a step is restored into.
using PiecesFor = std::function<Result<LocalPieces>(const StepFiles&)>;

class Job {
 public:
  // Opens the saver, on all ranks together. Before that, rank 0 copies the newest step
  // from the tiers if the run directory does not have it or does not exist (fetch.h).
  // `transport` is null in a job of one rank. The transport, env and what the options
  // point to must outlive the job.
  static Result<std::unique_ptr<Job>> open(Env& env, const Path& run,
                                           Transport* transport, JobOptions options);
  ~Job();

  // Fails with kInvalid, on all ranks, if the run has steps. For a program that begins
  // a new training: it would take steps of another training for older ones of its own,
  // and remove them. `expected` says in the message what to do instead. All ranks call
  // it together.
  Result<void> check_new(std::string_view expected);

  // Checks the pieces before the first step: the pieces of all ranks tile the tensors,
  // and replicas are equal. Also makes the staging ring. Not needed after resume().
  // Call it again when tensors were added, because save() does not compare all
  // replicas. Pieces on devices are read after the work that `stream` has been given so
  // far. Fails if replicas differ, unless `own` is set, which then renames or removes
  // them.
  Result<void> attach(const LocalPieces& pieces, CudaStream stream = nullptr,
                      const OwnPieces& own = {});

  // Fills the pieces from the newest undamaged checkpoint; see restore(). Reads from
  // the job's tiers unless the options name others; options.stream is training's
  // stream. Fails with kNotFound if there is no checkpoint.
  Result<RestoredState> resume(const LocalPieces& pieces,
                               const RestoreOptions& options = {});
  // The same for pieces that `pieces_for` makes to fit the checkpoint. It is called on
  // all ranks, once for every step that is tried.
  Result<RestoredState> resume(const PiecesFor& pieces_for,
                               const RestoreOptions& options = {});

  // What all ranks do after this step. `updated` says whether the model was updated
  // since the last call; if it was not, the schedule asks for no new save, and only a
  // stop does.
  Result<Due> due(int64_t step, bool updated = true);
  // True if any rank passes true. All ranks call it together.
  Result<bool> any(bool own);
  // Reports the loss after a step to policies that use it. Not every step needs a
  // report.
  void loss(int64_t step, double value) { scheduler_.loss(step, value); }
  // Asks for a save outside the schedule; all ranks make it soon. Only the call on rank
  // 0 has an effect. While saves fail the call is ignored, because Retries decides when
  // the next save is tried.
  void want(const std::string& why) {
    if (!retries_.failing()) wanted_ = why;
  }
  // The interval that the policy has found, and why: one line.
  std::string explain() const { return scheduler_.explain(); }
  // What went wrong since the last call and did not stop the job: one sentence each.
  // May be called from any thread at any time, also while the training thread waits for
  // other ranks. It is meant for a thread that calls it every second.
  std::vector<std::string> take_warnings() { return warnings_.take(); }
  // What the job did since the last call that a person should know, such as steps
  // removed from a tier: one sentence each. May be called from any thread at any time.
  std::vector<std::string> take_notes() { return warnings_.take_notes(); }
  // Saves, on all ranks together, whether a save was due or not. The save after which
  // the job stops waits until earlier saves leave room, whatever Backpressure says.
  Result<SaveHandle> save(JobState state);
  // Waits at most JobOptions::grace for the last save to be durable.
  Result<Durable> wait_stopped(const SaveHandle& handle);
  // settle() must be called before the pieces change. Both do what the functions of the
  // same name in Saver do.
  bool may_tear() const { return saver_->may_tear(); }
  Settled settle(const std::vector<std::string>& changed = {},
                 CudaStream stream = nullptr);

  // Waits until the save is captured, as settle() does, but checks nothing
  // (Saver::await_capture).
  Result<void> await_capture(Instant deadline);

  Result<void> close(Instant deadline = kNoDeadline);
  // Closes without waiting for other ranks, in a process that ends early
  // (Saver::close_alone). `orderly` says that the program ends by itself and nothing
  // has failed; the next process then does not count this end as a failure.
  Result<void> close_alone(Instant deadline = kNoDeadline, bool orderly = false);

 private:
  Job(Env& env, const Path& run, Transport* transport, JobOptions options,
      Scheduler scheduler);

  Result<void> fetch(const Path& run);
  std::optional<Appointment> decide(int64_t first, int64_t last);
  void consult(int64_t step);
  void learn_outcome();
  Result<LocalState> agree(const JobState& job, std::optional<Message>& decision);
  Result<LocalPieces> separate_replicas(const LocalPieces& pieces,
                                        const LocalState& state, const OwnPieces& own,
                                        CudaStream stream);
  Result<void> separate_replicas_of(JobState& job, const LocalState& state);
  void tell_late(const std::vector<int>& missing);
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
  LayoutAgreement layouts_;
  Agenda agenda_;
  Channel ranks_;
  bool asked_ = false;     // a signal was passed on to the agenda
  bool stopping_ = false;  // the next save is the last
  std::string parent_;     // the step folder that the job resumed from
  // How often replicas seemed to differ in a save and were equal in the check after it.
  // The same number on all ranks.
  int false_alarms_ = 0;
  std::string doing_ = "the start";  // where this rank waits for the other ranks

  // Rank 0 decides with these when the next save is made.
  Scheduler scheduler_;
  std::optional<int64_t> resumed_;     // the step that the job resumed from
  bool started_ = false;               // the scheduler was started
  int64_t appointed_ = -1;             // the newest step that EverySteps has chosen
  std::optional<std::string> wanted_;  // why a save should be made as soon as possible
  Retries retries_;
  // The newest save, until its outcome is learned.
  struct Newest {
    SaveHandle handle;
    int64_t step;
    Instant begun;
    int64_t bytes;
  };
  std::optional<Newest> newest_;
  Duration awaited_ = Duration::zero();  // spent in await_capture() since settle()
};

}  // namespace holdfast
