// The generator is xoshiro256++ by Blackman and Vigna, seeded by splitmix64.
#include "holdfast/base/random_stream.h"

#include <bit>

#include "holdfast/base/reproducible_math.h"

namespace holdfast {
namespace {

uint64_t mix(uint64_t& state) {
  uint64_t z = (state += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace

RandomStream::RandomStream(uint64_t seed, uint64_t stream) {
  uint64_t state = stream;
  state = seed ^ mix(state);
  for (uint64_t& word : state_) word = mix(state);
}

uint64_t RandomStream::bits() {
  auto& s = state_;
  const uint64_t result = std::rotl(s[0] + s[3], 23) + s[0];
  const uint64_t shifted = s[1] << 17;
  s[2] ^= s[0];
  s[3] ^= s[1];
  s[1] ^= s[2];
  s[0] ^= s[3];
  s[2] ^= shifted;
  s[3] = std::rotl(s[3], 45);
  return result;
}

double RandomStream::uniform() {
  return (static_cast<double>(bits() >> 12) + 0.5) * 0x1p-52;
}

double RandomStream::exponential() { return -reproducible::log(uniform()); }

// Uses the polar method, which needs only log and sqrt. The sum of twelve uniform
// numbers would have wrong tails.
double RandomStream::normal() {
  for (;;) {
    const double x = 2 * uniform() - 1, y = 2 * uniform() - 1;
    const double square = x * x + y * y;
    if (square > 0 && square < 1) {
      return x * __builtin_sqrt(-2 * reproducible::log(square) / square);
    }
  }
}

}  // namespace holdfast
