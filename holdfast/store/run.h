// A run directory: the committed steps of a training run, found and ordered.
//
// Age is (epoch, sequence) of the manifests and never the number of the step: a job that
// goes back to step 300 and saves 400 again has a new 400, and what the old branch had
// beyond it does not win. Epochs count owners (owner.h), sequences count commits.
//
// Fencing. A step of an older epoch that appeared after its owner had lost the run is
// ignored: the owner's record says how far each older epoch had got when it took over.
// Without a readable owner record, or if a step could
// not be read at that time, nothing is fenced, and age alone decides, which puts
// such a step behind all that the new owner commits.
//
// Readers need no ownership. Steps are immutable; one that vanishes while it is looked
// at was removed by retention, and the run is listed again. Safe from several threads.
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

// By age: greater is newer.
inline std::pair<int64_t, int64_t> age_of(const Manifest& manifest) {
  return {manifest.epoch, manifest.sequence};
}

// A step folder that is no candidate, and why.
struct SkippedStep {
  std::string folder;  // its name in the run
  Error error;
};

struct StepList {
  std::vector<Step> steps{};  // newest first
  std::vector<SkippedStep> skipped{};
};

struct NewestWhole {
  Step step{};
  std::vector<SkippedStep> skipped{};
};

class Run {
 public:
  // Makes the folder a run directory, with this id or a new one, or opens the one that
  // it is: kConflict if another id was wanted. A damaged holdfast.json is written anew with
  // the id that all readable steps name. kCorrupt, with advice, if there is no such id or
  // if the file is missing although there are steps. Env must outlive the run.
  static Result<Run> create_or_open(Env& env, const Path& path, std::string id = "");
  // kNotFound if it is none. The id of a run whose holdfast.json is damaged is that of its
  // steps: kCorrupt if they do not agree.
  static Result<Run> open(Env& env, const Path& path);

  Env& env() const { return *env_; }
  const Path& path() const { return path_; }
  const std::string& id() const { return id_; }
  // What was wrong with holdfast.json when it was opened; then the id is that of the steps.
  const std::optional<Error>& damage() const { return damage_; }

  // The folder's names, for all who write in it.
  RunNames& names() const { return *names_; }

  // Makes `self` the owner, fenced against owners before it. kCorrupt, with advice, if
  // holdfast.json has no digest (version 1) and all steps are of runs that it does not name.
  Result<Owner> acquire(const Identity& self, OwnerOptions options = {}) const;

  // All committed steps. Fails only if the run cannot be listed.
  Result<StepList> steps() const;
  // The newest step that is whole as far as `depth` looks, having walked back over those
  // that are not. kNotFound without any step, kCorrupt if none is whole; the failure where
  // one cannot be told whole from damaged (cannot_tell in step_check.h).
  Result<NewestWhole> newest_whole(Depth depth, EventSink* events = nullptr) const;
  // One step by name; kNotFound if it is not there, kCorrupt if its manifest is.
  Result<Step> step(const StepName& name) const;

  // The number of the next commit, for the owner: greater than those of all steps that
  // were there at the first call, and than all that it gave before.
  Result<int64_t> next_sequence() const;
  // The step that an attempt became, for a rank that was not told; kNotFound if it is not
  // committed, or removed since.
  Result<Step> committed(int64_t step, uint64_t attempt) const;

  // Removes what crashes left: attempts, steps that were being removed, temporary files.
  // Only an owner may, for the attempts of others are then dead; those in `in_flight`
  // are its own. Checks ownership first. What cannot be removed is left for next time.
  Result<int64_t> sweep(const Owner& owner, const std::set<uint64_t>& in_flight) const;

 private:
  struct State;
  Run(Env& env, Path path, std::string id, bool checked,
      std::optional<Error> damage = {});

  Result<StepList> list_once(bool& vanished) const;
  // Nullopt if somebody removed steps meanwhile.
  Result<std::optional<NewestWhole>> walk_back(Depth depth, EventSink* events) const;

  Env* env_;
  Path path_;
  std::string id_;
  bool checked_;  // the id is as it was written: a digest says so
  std::optional<Error> damage_;
  // Shared by copies: what became of syncs, and the sequence.
  std::shared_ptr<RunNames> names_;
  std::shared_ptr<State> state_;
};

}  // namespace holdfast
