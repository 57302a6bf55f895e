// The kernel for x86-64 with AVX2. Only its functions are compiled for AVX2, so that
// the rest of the program still runs on a CPU without it.
#include "holdfast/state/seal_kernel.h"

#if defined(HOLDFAST_SEAL_AVX2)

#include <immintrin.h>

#include <cstring>

#define HOLDFAST_AVX2 __attribute__((target("avx2")))

namespace holdfast {
namespace {

HOLDFAST_AVX2 inline __m256i load(const void* at) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(at));
}

// `sum` plus the products of eight words with k. The multiplication uses only the words
// in even places. So the odd words come a second time, in `odd`, in even places;
// loading k one word further brings its odd words to even places too.
HOLDFAST_AVX2 inline __m256i add_products(__m256i sum, __m256i even, __m256i odd,
                                          const uint32_t* k) {
  const __m256i low = _mm256_mul_epu32(even, load(k));
  const __m256i high = _mm256_mul_epu32(odd, load(k + 1));
  return _mm256_add_epi64(sum, _mm256_add_epi64(low, high));
}

HOLDFAST_AVX2 inline uint64_t total(__m256i sum) {
  alignas(32) std::array<uint64_t, 4> part;
  _mm256_store_si256(reinterpret_cast<__m256i*>(part.data()), sum);
  return part[0] + part[1] + part[2] + part[3];
}

}  // namespace

HOLDFAST_AVX2 SealSums sum_words_avx2(const std::byte* words, size_t first,
                                      size_t count) {
  const uint32_t* k0 = kSealConstants.row[0].data() + first;
  const uint32_t* k1 = kSealConstants.row[1].data() + first;
  __m256i a0 = _mm256_setzero_si256(), a1 = a0, b0 = a0, b1 = a0;
  size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m256i a = load(words + 4 * i), b = load(words + 4 * i + 32);
    const __m256i a_odd = _mm256_srli_epi64(a, 32), b_odd = _mm256_srli_epi64(b, 32);
    a0 = add_products(a0, a, a_odd, k0 + i);
    a1 = add_products(a1, a, a_odd, k1 + i);
    b0 = add_products(b0, b, b_odd, k0 + i + 8);
    b1 = add_products(b1, b, b_odd, k1 + i + 8);
  }
  SealSums sums{{total(_mm256_add_epi64(a0, b0)), total(_mm256_add_epi64(a1, b1))}};
  for (; i < count; ++i) {
    uint32_t word;
    std::memcpy(&word, words + 4 * i, sizeof word);
    sums.lane[0] += uint64_t{word} * k0[i];
    sums.lane[1] += uint64_t{word} * k1[i];
  }
  return sums;
}

}  // namespace holdfast

#endif
