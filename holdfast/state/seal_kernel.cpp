#include "holdfast/state/seal_kernel.h"

#include <bit>
#include <cstring>

namespace holdfast {

static_assert(std::endian::native == std::endian::little,
              "canonical bytes are little-endian: this host would have to swap them");

SealSums sum_words_portable(const std::byte* words, size_t first, size_t count) {
  const uint32_t* k0 = kSealConstants.row[0].data() + first;
  const uint32_t* k1 = kSealConstants.row[1].data() + first;
  uint64_t sum0 = 0, sum1 = 0;
  for (size_t i = 0; i < count; ++i) {
    uint32_t word;
    std::memcpy(&word, words + 4 * i, sizeof word);
    sum0 += uint64_t{word} * k0[i];
    sum1 += uint64_t{word} * k1[i];
  }
  return {{sum0, sum1}};
}

std::span<const NamedSealKernel> seal_kernels() {
  static constexpr std::array kKernels {
    NamedSealKernel{"portable", sum_words_portable},
#if defined(HOLDFAST_SEAL_AVX2)
        NamedSealKernel{"avx2", sum_words_avx2},
#endif
  };
#if defined(HOLDFAST_SEAL_AVX2)
  static const size_t runnable = __builtin_cpu_supports("avx2") ? 2 : 1;
  return std::span(kKernels).first(runnable);
#else
  return kKernels;
#endif
}

}  // namespace holdfast
