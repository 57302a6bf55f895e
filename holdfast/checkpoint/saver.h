// Saves the state of a job into a run directory, in the background.
//
// All ranks open a saver on the same directory and call save() at the same steps. A
// save is captured (the tensors may change again) when all its bytes are copied to the
// staging ring, and durable when rank 0 has committed it. A saver has one thread that
// captures and one that commits, while training goes on. commit.h describes the
// protocol.
//
// Failures: an error that may pass (see may_pass()) drops the save, emits an event, and
// the next save tries again. save() returns such an error only when all saves have
// failed for as long as `fail_after` says; close() returns it if the last save failed.
// An error that cannot pass (invalid, conflict, unsupported, corrupt) makes the next
// save() fail. save() and close() fail on all ranks alike. No failure touches an older
// checkpoint. When the disk is full, retention removes before the save what it would
// otherwise remove after it, but never the newest whole step.
//
// Threads: the training thread makes all calls to save() and close(). Without
// background threads (for tests that count every call) save() returns when the save is
// durable or has failed, and the ring holds the rank's whole state.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "holdfast/env/event.h"
#include "holdfast/memory/local_state.h"
#include "holdfast/state/object.h"
#include "holdfast/store/records.h"
#include "holdfast/store/tier.h"
#include "holdfast/transport/transport.h"

namespace holdfast {

struct Message;

// True for an error that may be gone at the next attempt: no_space, io, denied, timeout,
// unavailable, and not_found, because somebody has removed or moved the run directory,
// which the next attempt makes anew (Run::remake_if_gone()).
bool may_pass(const Error& error);

// What save() does when `in_flight` earlier saves are not durable yet.
enum class Backpressure {
  kWait,    // wait until an earlier save is durable or has failed
  kSkip,    // skip the new save, so that training does not wait
  kNewest,  // drop the earlier saves that still wait to be written
};

struct SaverOptions {
  // Bytes of the staging ring. 0 means: as large as this rank's shard, but at most this
  // rank's share of a quarter of the memory that is free on its machine.
  int64_t ring_bytes = 0;
  int64_t block_bytes = int64_t{4} << 20;
  int in_flight = 2;  // how many saves may have begun and not be durable yet
  Backpressure backpressure = Backpressure::kWait;
  std::optional<Keep> keep{};  // which steps are kept; all of them if not set
  // The name of the run directory as a tier ("memory" if it is in shared memory).
  std::string tier = "disk";
  // The further tiers that rank 0 copies committed steps to.
  std::vector<TierCopy> tiers{};
  // The share of the time in which a copy to each tier may be under way. A tier whose
  // copies take longer gets fewer steps; at the end it gets the newest one.
  double tier_duty = 1;
  // Lets a run begin in a directory without a step although a tier, which may hold
  // steps of an earlier run, does not answer. The steps in that tier then belong to
  // another run.
  bool allow_unreachable_tiers = false;
  // Pieces that have not changed since an earlier step are linked instead of written
  // again (reuse.h), and every `full_every`-th save is a full one. To find the
  // unchanged pieces, save() reads the whole state once before it is captured.
  bool incremental = false;
  int full_every = 16;
  // The zstd level, 1 to 22. With 0 shards are plain safetensors files. Compressed
  // shards are smaller and take longer to write and read, and only Holdfast can read
  // them.
  int compress = 0;
  // Where the seals of tensors come from. If from the tensors, and not from what is
  // written, damage to the copy in between is found, and one word of it mended, when the
  // step is restored. In host memory the copy then takes longer.
  SealAt seal_at = SealAt::kDevices;
  // The share of parity: each shard gets a file from which lost parts of the shard are
  // computed (shard/parity.h). 0 for none, else from kLeastParity to kMostParity. Older
  // versions of Holdfast check such a file and do not use it.
  double parity = 0;
  // Before the commit, read each shard again and check its digests.
  bool read_back = false;
  int64_t space_reserve = 64 << 20;  // bytes that a save leaves free on the disk
  bool direct = true;  // write without the page cache, where the file system allows it
  bool background = true;
  // Unless the guard is off, settle() must be called before the state changes
  // (guard.h).
  Guard guard = Guard::kOff;
  // save() calls it a few times a second, on the training thread, while it waits for
  // earlier saves. If it returns true, the wait ends and the save fails on all ranks.
  // Python passes Ctrl-C on in this way.
  std::function<bool()> interrupted{};
  // save() returns an error that may pass once no save has succeeded for this long. If
  // it is not set, save() never returns such an error.
  std::optional<Duration> fail_after{};
  // Lost ranks are replaced (rejoin()). A save that fails with kUnavailable, as it does
  // when a rank is lost, then counts as skipped.
  bool ranks_are_replaced = false;
  // How long ranks wait for each other to agree on a decision.
  Duration timeout = std::chrono::seconds(60);
  // How long ranks wait for each other until all have written their shards.
  Duration write_timeout = std::chrono::minutes(30);
  // The owner of the run. If not set, it is this process as a part of `job`
  // (process.h).
  std::optional<Identity> identity{};
  SchedulerJob job{};
  Duration lease = std::chrono::minutes(2);
  // The greatest epoch of this run that is known from elsewhere than the run directory
  // and the tiers. The epoch of rank 0's ownership is greater than it.
  int64_t known_epoch = 0;
  std::map<std::string, std::string> software{};  // name to version, for the manifest
  EventSink* events = nullptr;                    // must outlive the saver
};

// The objects of a save: the state that is not in tensors.
struct SaveObjects {
  Object of_all{};   // the same on all ranks; only rank 0's is written
  Object of_rank{};  // belongs to this rank alone
};
struct SaveRequest {
  int64_t step = 0;
  // The memory of its tensors must stay alive and unchanged until the save is captured
  // (without a guard) or settled (with one).
  const LocalState* state = nullptr;
  SaveObjects objects{};
  // Replaces `objects` if it takes long to collect them: save() calls it on the same
  // thread while the tensors are being copied. If it fails, all ranks drop the save.
  std::function<Result<SaveObjects>()> make_objects{};
  std::map<std::string, double> metrics{};
  std::string parallel{};  // the parallel configuration, in words
  std::string parent{};    // the step folder that the job resumed from
  std::string why{};       // the reason for the save, for the events
  // Whether the schedule asked for it. The default rule of retention removes only such
  // steps (Keep::only_temporary).
  bool automatic = false;
  // Tensors on CUDA devices are saved as they are after the work that was queued in
  // this stream before save(). For a device that the stream does not belong to, the
  // default stream is used instead (device.h).
  CudaStream stream = nullptr;
  // No save follows, so this one waits for room whatever Backpressure says. Only rank
  // 0's value counts.
  bool last = false;
  // Compares a part of the replicas that several ranks hold (replica_check.h). If they
  // differ, all ranks drop the save. With it settle() must be called before the state
  // changes, even if the guard is off. Has an effect only with background threads.
  bool compare = false;
  // The result of rank 0's propose(), if the caller has sent it to all ranks. Otherwise
  // it is null and save() sends it.
  const Message* decision = nullptr;
};

// What Saver::settle() found.
struct Settled {
  double waited = 0;                // how many seconds the call took
  std::vector<std::string> torn{};  // tensors that changed before they were captured
};

// A tensor whose replicas hold different bytes.
struct Differing {
  std::string tensor{};
  int rank = 0;       // the first rank that holds such a box
  int other = 0;      // a rank whose bytes differ from those of `rank`
  bool whole = true;  // the tensor is not cut: each of its holders has all of it
  // This rank is the first that holds its box of the tensor. All such ranks together
  // have each element of the tensor once.
  bool first = false;
};

// The place at which a durable checkpoint lies.
struct Durable {
  Path folder;       // the folder of the step
  std::string tier;  // the name of the tier, e.g. "disk"
};

// Copies of a handle stand for the same save. Safe from several threads.
class SaveHandle {
 public:
  explicit SaveHandle(Env& env);

