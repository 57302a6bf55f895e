// Saves the state of a job into a run directory, in the background.
//
// All ranks open a saver on the same directory and call save() at the same steps. A save
// is captured (the tensors may change again) when it is in the staging ring, and durable
// when rank 0 has committed it; the two threads of a saver do one and the other, while
// training goes on. commit.h has the protocol.
//
// Failures. What may pass (no_space, io, timeout, unavailable) drops the save, with an
// event, and the next one tries again; save() fails for it only where all saves have failed
// for as long as `fail_after` says, and close() if the last save failed. What cannot pass
// (invalid, conflict, unsupported, corrupt) makes the next save() fail. Both fail on all
// ranks alike. No failure touches an older checkpoint; where the disk is full, retention
// removes beforehand what it would remove after the save, never the newest whole step.
//
// Threads: save() and close() come from one thread, the training's. Without background
// threads (for tests that count every call) save() returns when all is done, and the ring
// holds the rank's whole state.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "holdfast/base/future.h"
#include "holdfast/checkpoint/channel.h"
#include "holdfast/checkpoint/save_handle.h"
#include "holdfast/checkpoint/tier_copier.h"
#include "holdfast/env/event.h"
#include "holdfast/memory/guard.h"
#include "holdfast/memory/local_state.h"
#include "holdfast/state/object.h"
#include "holdfast/store/process.h"
#include "holdfast/store/retention.h"
#include "holdfast/transport/transport.h"

namespace holdfast {

// What an attempt may fail with and the next one succeed.
bool may_pass(const Error& error);

// What to do with a save for which there is no room, because `in_flight` are under way.
enum class Backpressure {
  kWait,    // for room
  kSkip,    // it: training comes first
  kNewest,  // drop the ones that wait to be written
};

struct SaverOptions {
  // Bytes of the staging ring; 0 is the rank's part of the state, at most its part of a
  // quarter of the memory that is free on its machine.
  int64_t ring_bytes = 0;
  int64_t block_bytes = int64_t{4} << 20;
  int in_flight = 2;  // saves captured or being captured and not yet durable
  Backpressure backpressure = Backpressure::kWait;
  std::optional<Keep> keep{};  // all steps, unless it says otherwise
  // What the run directory is called as a tier ("memory" if it is in shared memory), and
  // those that committed steps are copied to; rank 0 does it.
  std::string tier = "disk";
  std::vector<TierCopy> tiers{};
  // Lets a run directory without a step begin although a tier, which may hold the run,
  // does not answer. What the tier holds then stays another run's.
  bool allow_unreachable_tiers = false;
  // Pieces that are as in the step before are not written again but linked (reuse.h),
  // and every n-th save is a full one. Looking for them costs a pass over the state
  // before it is captured.
  bool incremental = false;
  int full_every = 16;
  // Of zstd, 1 to 22; 0: shards are plain safetensors files. Compressed ones are smaller
  // and slower, and only Holdfast reads them.
  int compress = 0;
  bool read_back = false;            // compare what is on disk before it is committed
  int64_t space_reserve = 64 << 20;  // bytes that a save leaves free on the disk
  bool direct = true;  // past the system's cache, where the file system can
  bool background = true;
  // With one, settle() must be called before the state changes (guard.h).
  Guard guard = Guard::kOff;
  // Asked a few times a second, on the training thread, while save() waits for room. True
  // ends the wait, and the save fails on all ranks: Python's Ctrl-C comes this way.
  std::function<bool()> interrupted{};
  // Saves that fail for reasons that may pass are raised once none has succeeded for so
  // long; never, if it is not set.
  std::optional<Duration> fail_after{};
  // How long ranks wait for each other: for a decision, and for all to have written.
  Duration agree_within = std::chrono::seconds(60);
  Duration write_within = std::chrono::minutes(30);
  // Who owns the run; this process if not set, as a part of the job (process.h).
  std::optional<Identity> identity{};
  SchedulerJob job{};
  Duration lease = std::chrono::minutes(2);
  std::map<std::string, std::string> software{};  // versions, for the manifest
  EventSink* events = nullptr;                    // must outlive the saver
};

// What is no tensor.
struct SaveObjects {
  Object of_all{};   // the same on all ranks; rank 0's is kept
  Object of_rank{};  // this rank's alone
};
struct SaveRequest {
  int64_t step = 0;
  // Its memory stays alive and unchanged until the save is captured, or settled.
  const LocalState* state = nullptr;
  SaveObjects objects{};
  // Or, if it takes long to gather them: called by save() on the same thread, while the
  // tensors are being copied. An error drops the save on all ranks.
  std::function<Result<SaveObjects>()> make_objects{};
  std::map<std::string, double> metrics{};
  std::string parallel{};  // the parallel configuration, in words
  std::string parent{};    // the step folder that the job went on from
  // Tensors on CUDA devices are saved as they are after what was put into it so far. On
  // devices that it is not of, the default stream stands for it (device.h).
  CudaStream stream = nullptr;
  // No save follows: it waits for room, whatever Backpressure says. Rank 0's counts.
  bool last = false;
  // A part of what several ranks hold is compared (replicas.h): a save of replicas that
  // differ is dropped by all ranks. Then settle() must be called before the state changes,
  // whatever the guard. Only with background threads.
  bool compare = false;
  // What rank 0 has proposed, if the caller has told it to all ranks; else save() does.
  std::optional<Message> decision{};
};

class Saver {
 public:
  // Rank 0 makes the directory and owns the run from then on: kConflict, on all ranks,
  // if a live job has it. Sweeps what crashes left. What one rank cannot open, none does.
  // A directory without a step is not opened where a tier holds steps, which are to be
  // fetched first (fetch.h), or cannot be asked: kConflict, kCorrupt, or as it fails.
  // kInvalid for options that make no sense, which are to be the same on all ranks.
  // Collective, also where it fails: kTimeout or kUnavailable if a rank does not come.
  // `transport` is null for one rank; it and env must outlive the saver.
  static Result<std::unique_ptr<Saver>> open(Env& env, const Path& run,
                                             Transport* transport = nullptr,
                                             SaverOptions options = {});
  // close() without a deadline, if it was not called.
  virtual ~Saver() = default;

