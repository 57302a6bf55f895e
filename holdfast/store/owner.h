// Ownership of a run directory: only one process at a time may write in it.
//
// Ownership is counted in epochs. The claim on epoch E is the file owner-<E>.json, and
// the owner is the process that made the claim with the greatest epoch. A process takes
// a run like this:
//
//   1. It reads all claims. If the process that made the greatest claim lives and has
//      not released the run, the taker is refused.
//   2. It writes a claim on the next epoch under another name, syncs it, and renames it
//      to owner-<E>.json, replacing nothing. So if two processes try at once, one of
//      them fails.
//   3. It syncs the run folder and reads the claims again. If there is a greater claim
//      by now, its own claim came too late and is void.
//   4. From now on the old owner can see that it lost the run. The new owner notes in
//      its claim how far every older epoch got (the fence), copies the claim to
//      owner.json for people, and removes the older claims.
//
// The greatest claim is never removed, not even by release(), which only marks it.
// Suppose a taker slept between 1 and 2 while other owners came and went, so that the
// file name of its epoch is free again: in 3 it finds their greater claim. A taker that
// fails after 2 removes its own claim, which is safe because it has not removed an
// older claim yet. A crash at any point leaves the claim of a dead process.
//
// Late commits of a dead owner. An owner looks for a greater claim directly before it
// commits. So a late commit is possible only if the new claim is made between that look
// and the commit. Such a commit has an old epoch and a sequence beyond the fence.
// Readers ignore it (run.h), because the new owner has continued without it.
//
// An owner counts as dead
//   - if it has released the run;
//   - on this machine: if the machine was restarted since, if the process is gone, or
//     if its process number now belongs to another process;
//   - on another machine or in another container: if its lease has run out, or if it is
//     an earlier start of the same scheduler job.
// If none of this can be told, the owner counts as alive until its lease runs out.
//
// Damaged claims. Each claim ends with a digest. If the greatest claim and its copy are
// both damaged, nobody can tell which process made them. A live owner writes both files
// anew each third of its lease. So once both files are older than a lease, their owner
// counts as dead. Until then other processes are refused, with advice. The owner itself
// continues, because no other process makes a claim on its epoch.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "holdfast/env/env.h"
#include "holdfast/env/event.h"
#include "holdfast/store/process.h"
#include "holdfast/store/run_names.h"

namespace holdfast {

// How far each older epoch had got when an owner took the run: maps an epoch to the
// greatest sequence of its commits. A step that is older than the owner's epoch and not
// covered by the fence was committed too late.
using Fence = std::map<int64_t, int64_t>;

struct OwnerRecord {
  Identity who{};
  int64_t epoch = 0;
  // A random number that tells a process which claim is its own.
  uint64_t token = 0;
  WallTime since{};
  // When the owner last showed that it was at work.
  WallTime renewed{};
  WallTime lease_until{};
  bool released = false;
  // Without a fence, no step is known to have been committed too late.
  std::optional<Fence> fence{};
  friend bool operator==(const OwnerRecord&, const OwnerRecord&) = default;
};

Bytes encode_owner(const OwnerRecord& record);
// Fails with kCorrupt, naming `where`, and with kUnsupported for a newer version.
Result<OwnerRecord> decode_owner(ByteView json, const std::string& where);

// Returns the current owner, dead or alive, or nullopt if the run never had one. If the
// greatest claim is damaged, its copy in owner.json is used. Fails with kCorrupt if the
// copy is damaged too.
Result<std::optional<OwnerRecord>> read_owner(Env& env, const Path& run);

// Returns why the owner counts as dead, or nullopt if it lives. `self` is the process
// that asks, and `now` is the time at which it asks.
std::optional<std::string> why_dead(const OwnerRecord& owner, const Identity& self,
                                    WallTime now, const Liveness& alive);

struct OwnerOptions {
  // How long other processes wait for an owner on another machine that shows no sign of
  // life. The owner should call renew() each third of this time.
  Duration lease = std::chrono::minutes(2);
  // The greatest epoch in the manifests of the run's steps. The new epoch is greater
  // than it, also if the owner files were lost.
  int64_t above = 0;
  // False for an owner that only removes, such as `gc`: what earlier owners commit later
  // still counts. A folder that is a tier gets the steps of a job that goes on.
  bool fences = true;
  // Returns how far each epoch got. Called after the claim is made. If it returns
  // nullopt, because that cannot be told, only the fence of the previous owner is kept.
  std::function<Result<std::optional<Fence>>()> fence{};
  // Tells whether a process lives. If it is not set, start_of_process() is used.
  Liveness alive{};
  // The names of the run folder. Set it if other objects sync the same folder, so that
  // all of them know of a failed sync.
  std::shared_ptr<RunNames> names{};
  EventSink* events = nullptr;
};

// Ownership of a run. Safe from several threads. The destructor does not release the
// run: if a process ends without release(), the next one finds out that it is dead.
class Owner {
 public:
  // Makes this process the owner. Fails with kConflict, naming the owner and what to
  // do, if a live process owns the run or another process was faster. The folder must
  // exist.
  static Result<Owner> acquire(Env& env, const Path& run, const Identity& self,
                               const OwnerOptions& options = {});

  int64_t epoch() const;
  OwnerRecord record() const;
  // Fails with kConflict, naming the new owner, if another process has taken the run
  // over, and with kNotFound if somebody has removed or moved the claims or the run.
  Result<void> check() const;
  // Like check(), and also extends the lease, which processes on other machines look
  // at.
  Result<void> renew();
  // Writes the claim of this process anew, after the run directory was made anew. Replaces
  // nothing: fails with kConflict if another process has made a claim there.
  Result<void> claim_again();
  // Gives up the run, so that the next owner need not wait until the lease runs out.
  Result<void> release() &&;
  // The same after the run directory was renamed to `run`. So a process can own a run
  // until it has its final name.
  Result<void> release_at(const Path& run) &&;

 private:
  struct State;
  explicit Owner(std::shared_ptr<State> state) : state_(std::move(state)) {}

  // Shared, because attempts in flight check the ownership too.
  std::shared_ptr<State> state_;
};

}  // namespace holdfast
