// Carries out plans in memory, element by element, for tests.
#pragma once

#include "holdfast/plan/fingerprint.h"
#include "holdfast/plan/plan.h"
#include "holdfast/state/layout_testing.h"
#include "holdfast/state/strided.h"

namespace holdfast::tests {

// Carries the plan out, and returns the memories of the target's holders. A holder of
// both layouts keeps its bytes, as a process does, so bytes that the plan calls in
// place must really be there.
inline Memories carry_out(const Plan& plan, const Collection& source,
                          const Collection& target, const Memories& old) {
  Memories fresh = empty_memories(target);
  std::vector<HolderId> target_of(plan.holders.size(), UINT32_MAX);
  const auto holders = target.layout().holders();
  for (HolderId h = 0; h < holders.size(); ++h) {
    for (HolderId p = 0; p < plan.holders.size(); ++p) {
      if (plan.holders[p].name == holders[h].name) target_of[p] = h;
    }
  }
  for (HolderId h = 0; h < old.size(); ++h) {
    if (target_of[h] == UINT32_MAX) continue;
    Memory& memory = fresh[target_of[h]];
    std::copy_n(old[h].begin(), std::min(old[h].size(), memory.size()), memory.begin());
  }
  for (const Move& move : plan.moves) {
    const StridedCopy copy = copy_of(plan, move, source, target);
    const bool relayed = move.after != kNoMove;
    const Memory& from =
        relayed ? fresh[target_of[move.from_holder]] : old[move.from_holder];
    run_copy(copy, from, fresh[target_of[move.to_holder]]);
  }
  return fresh;
}

}  // namespace holdfast::tests
