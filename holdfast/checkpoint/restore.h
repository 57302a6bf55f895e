// Brings the state back from a run directory: any checkpoint into any layout.
//
//   1. Rank 0 walks back from the newest step to one that is whole and tells all.
//   2. All open it, and agree that they have.
//   3. Every rank plans files -> its memory, reads what it needs and checks it.
//   4. All report. Damage anywhere sends all ranks back to 1, to the step before; a rank
//      that read parts without their chunks' digests (read_pieces.h) sends along what they add
//      to their tensors' seals, and rank 0 holds the sums against the writers'.
//   5. Rank 0 tells all the outcome.
//
// A read that fails is made again after a pause (base/patient_env.h). What the disk still
// does not give back is damage, and sends all ranks to the step before; a failure that says
// nothing of the step (no memory, a stale handle, no permission) ends the restore, because
// an older step would lose work that may be whole.
//
// After kTimeout or kUnavailable the ranks do not agree on where they are, and the
// transport serves for no other restore.
#pragma once

#include <functional>

#include "holdfast/checkpoint/read_pieces.h"
#include "holdfast/env/event.h"
#include "holdfast/store/run.h"
#include "holdfast/store/tier.h"
#include "holdfast/transport/transport.h"

namespace holdfast {

struct RestoreOptions {
  std::optional<int64_t> step{};  // this step, as last saved; the newest if not set
  bool verify_all = false;        // read and check all of a step before it is chosen
  // Where else steps may be; rank 0 copies one that the run directory does not have into
  // it, and makes the directory if there is none.
  std::vector<std::shared_ptr<StorageTier>> tiers{};
  // Without a step, a tier that does not answer means kNotFound and no failure.
  bool allow_unreachable_tiers = false;
  ReadOptions read{.threads = 2, .in_flight = 4};
  // Pieces on CUDA devices are filled after what was put into it so far, which may be the
  // last of their initialisation. When restore() returns they are, whatever stream looks.
  CudaStream stream = nullptr;
  Duration agree_within = std::chrono::seconds(60);
  Duration read_within = std::chrono::minutes(30);
  EventSink* events = nullptr;
};

struct RestoredState {
  int64_t step = 0;
  Path folder;
  // Where it was copied from, into the run directory; empty if it was there. On rank 0.
  std::string tier;
  Manifest manifest;
  Object objects;       // what is the same for all ranks
  Object rank_objects;  // this rank's, if as many ranks saved it; else None
  // Newer steps that were passed over, and why; on rank 0.
  std::vector<SkippedStep> skipped;
  std::vector<std::string> unused;      // tensors of the step that nobody asked for
  std::vector<std::string> unverified;  // tensors read in part, which nobody can check
  int64_t needed = 0;                   // bytes of this rank's pieces
  int64_t read = 0;                     // bytes that were read for them
};

// Memory for a step that all ranks have opened; called by all of them, and again if it
// turns out to be damaged, for an older one. It lives until restore() returns.
using StateFor = std::function<Result<const LocalState*>(const StepFiles&)>;

// Fills `into`. kNotFound if the run has no step (or not that one); kInvalid if the step
// is of another model; as copying failed, if a tier has the newest step and it cannot be
// brought here now (fetch.h); kCorrupt if no step is whole, and the state is then undefined if
// the damage was found while reading, which the message says. All ranks fail alike.
Result<RestoredState> restore(Env& env, const Path& run, const StateFor& into,
                              Transport* transport = nullptr,
                              const RestoreOptions& options = {});
Result<RestoredState> restore(Env& env, const Path& run, const LocalState& into,
                              Transport* transport = nullptr,
                              const RestoreOptions& options = {});

}  // namespace holdfast
