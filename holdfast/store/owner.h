// Who may write in a run directory: one process at a time.
//
// Ownership is counted in epochs. The claim on epoch E is the file owner-<E>.json, and
// the owner is whoever made the claim with the greatest epoch:
//
//   1. Read all claims. The greatest one's maker lives and did not let go: refused.
//   2. Write a claim on the next epoch under another name, sync, and rename it to
//      owner-<E>.json, replacing nothing: of two takers one fails.
//   3. Sync the run folder, then look again: a greater claim means that this one came
//      too late and is void.
//   4. Now that the old owner can see that it lost, note in the claim how far every
//      older epoch got (the fence), copy the claim to owner.json for people, and remove
//      the older claims.
//
// The greatest claim is never removed, also not by release(), which only marks it. So a
// taker that slept between 1 and 2 while others came and went, and whose epoch's file is
// free again, finds theirs in 3. A failure after 2 takes the own claim back, which is
// safe because no older one was removed yet. A crash anywhere leaves a claim of a dead
// process.
//
// A dead owner's late commit. The old owner looks for a greater claim right before it
// commits, so only a commit between its look and the taker's claim can slip through. Such
// a commit has an old epoch and a sequence beyond the fence; readers ignore it (Run), for
// the new owner went on from what it saw without it.
//
// An owner is dead
//   - that let go,
//   - of this machine: if the machine was started anew since, or its process is gone, or
//     the process number now belongs to another,
//   - of another machine (or container): if its lease has run out, or if it is an earlier
//     start of the same scheduler job.
// Where it cannot be told, the owner lives until its lease runs out.
//
// Damaged claims. Claims end with a digest. Where the greatest one and its copy are both
// damaged, nobody can tell whose they are. A live owner writes both anew at a third of its
// lease, so that once they are a lease old, their owner counts as dead. Until then takers
// are refused with advice. The owner itself goes on: nobody else makes a claim on its epoch.
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

// How far each older epoch had got when an owner took the run: epoch to the greatest
// commit sequence. What is older than the owner's epoch and not in it came too late.
using Fence = std::map<int64_t, int64_t>;

struct OwnerRecord {
  Identity who{};
  int64_t epoch = 0;
  uint64_t token = 0;  // of this claim, to know one's own
  WallTime since{};
  WallTime renewed{};  // when it was last known to be at work
  WallTime lease_until{};
  bool released = false;
  std::optional<Fence> fence{};  // nullopt: nothing is known to have come too late
  friend bool operator==(const OwnerRecord&, const OwnerRecord&) = default;
};

Bytes encode_owner(const OwnerRecord& record);
// kCorrupt, naming `where`; kUnsupported for a newer version.
Result<OwnerRecord> decode_owner(ByteView json, const std::string& where);

// The owner now, dead or alive; nullopt where there never was one. Of a claim that is
// damaged the copy in owner.json serves; if that does not either: kCorrupt.
Result<std::optional<OwnerRecord>> read_owner(Env& env, const Path& run);

// Why the owner is dead, or nullopt if it lives. `self` is who asks, at `now`.
std::optional<std::string> why_dead(const OwnerRecord& owner, const Identity& self,
                                    WallTime now, const Liveness& alive);

struct OwnerOptions {
  // How long others wait for an owner on another machine that they hear nothing from:
  // renew() at a third of it.
  Duration lease = std::chrono::minutes(2);
  // The greatest epoch that the run's steps name, in case the owner files were lost.
  int64_t above = 0;
  // What the run holds, asked after the claim stands; nullopt if that cannot be told, and
  // then only what fenced the owner before is kept.
  std::function<Result<std::optional<Fence>>()> fence{};
  Liveness alive{};  // start_of_process if not set
  // Of the run, where others sync it too.
  std::shared_ptr<RunNames> names{};
  EventSink* events = nullptr;
};

// Ownership of a run. Safe from several threads. Does not let go by itself: a process
// that ends without release() is found dead by the next one.
class Owner {
 public:
  // kConflict, with the owner's name and what to do, if a live one holds the run, or
  // somebody else was faster. The folder must exist.
  static Result<Owner> acquire(Env& env, const Path& run, const Identity& self,
                               const OwnerOptions& options = {});

  int64_t epoch() const;
  OwnerRecord record() const;
  // kConflict, with the new owner's name, if somebody has taken over.
  Result<void> check() const;
  // Prolongs the lease, for others on other machines; also checks.
  Result<void> renew();
  // Lets go, so that the next owner need not wait for a lease.
  Result<void> release() &&;

 private:
  struct State;
  explicit Owner(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;  // shared: attempts in flight check it too
};

}  // namespace holdfast
