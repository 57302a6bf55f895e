// A tier as Python passes it: a place for copies of checkpoints, and its rules.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "env.h"
#include "holdfast/checkpoint/tier_copier.h"
#include "holdfast/store/retention.h"

namespace holdfast::python {

struct HeldTier {
  std::shared_ptr<StorageTier> tier;  // shared by all savers and restores that use it
  int64_t every = 1;
  std::optional<int64_t> keep{};  // nullopt: the rules of the run directory apply
};

// Throws if the name is not that of a place, and if the keys of an object store are
// missing.
inline HeldTier make_tier(const std::string& place, int64_t every,
                          std::optional<int64_t> keep) {
  if (every < 1 || keep.value_or(1) < 1) {
    throw Raised(invalid("{}: every {}, keep {}; expected 1 or more", place, every,
                         keep.value_or(1)));
  }
  return {unwrap(open_tier(machine(), place, open_bucket)), every, keep};
}

inline std::vector<TierCopy> tier_copies_of(const std::vector<HeldTier>& tiers,
                                            const std::optional<Keep>& keep) {
  std::vector<TierCopy> copies;
  for (const HeldTier& held : tiers) {
    copies.push_back({.tier = held.tier,
                      .every = held.every,
                      .keep = held.keep.has_value() ? Keep{.last = *held.keep} : keep});
  }
  return copies;
}

inline std::vector<std::shared_ptr<StorageTier>> storage_of(
    const std::vector<HeldTier>& tiers) {
  std::vector<std::shared_ptr<StorageTier>> all;
  for (const HeldTier& held : tiers) all.push_back(held.tier);
  return all;
}

}  // namespace holdfast::python
