// The inner sum of the seal: the products of one block of words with two rows of
// constants.
//
// Only for the seal, its tests and its benchmark; others use seal.h. All kernels give
// the same sums for the same words. The portable kernel is the definition; the AVX2
// kernel is chosen at run time where the CPU has AVX2. aarch64 needs no kernel of its
// own: intrinsics were no faster there than what compilers make of the portable kernel
// at -O3.
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

// K_0 and K_1. Rows are longer than a block because the AVX2 kernel may load, but never
// uses, the words behind the last one.
struct SealConstants {
  static constexpr size_t kSlack = 16;
  alignas(64) std::array<std::array<uint32_t, kSealBlock + kSlack>, kSealLanes> row{};
};

// The first 1024 values of each lane are distinct already (a test checks that), so this
// function does not have to skip any.
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

// For each lane j: the sum of K_j[first + i] * w_i modulo 2^64.
struct SealSums {
  std::array<uint64_t, kSealLanes> lane{};

  friend bool operator==(const SealSums&, const SealSums&) = default;
};

// Computes the sums of `count` little-endian words at `words` (any alignment). They are
// the words first, first + 1, ... of their block; first + count <= kSealBlock.
using SealKernel = SealSums (*)(const std::byte* words, size_t first, size_t count);

SealSums sum_words_portable(const std::byte* words, size_t first, size_t count);

#if defined(__x86_64__)
#define HOLDFAST_SEAL_AVX2 1
// May be called only where the CPU has AVX2.
SealSums sum_words_avx2(const std::byte* words, size_t first, size_t count);
#endif

struct NamedSealKernel {
  std::string_view name;  // "portable", "avx2"
  SealKernel sum;
};

// The kernels that this CPU can run: the portable one first, the fastest last.
std::span<const NamedSealKernel> seal_kernels();

// The same as seal_bytes, with the given kernel.
struct Seal;
Seal seal_bytes_by(SealKernel kernel, std::span<const std::byte> run, uint64_t offset);

}  // namespace holdfast
