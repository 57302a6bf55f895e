// Fills the state of new processes from a step that earlier ones have left in the memory
// of their hosts (leave.h). The number of processes and the layout may be others.
//
// If all ranks see one place, they restore the step from there as from a disk
// (checkpoint/restore.h). Else no rank can read all shards, and
//
//   1. hosts that have no part of the step get its small files from one that has;
//   2. all ranks open the step, and make the memory that it is to fill;
//   3. each shard is adopted by a rank of a host that has it: the rank maps the file,
//      checks its digests, and counts its pieces as its own old ones;
//   4. `exchange` brings all pieces to where they belong (exchange/exchange.h), and its
//      seals must be those that were saved.
//
// The ranks agree on the outcome of each phase before they go on.
#pragma once

#include "holdfast/checkpoint/restore.h"
#include "holdfast/handover/survey.h"

namespace holdfast {

// Called by all ranks together for a complete step of the survey. All ranks fail alike,
// as restore() does: kCorrupt says that the step is damaged, and that another one may be
// tried. Emits no events.
Result<RestoredState> adopt(const JobRanks& ranks, const SharedPlace& place,
                            const Survey& survey, const FoundStep& found,
                            const StateFor& into, const RestoreOptions& options = {});

}  // namespace holdfast
