// How far the state at the end of a trial is from that of the golden run.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "holdfast/contents/contents.h"

namespace holdfast {

struct StateDistance {
  bool equal = true;  // all bits are equal
  // For each tensor of the golden state: the Euclidean norm of the difference divided by
  // the norm of the golden tensor. 0 if both norms are 0, infinite if only the golden
  // one is, and NaN or infinite if the state is not finite.
  std::map<std::string, double> relative{};
};

// Fails with kInvalid if a tensor of the golden state is missing or has another dtype or
// shape. Tensors that only `state` has are not looked at.
Result<StateDistance> distance_between(const Contents& golden, const Contents& state);

// The first difference between two states of golden runs, in words; nullopt if all bits
// are equal.
Result<std::optional<std::string>> state_difference(const Contents& a, const Contents& b);

}  // namespace holdfast
