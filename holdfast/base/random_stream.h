// Reproducible random numbers: the same seed and stream give the same numbers on every
// machine, and the streams of one seed are independent. A copy continues with the same
// numbers as the original.
#pragma once

#include <array>
#include <cstdint>

namespace holdfast {

class RandomStream {
 public:
  explicit RandomStream(uint64_t seed, uint64_t stream = 0);

  uint64_t bits();
  // A number between 0 and 1, never 0 or 1 itself.
  double uniform();
  // An exponential distribution with mean 1.
  double exponential();
  // A normal distribution with mean 0 and standard deviation 1.
  double normal();

 private:
  std::array<uint64_t, 4> state_;
};

}  // namespace holdfast
