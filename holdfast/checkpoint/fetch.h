// Steps that only other tiers have, brought back into the run directory.
//
// A run never begins anew beside a checkpoint that could not be read, and never goes on from
// an older step because of trouble that may pass. So what tiers say is told apart: a step, a
// step that is damaged (an older one will do, and is said to be older), and a tier or a part
// of it that could not be asked.
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
  std::vector<Offer> steps{};              // newest first; of equals the first tier's
  std::vector<SkippedStep> damaged{};      // steps of tiers that cannot be used
  std::vector<SkippedStep> unreachable{};  // tiers that could not be asked, and why
  std::vector<SkippedStep> foreign{};      // tiers that hold another run; kConflict
  int64_t epoch = 0;                       // the greatest that steps are known to have
  bool knows_epochs = true;  // false: what did not tell may have a greater

  // All but the steps, those that may pass last.
  std::vector<SkippedStep> skipped() const;
};

// Asks all tiers for the steps of the run. Without an id (there is no run yet) their steps
// must be of one run: kConflict.
Result<Offers> ask_tiers(Tiers tiers, const std::string& run_id);

// Why a run directory without a whole step does not begin anew: kConflict, kCorrupt, or as
// the tier failed; nullopt if nothing in the offers stands against it.
std::optional<Error> why_not_anew(const Path& run, const Offers& offers,
                                  bool allow_unreachable_tiers);

// Copies a step of a tier into the run directory, made if there is none, checked on the
// way; a copy that is there already, whole, will do. Returns the step's folder there. Tries
// again after what may pass soon, thrice in all. `events` may be null.
Result<Path> fetch_step(Env& env, const Path& run, StorageTier& tier,
                        const TierStep& step, EventSink* events = nullptr);

// Remembers that a step could not be copied here for a reason that may pass. Another copy of
// the same step will do then, an older step will not.
class FetchTrouble {
 public:
  // Notes why an offer was not taken: damage is added to `damaged`.
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
  Path folder{};       // in the run directory; empty: no tier has a newer step
  std::string tier{};  // that it came from
  // Tiers that could not be asked, and steps that are damaged; events too.
  std::vector<SkippedStep> skipped{};
};

struct FetchOptions {
  // Lets a run directory without a step begin anew although a tier that may hold the run
  // does not answer.
  bool allow_unreachable_tiers = false;
  EventSink* events = nullptr;
};

// Brings the newest step of the tiers here, unless the run directory has it, or a newer
// one, whole. To be called before the run directory is opened to save into: so a run that
// has lost its directory keeps its id, and counts on from where it was.
//
// Fails, as copying did, if the newest step is there and cannot be brought here now: an
// older one is taken only where it is damaged. Fails also if no step is to be had anywhere
// and a tier holds something all the same, or cannot be asked (why_not_anew). kInvalid if a
// tier is the run directory.
Result<Fetched> fetch_newest(Env& env, const Path& run, Tiers tiers,
                             const FetchOptions& options = {});

}  // namespace holdfast
