// A run directory: finds and orders the committed steps of a run.
//
// The age of a step is (epoch, sequence) of its manifest and never the number of the
// step. Suppose a job goes back to step 300 and saves step 400 again: the new step 400
// is then newer than all steps of the old branch, whatever their numbers are. Epochs
// count owners (owner.h), sequences count commits.
//
// Fencing. A step of an older epoch that was committed after its owner had lost the run
// is ignored. The record of the current owner says how far each older epoch had got
// when that owner took the run over. Nothing is fenced if the record cannot be read, or
// if a step could not be read at that time. Then only the age decides, which makes a
// late step older than every step that the new owner commits.
//
// Readers need no ownership. Steps never change. If a step vanishes while it is read,
// retention has removed it, and the run is listed again. Safe from several threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "holdfast/env/env.h"
#include "holdfast/env/event.h"
#include "holdfast/shard/step_name.h"
#include "holdfast/store/manifest.h"
#include "holdfast/store/owner.h"
#include "holdfast/store/run_names.h"
#include "holdfast/store/step_check.h"

namespace holdfast {

struct Step {
  StepName name{};
  Path folder{};
  Manifest manifest{};
};

// The age of a step. The greater age is the newer step.
inline std::pair<int64_t, int64_t> age_of(const Manifest& manifest) {
  return {manifest.epoch, manifest.sequence};
}

struct StepList {
  std::vector<Step> steps{};  // newest first
  std::vector<SkippedStep> skipped{};
};

struct NewestWhole {
  Step step{};
  std::vector<SkippedStep> skipped{};
};

// The step with the greatest number in a run directory, by the names alone, so that
// damaged steps count, too. Returns nullopt if there is none, or no such folder.
std::optional<StepName> greatest_step(Env& env, const Path& run);

class Run {
 public:
  // Makes the folder a run directory with this id, or with a new id if `id` is empty.
  // If the folder is a run directory already, opens it; fails with kConflict if its id
  // is not `id`. If holdfast.json is damaged, it is written anew with the id that all
  // readable steps name. Fails with kCorrupt, with advice, if there is no such id, or
  // if holdfast.json is missing although there are steps. Env must outlive the run.
  static Result<Run> create_or_open(Env& env, const Path& path, std::string id = "");
  // Fails with kNotFound if the folder is not a run directory. If holdfast.json is
  // damaged, the id is the one that all readable steps name; fails with kCorrupt if
  // there is no such id.
  static Result<Run> open(Env& env, const Path& path);

  Env& env() const { return *env_; }
  const Path& path() const { return path_; }
  const std::string& id() const { return id_; }
  // What was wrong with holdfast.json when the run was opened. If it is set, the id was
  // taken from the steps.
  const std::optional<Error>& damage() const { return damage_; }

  // The names of the run folder. Everyone who writes in this folder uses the same
  // object, so that all of them know of a failed sync.
  RunNames& names() const { return *names_; }

  // Makes `self` the owner and fences off late commits of earlier owners. Fails with
  // kCorrupt, with advice, if holdfast.json has no digest (version 1) and all steps
  // belong to other runs than it names.
  Result<Owner> acquire(const Identity& self, OwnerOptions options = {}) const;

  // All committed steps. Fails only if the run directory cannot be listed.
  Result<StepList> steps() const;
  // Finds the newest step that is whole as far as `depth` checks. Fails with kNotFound
  // if there is no step and with kCorrupt if no step is whole. If it cannot be told
  // whether a step is whole (cannot_tell() in step_check.h), fails with the error that
  // prevented it.
  Result<NewestWhole> newest_whole(Depth depth, EventSink* events = nullptr) const;
  // Reads one step by name. Fails with kNotFound if the step is not there and with
  // kCorrupt if its manifest is damaged.
  Result<Step> step(const StepName& name) const;

  // The sequence number of the next commit; only the owner uses it. It is greater than
  // the numbers of all steps that were there at the first call, and greater than all
  // numbers that were returned before.
  Result<int64_t> next_sequence() const;
  // The sequence number that the commit after the next `commits` ones will have.
  Result<int64_t> sequence_after(int64_t commits) const;
  // Finds the step that an attempt became, for a rank that was not told. Fails with
  // kNotFound if the attempt is not committed, or if the step was removed since.
  Result<Step> committed(int64_t step, uint64_t attempt) const;

  // Makes the run directory anew, with the same id and owner, if somebody has removed or
  // moved it, so that a training goes on saving at the place that it was given. Does
  // nothing if the directory is there. Only the owner may call it. Emits an event. Removes
  // nothing: fails with kConflict if another run has begun at the place, with
  // kUnavailable if there are steps without holdfast.json, as while a run is being
  // removed, and leaves the claims of other processes to Owner::check().
  Result<void> remake_if_gone(Owner& owner, EventSink* events) const;

  // Removes what crashes have left: attempts, steps whose removal had begun, and
  // temporary files. A step that was pinned meanwhile gets its name again. Only the owner may call it, because while it owns the run all
  // attempts of others are dead. `in_flight` names the owner's own attempts, which
  // stay. Checks the ownership first. What cannot be removed is left for the next call.
  // Returns how many entries were removed.
  Result<int64_t> sweep(const Owner& owner, const std::set<uint64_t>& in_flight) const;

 private:
  struct State;
  Run(Env& env, Path path, std::string id, bool checked,
      std::optional<Error> damage = {});

  Result<StepList> list_once(bool& vanished) const;
  // Claims the run anew if it has no claim at all. True if it did.
  Result<bool> claim_if_gone(Owner& owner, bool has_run_file) const;
  // Gives a step whose removal had begun its name again if it is pinned and whole.
  Result<bool> bring_back(const std::string& trash, const StepName& step) const;
  // Looks for the newest whole step in one listing. Returns nullopt if another process
  // removed a step meanwhile.
  Result<std::optional<NewestWhole>> walk_back(Depth depth, EventSink* events) const;

  Env* env_;
  Path path_;
  std::string id_;
  // True if a digest, or the steps, confirm the id.
  bool checked_;
  std::optional<Error> damage_;
  // Shared by all copies of this Run: the outcome of syncs, and the last sequence
  // number.
  std::shared_ptr<RunNames> names_;
  std::shared_ptr<State> state_;
};

}  // namespace holdfast
