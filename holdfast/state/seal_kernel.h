// The inner sum of the seal: one block of words against two rows of constants.
//
// Private to the seal, its tests and its benchmark; callers use seal.h. All kernels
// give the same sums for the same words: the portable one is the definition, the AVX2
// one its twin, chosen at run time. aarch64 needs no twin: intrinsics were no faster
// there than what compilers make of the portable one at -O3.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "holdfast/state/mix64.h"

namespace holdfast {

inline constexpr size_t kSealLanes = 2;
inline constexpr size_t kSealBlock = 1024;  // words that share one A_j(h)

// K_0 and K_1. Rows are longer than a block because a twin may load (never use) the
// words behind its last one.
struct SealConstants {
  static constexpr size_t kSlack = 16;
  alignas(64) std::array<std::array<uint32_t, kSealBlock + kSlack>, kSealLanes> row{};
};

// The first 1024 values of each lane are distinct already (a test holds that), so
// nothing has to be left out here.
constexpr SealConstants make_seal_constants() {
  SealConstants constants;
  for (uint64_t j = 0; j < kSealLanes; ++j) {
    for (uint64_t n = 0; n < kSealBlock; ++n) {
      constants.row[j][n] = static_cast<uint32_t>(mix64(((j + 1) << 32) + n)) | 1u;
    }
  }
  return constants;
}

inline constexpr SealConstants kSealConstants = make_seal_constants();

// Per lane: the sum of K_j[first + i] * w_i mod 2^64.
struct SealSums {
  std::array<uint64_t, kSealLanes> lane{};

  friend bool operator==(const SealSums&, const SealSums&) = default;
};

// The sums of `count` little-endian words at `words` (any alignment), which are the
// words first, first + 1, ... of their block; first + count <= kSealBlock.
using SealKernel = SealSums (*)(const std::byte* words, size_t first, size_t count);

SealSums sum_words_portable(const std::byte* words, size_t first, size_t count);

#if defined(__x86_64__)
#define HOLDFAST_SEAL_AVX2 1
// Only where the CPU has AVX2.
SealSums sum_words_avx2(const std::byte* words, size_t first, size_t count);
#endif

struct NamedSealKernel {
  std::string_view name;  // "portable", "avx2"
  SealKernel sum;
};

// Those that this CPU can run, portable first, fastest last.
std::span<const NamedSealKernel> seal_kernels();

// seal_bytes by a given kernel.
struct Seal;
Seal seal_bytes_by(SealKernel kernel, std::span<const std::byte> run, uint64_t offset);

}  // namespace holdfast
