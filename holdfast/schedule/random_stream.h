// Random numbers with a memory: the same seed and stream give the same draws on every
// machine, and streams of one seed are independent. A value; copying it forks it.
#pragma once

#include <array>
#include <cstdint>

namespace holdfast {

class RandomStream {
 public:
  explicit RandomStream(uint64_t seed, uint64_t stream = 0);

  uint64_t bits();
  // In (0, 1): never an end.
  double uniform();
  // Of mean 1.
  double exponential();
  // Of mean 0 and deviation 1.
  double normal();

 private:
  std::array<uint64_t, 4> state_;
};

}  // namespace holdfast
