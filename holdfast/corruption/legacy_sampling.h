// Reads the injection sequences of hdf5_corrupter, the tool of the first studies of
// altered checkpoints. A sequence says which bits were flipped in which datasets:
//
//   {"/predictor/conv1": [[[3, 0, 1, 2], [1]], [[], [9, 10]], null], ...}
//
// A key names a dataset or a group. An entry has an index and bits. Bit 0 is the sign,
// which is the highest bit of the value. Older versions of the tool wrote only the bits.
// What the sequence does not say is drawn by the seed: the dataset of a group, and the
// index if it is empty. null stands for an attempt that changed nothing.
#pragma once

#include <string>
#include <string_view>

#include "holdfast/corruption/make_plan.h"

namespace holdfast {

// The plan that repeats a sequence. Of the request it uses the seed and the trial. Fails
// with kInvalid, naming `where` and the dataset, if the text is no sequence or if a bit or
// index does not fit its tensor; with kNotFound if no tensor has the name of a key.
Result<FlipPlan> plan_from_sequence(const Contents& contents, std::string_view json,
                                    const std::string& where,
                                    const PlanRequest& request);

}  // namespace holdfast
