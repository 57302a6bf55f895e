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

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/checkpoint/restore.h"
#include "holdfast/checkpoint/saver.h"
#include "holdfast/schedule/cadence.h"

namespace holdfast {

// The exit status of a process that was asked to stop and has saved. It may be started
// again.
inline constexpr int kStoppedExit = 143;

struct JobOptions {
  // When to save (cadence.h). Job::open() sets `workers` to the number of ranks.
  SchedulerOptions schedule{};
  // After a stop signal, wait_stopped() waits this long for the last save to be
  // durable.
  Duration grace = std::chrono::seconds(60);
  bool signals = true;  // SIGTERM and SIGUSR1 ask all ranks to save and stop
  // A folder in shared memory, such as /dev/shm: hand_over() leaves the state there, and
  // resume() takes it from there if it is newer than the run directory's newest step.
  std::optional<Path> handover{};
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
  std::string why{};            // as in SaveRequest
  bool automatic = false;       // as in SaveRequest
  CudaStream stream = nullptr;  // training's stream, for pieces on devices
  // If set (on all ranks or on none), each save compares some of the replicas in the
  // background (replica_check.h). If replicas differ, the save is dropped and made again.
  OwnPieces own{};
};

// Makes the pieces that a step is restored into.
using PiecesFor = std::function<Result<LocalPieces>(const StepFiles&)>;

// What is due after a step.
struct Due {
  bool save = false;
  bool stop = false;  // this save is the last one, and the process ends after it
  bool change = false;  // not a save: the change that change() was called with
  std::string why{};    // of a change: what change() was called with

  friend bool operator==(const Due&, const Due&) = default;
};

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
  // What every rank passes, by rank. All ranks call it together, and wait for each other
  // for as long as they wait for what is due. Meant for small messages.
  Result<std::vector<Bytes>> gather(ByteView own);
  // True if every rank passes true within that time. False if one passes false, has not
  // called it by then, or is gone; all ranks that call it get the same answer, or, where
  // messages are lost, false. So a rank may call it that does not know whether the
  // others still do.
  bool all_agree(bool own, Duration at_most);
  // Reports the loss after a step to policies that use it. Not every step needs a
  // report.
  void loss(int64_t step, double value);
  // Asks for a save outside the schedule; all ranks make it soon. Only the call on rank
  // 0 has an effect. While saves fail the call is ignored, because it is decided
  // elsewhere when the next save is tried (retries.h).
  void want(const std::string& why);
  // The same from any rank, for a reason that does not depend on the schedule: the memory of a
  // rank is full, for example.
  Result<void> ask_to_save(const std::string& why);
  // Asks for a change that all ranks make after the same step, soon: due() then says so
  // on all of them. The text is the caller's. Only the call on rank 0 has an effect.
  void change(const std::string& what);
  // Asks all ranks to save and stop soon, as a stop signal does, for the reason `why`.
  // Any rank may call it, more than once.
  void ask_to_stop(const std::string& why);
  // The interval that the policy has found, and why: one line.
  std::string explain() const;
  // What went wrong since the last call and did not stop the job: one sentence each.
  // May be called from any thread at any time, also while the training thread waits for
  // other ranks. It is meant for a thread that calls it every second.
  std::vector<std::string> take_warnings();
  // What the job did since the last call that a person should know, such as steps
  // removed from a tier: one sentence each. May be called from any thread at any time.
  std::vector<std::string> take_notes();
  // Saves, on all ranks together, whether a save was due or not. The save after which
  // the job stops waits until earlier saves leave room, whatever Backpressure says.
  Result<SaveHandle> save(JobState state);
  // Leaves the state in the memory of the hosts (handover/leave.h) instead of a last save,
  // for the processes that are started next: on any number of ranks, with any layout. It
  // is not durable: a step that has lost a part with a host is passed over by resume().
  // Returns the folder on this host. Fails on all ranks alike, and training may then save
  // as usual: with kNoSpace if a host has no room.
  Result<Path> hand_over(JobState state);
  // The objects, the same on all ranks, of the newest step in the memory of this host, if
  // it is newer than those on disk; nullopt if there is none. Whether other hosts have
  // the rest of the step is not asked.
  Result<std::optional<Object>> left_objects();
  // Waits at most JobOptions::grace for the last save to be durable.
  Result<Durable> wait_stopped(const SaveHandle& handle);
  // settle() must be called before the pieces change. Both do what the functions of the
  // same name in Saver do.
  bool may_tear() const;
  Result<Settled> settle(const std::vector<std::string>& changed, CudaStream stream,
                         Instant deadline);
  Settled settle(const std::vector<std::string>& changed = {},
                 CudaStream stream = nullptr) {
    return settle(changed, stream, kNoDeadline).value();
  }

  // After a rank was lost, on every survivor: drop_saves() ends the saves under way, and
  // when the transport reaches the new set of processes (switch_transport.h), rejoin()
  // goes on together with the processes that open their job in place of the lost ranks.
  //
  //   close the transport; drop_saves(); replace the transport; rejoin()
  //
  // The tensors may change after drop_saves(). rejoin() is kInvalid without it, because a
  // save under way would send its messages to the new processes. A save that was dropped
  // is made again soon, and no save is due at the steps that any rank has reached already.
  // Both fail as those of Saver do; after a failure, rejoin() may be called in the next
  // generation.
  Result<void> drop_saves(Instant deadline = kNoDeadline);
  Result<void> rejoin();

  // Returns the log to which the job writes its events. The caller may write to it what
  // only the caller can know, from any thread.
  EventSink& events();

  Result<void> close(Instant deadline = kNoDeadline);
  // Closes without waiting for other ranks, in a process that ends early
  // (Saver::close_alone). `orderly` says that the program ends by itself and nothing
  // has failed; the next process then does not count this end as a failure.
  Result<void> close_alone(Instant deadline = kNoDeadline,
                           bool orderly = false);

 private:
  struct Core;
  explicit Job(std::unique_ptr<Core> core);

  const std::unique_ptr<Core> core_;
};

}  // namespace holdfast
