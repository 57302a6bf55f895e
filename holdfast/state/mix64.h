// mix64: spreads the bits of a number over 64, the same on every machine.
#pragma once

#include <cstdint>

namespace holdfast {

// The SplitMix64 step.
constexpr uint64_t mix64(uint64_t z) {
  z += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

}  // namespace holdfast
