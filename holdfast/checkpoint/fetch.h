// Copies steps that only further tiers have back into the run directory.
//
// A run never begins anew while a tier may hold a checkpoint that could not be read,
// and never resumes from an older step because of an error that may pass. So three
// answers of a tier are told apart: a whole step; a damaged step (then an older step is
// used, and reported as older); and a tier, or a step in it, that could not be read.
#pragma once

#include <span>

#include "holdfast/env/event.h"
#include "holdfast/store/run.h"
#include "holdfast/store/tier.h"

namespace holdfast {

using Tiers = std::span<const std::shared_ptr<StorageTier>>;

// A step and where it is; a null tier stands for the run directory.
struct Offer {
  TierStep step;
  StorageTier* tier = nullptr;
};

struct Offers {
  // Newest first. Equal steps stand in the order of their tiers.
  std::vector<Offer> steps{};
  std::vector<SkippedStep> damaged{};      // damaged steps, which cannot be used
  std::vector<SkippedStep> unreachable{};  // tiers or steps that could not be read
  std::vector<SkippedStep> foreign{};      // tiers that hold another run; kConflict
  int64_t epoch = 0;                       // the greatest known epoch of a step
  // False if a tier or step could not be read, which may have a greater epoch.
  bool knows_epochs = true;

  // All entries but the whole steps. The unreachable ones, whose errors may pass, come
  // last.
  std::vector<SkippedStep> skipped() const;
};

// Asks all tiers for their steps of the run. An empty `run_id` means that there is no
// run directory yet; then all steps must belong to one run, or it fails with kConflict.
Result<Offers> ask_tiers(Tiers tiers, const std::string& run_id);

// Why a new run may not begin in a run directory without a whole step: kConflict if a
// tier holds another run, kCorrupt if its steps are damaged, or the error of a tier
// that could not be read. nullopt if a new run may begin.
std::optional<Error> why_not_anew(const Path& run, const Offers& offers,
                                  bool allow_unreachable_tiers);

// Copies a step of a tier into the run directory, which is made if it does not exist,
// and checks the bytes on the way. If the run directory already has a whole copy, that
// one is used. Returns the step's folder in the run directory. Tries up to three times
// if the error may pass soon. `events` may be null.
Result<Path> fetch_step(Env& env, const Path& run, StorageTier& tier,
                        const TierStep& step, EventSink* events = nullptr);

// Remembers the first step that could not be copied for a reason other than damage.
// After that another copy of the same step may be used, but an older step may not.
class FetchTrouble {
 public:
  // Notes why an offer could not be copied. A damaged step is added to `damaged` and
  // does not forbid older steps.
  void note(const Path& run, const Offer& offer, const Error& error,
            std::vector<SkippedStep>& damaged);
  // True if the offer is older than a step that could not be copied.
  bool forbids(const Offer& offer) const;
  const std::optional<Error>& error() const { return error_; }

 private:
  std::optional<Error> error_{};
  std::pair<int64_t, int64_t> age_{};
};

struct Fetched {
  Path folder{};       // in the run directory; empty if no tier has a newer step
  std::string tier{};  // the tier that the step came from
  // Tiers that could not be read and steps that are damaged. Each is also reported as
  // an event.
  std::vector<SkippedStep> skipped{};
};

struct FetchOptions {
  // Lets a new run begin in a run directory without a step although a tier, which may
  // hold an earlier run, does not answer.
  bool allow_unreachable_tiers = false;
  EventSink* events = nullptr;
};

// Copies the newest step of the tiers into the run directory, unless the run directory
// has that step or a newer one, whole. Call it before a saver opens the run directory:
// then a run that has lost its directory keeps its id and continues after its newest
// step.
//
// Fails with the error of the copy if the newest step could not be copied for a reason
// other than damage: an older step is used only if the newest is damaged. Fails also if
// no whole step exists anywhere and why_not_anew() has an objection. kInvalid if a tier
// is the run directory itself.
Result<Fetched> fetch_newest(Env& env, const Path& run, Tiers tiers,
                             const FetchOptions& options = {});

}  // namespace holdfast
