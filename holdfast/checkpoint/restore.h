// Restores the state from a run directory: any checkpoint into any layout.
//
//   1. Rank 0 looks for the newest whole step and tells all ranks its name.
//   2. All ranks open the step and agree that they have.
//   3. Every rank plans which bytes of the files it needs, reads them and checks them.
//   4. All ranks report to rank 0. If any rank found damage, all go back to 1 and try
//      an older step. A rank that read parts of stored pieces (read_pieces.h) sends the
//      seals of these parts along, and rank 0 compares their sums with the seals that
//      were saved.
//   5. Rank 0 tells all ranks the outcome.
//
// A read that fails is tried again after a pause (env/patient_env.h). If the disk still
// does not return the bytes, that counts as damage and all ranks try an older step. A
// failure that says nothing about the step (no memory, a stale handle, no permission)
// ends the restore, because an older step would lose work although the newest may be
// whole.
//
// After kTimeout or kUnavailable the ranks are in different phases of the protocol, so
// the transport cannot be used for another restore.
#pragma once

#include <functional>
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

struct StepFiles;

struct RestoreOptions {
  // The step to restore, in its newest version if it was saved several times. If not
  // set, the newest step.
  std::optional<int64_t> step{};
  bool verify_all = false;  // read and check all of a step before it is chosen
  // Further tiers that may have steps. Rank 0 copies a step that the run directory does
  // not have into it, and makes the directory if there is none.
  std::vector<std::shared_ptr<StorageTier>> tiers{};
  // If no step is found and a tier does not answer, fail with kNotFound, as for a new
  // run, instead of the tier's error.
  bool allow_unreachable_tiers = false;
  // Pieces on CUDA devices are filled after the work that was queued in this stream so
  // far, which may still initialise them. When restore() returns they are filled, for
  // every stream.
  CudaStream stream = nullptr;
  // How long ranks wait for each other to agree on a decision.
  Duration timeout = std::chrono::seconds(60);
  // How long ranks wait for each other until all have read their pieces.
  Duration read_within = std::chrono::minutes(30);
  EventSink* events = nullptr;
};

struct RestoredState {
  int64_t step = 0;
  Path folder;
  // The tier that the step was copied from; empty if the run directory had it. On rank
  // 0 only.
  std::string tier;
  Manifest manifest;
  Object objects;  // the objects that are the same for all ranks
  // This rank's objects; None if the step was saved by another number of ranks.
  Object rank_objects;
  // Newer steps that could not be used, and why. On rank 0 only.
  std::vector<SkippedStep> skipped;
  std::vector<std::string> unused;  // tensors of the step that the state lacks
  // Tensors that were read only in part, so that their seals could not be checked.
  std::vector<std::string> unverified;
  // Sentences about words that were damaged before they were written and that this rank
  // has mended in its memory.
  std::vector<std::string> mended;
  // The step was left in the memory of the hosts (job.h), so it is not durable.
  bool in_memory = false;
  int64_t needed = 0;  // bytes of this rank's pieces
  int64_t read = 0;    // bytes that were read for them
};

// Returns the memory to fill from a step that all ranks have opened. All ranks call it,
// and call it again for an older step if the first turns out to be damaged. The memory
// must live until restore() returns.
using StateFor = std::function<Result<const LocalState*>(const StepFiles&)>;

// Fills `into`. Called by all ranks together, and all ranks fail alike: with kNotFound
// if the run has no step or not the one that was asked for; kInvalid if the step
// belongs to another model; the error of the copy if a tier has the newest step and it
// cannot be copied now (fetch.h); kCorrupt if no step is whole. If damage was found
// while reading, the state is then undefined, and the message says so.
Result<RestoredState> restore(Env& env, const Path& run, const StateFor& into,
                              Transport* transport = nullptr,
                              const RestoreOptions& options = {});
Result<RestoredState> restore(Env& env, const Path& run, const LocalState& into,
                              Transport* transport = nullptr,
                              const RestoreOptions& options = {});

}  // namespace holdfast