  // Waits until the tensors may change again. Fails only with kTimeout, at the
  // deadline. A save that failed also counts as captured; durable() says why it failed.
  Result<void> captured(Instant deadline = kNoDeadline) const;
  bool is_captured() const;

  // Waits until no crash can lose the checkpoint. Fails with kTimeout at the deadline,
  // or with the error of the save: kConflict with "skipped" in its message if the save
  // was skipped or dropped by back-pressure.
  Result<Durable> durable(Instant deadline = kNoDeadline) const;
  bool is_done() const;  // true if the save is durable or has failed
  // When that was; nullopt before.
  std::optional<Instant> done_at() const;
  // True if the save failed because tensors were written to before they were captured
  // (guard.h), on any rank, or because replicas differ (replica_check.h). Then it makes
  // sense to save again at once.
  bool is_torn() const;

  // Called by the saver. The first call counts, later ones are ignored. Only the thread
  // that reads the tensors may call set_captured(), and it must do so for failed saves
  // too.
  void set_captured();
  void set_done(Result<Durable> outcome, bool torn = false);

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared by the caller and the saver's threads
};

class Saver {
 public:
  // Opens a saver. All ranks call it together, with the same options, also when one of
  // them is going to fail. Rank 0 makes the directory, becomes the owner of the run and
  // removes what crashes left behind. If one rank cannot open the run, all ranks fail.
  // `transport` is null for a job of one rank. `transport` and `env` must outlive the
  // saver.
  //
  // Fails with kConflict, on all ranks, if a live job owns the run; with kInvalid for
  // options that make no sense; with kTimeout or kUnavailable if a rank does not call.
  // A directory without a step is refused with kConflict if a tier holds steps, because
  // they must be fetched first (fetch.h); with kCorrupt if the steps of the tiers are
  // damaged; and with the error of the tier if the tier cannot be read.
  static Result<std::unique_ptr<Saver>> open(Env& env, const Path& run,
                                             Transport* transport = nullptr,
                                             SaverOptions options = {});
  // Waits until all saves and copies to tiers are over, and lets go of the run, if
  // close() has not done so.
  virtual ~Saver() = default;

