// Seals the tensors of opened contents, and compares them with seals that were made
// earlier ((seal_file.h)). If one word of a tensor has changed, the seals say which
// elements that are and what they were (state/changed_word.h).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "holdfast/contents/contents.h"
#include "holdfast/state/changed_word.h"
#include "holdfast/inspect/seal_file.h"

namespace holdfast {

// A tensor that is not what was sealed.
struct BrokenSeal {
  std::string tensor{};
  Dtype dtype = Dtype::kF32;
  Shape shape{};
  // What has changed, if it is all inside one word. Empty if more has changed.
  std::vector<ChangedElement> changes{};
  // "[12, 7] bit 30 is 7.25e+36; expected 0.0213, by its seal".
  std::string what{};
};

// The seals of all tensors, in their order. Reads everything, and checks no other digest.
Result<std::vector<SealedTensor>> seal_tensors(const Contents& contents,
                                               const Progress& progress = {});

// The seals that a step has for its tensors, without those of tensors that were not
// sealed as a whole.
Result<std::vector<SealedTensor>> seals_of_step(Env& env, const Path& folder);

// The tensors that are not as `sealed` says, in the order of `sealed`. A tensor that is
// not there, or has another dtype or shape, is broken, too. Tensors without a seal are
// not looked at.
Result<std::vector<BrokenSeal>> check_seals(const Contents& contents,
                                            std::span<const SealedTensor> sealed,
                                            const Progress& progress = {});

}  // namespace holdfast