  // Plans for the state and makes the ring, so that the first save is like the others.
  // Not needed. Earlier saves are settled.
  virtual Result<void> prepare(const LocalState& state) = 0;

  // Rank 0's word about the save that comes next, for a caller that has something to tell
  // all ranks before it anyway: whether it is made, skipped, or fails. Waits for room.
  // `last` is that of SaveRequest.
  virtual Message propose(int64_t step, bool last = false) = 0;

  // Begins to save; settles the save before it if nobody has. Fails on all ranks alike if earlier saves did (see above), and with
  // kTimeout or kUnavailable where rank 0 does not answer; a handle otherwise, also for a
  // save that turns out to be impossible or is skipped.
  virtual Result<SaveHandle> save(SaveRequest request) = 0;

  // True if the next save() will fail for what earlier ones failed with. Rank 0 knows.
  virtual bool has_to_raise() = 0;

  // False if all that was saved is safe from what is done next (copied inside its device,
  // or by save() itself): then nobody need look for what has changed.
  virtual bool may_tear() const = 0;

  // Before the state changes: waits until it is captured, and holds the copy against it.
  // `changed` names tensors that are known to have been written to. A save that was torn is
  // dropped by all ranks; tensors that tear should be marked at_once.
  // Of tensors on CUDA devices nothing is waited for here: `stream`, in which the change
  // comes, is made to wait.
  virtual Settled settle(const std::vector<std::string>& changed = {},
                         CudaStream stream = nullptr) = 0;

  // The waiting of settle() alone, in pieces: kTimeout if it is not over by the deadline.
  // For callers that look after something else meanwhile.
  virtual Result<void> await_capture(Instant deadline) = 0;

  // Rank 0's: saves are dropped because replicas differ, until all of them were compared and
  // trust_replicas() says that no further save has replicas that differ.
  virtual bool replicas_differ() const = 0;
  virtual void trust_replicas() = 0;

  // Waits until all is durable, lets go of the run, and fails, on all ranks alike, as the
  // last save failed on any. Rank 0 then waits until all is copied to the tiers, too. What is not done
  // by the deadline (kTimeout) goes on, the state must stay as it is, and close() may be
  // called again.
  virtual Result<void> close(Instant deadline = kNoDeadline) = 0;

  // The same without a word to the other ranks, for a process that ends and does not know
  // what they do: when its saves are over, as all ranks make them, or at the deadline
  // (kTimeout). The caller then lets go of the transport, by which the others notice.
  virtual Result<void> close_alone(Instant deadline = kNoDeadline) = 0;

  virtual const Path& run() const = 0;
};

}  // namespace holdfast