  // For a step of this run that somebody else writes (handover/leave.h). next_manifest()
  // has run, epoch, sequence, time and software, and is newer than all saves so far. It is
  // called on rank 0 only, as check_owner() is; both fail with kConflict if another
  // process has taken the run.
  virtual const std::string& run_id() const = 0;
  virtual Result<Manifest> next_manifest() = 0;
  virtual Result<void> check_owner() const = 0;

  // Makes the plan for the state and the ring, so that the first save takes no longer
  // than the others. Calling it is optional. Earlier saves must be settled.
  virtual Result<void> prepare(const LocalState& state) = 0;

  // Called on rank 0 only, and optional: decides whether the next save is made,
  // skipped, or fails, and waits for room like save(). It is for a caller that sends
  // something to all ranks before the save anyway, and can send this message along
  // (SaveRequest::decision). `last` means the same as in SaveRequest.
  virtual Message propose(int64_t step, bool last = false) = 0;

  // Begins a save. Settles the save before it if the caller has not. Fails on all ranks
  // alike if earlier saves failed (see the top of this file), and with kTimeout or
  // kUnavailable if rank 0 does not answer. In all other cases it returns a handle,
  // also for a save that is skipped or turns out to be impossible.
  virtual Result<SaveHandle> save(SaveRequest request) = 0;

  // True if the next save() will return the error of an earlier save. Only rank 0
  // knows.
  virtual bool has_to_raise() = 0;

  // False if no later write can tear the saves that are not settled, because their
  // tensors were copied inside their device or by save() itself. Then the caller need
  // not look for tensors that have changed.
  virtual bool may_tear() const = 0;

  // Called before the state changes: waits until it is captured, and compares the copy
  // with the tensors. `changed` names tensors that are known to have been written to.
  // All ranks drop a save that was torn; the caller should mark the tensors that tore
  // with at_once. For tensors on CUDA devices settle() does not wait. It makes
  // `stream`, in which the tensors will be changed, wait until they are copied. Fails only
  // with kTimeout, if the state is not captured by the deadline. Then nothing is settled,
  // and a caller can do something else and call again.
  virtual Result<Settled> settle(const std::vector<std::string>& changed,
                                 CudaStream stream, Instant deadline) = 0;
  Settled settle(const std::vector<std::string>& changed = {},
                 CudaStream stream = nullptr) {
    return settle(changed, stream, kNoDeadline).value();
  }

  // Called on rank 0 only. replicas_differ() is true from the moment a save was dropped
  // because replicas differ; all following saves are dropped too, until the caller has
  // compared all replicas and calls trust_replicas(), which says that later saves have
  // no replicas that differ.
  virtual bool replicas_differ() const = 0;
  virtual void trust_replicas() = 0;

  // Waits until all saves are durable or have failed, and lets go of the run. If the
  // last save failed on any rank, close() fails with its error on all ranks. Rank 0
  // also waits until all steps are copied to the tiers. If the deadline passes first,
  // close() fails with kTimeout, the saves go on, the state must not change, and
  // close() may be called again.
  virtual Result<void> close(Instant deadline = kNoDeadline) = 0;

  // Like close(), but exchanges no messages about the end with the other ranks: for a
  // process that ends without knowing what they do. Returns when the saves of this rank
  // are over, or with kTimeout at the deadline. The caller then closes the transport,
  // which tells the other ranks that this one is gone.
  virtual Result<void> close_alone(Instant deadline = kNoDeadline) = 0;

  // After a rank was lost, on every survivor: ends all saves under way. They count as
  // skipped, not as failed; a save that all ranks had voted for may still be durable.
  // Failures of earlier saves that may pass are forgotten, because they may be due to
  // the lost rank. Call it when the transport is closed or broken, so that nothing waits
  // for other ranks, and before it is given to the next generation. kTimeout if a save
  // is still under way at the deadline.
  virtual Result<void> drop_saves(Instant deadline) = 0;

  // Then, when the transport reaches the new set of processes: talks to those that call
  // open() in place of the lost ranks. All survivors call it together. The one that
  // owns the run stays its owner; a new rank 0 becomes the owner in open(). Fails on all
  // ranks alike, and may be called again in the next generation.
  virtual Result<void> rejoin() = 0;

  virtual const Path& run() const = 0;
};

}  // namespace holdfast
