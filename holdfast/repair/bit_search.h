// Finds the one bit of a small file whose flip gives the file its digest back.
#pragma once

#include <functional>

#include "holdfast/base/bytes.h"
#include "holdfast/base/result.h"

namespace holdfast {

// The probability with which other damage of `bytes` bytes passes for one flipped bit: each of
// their bits has a CRC of its own, among 2^32.
constexpr double odds_of_passing(int64_t bytes) {
  return 8.0 * static_cast<double>(bytes) / 4294967296.0;
}
// The greatest such probability with which a flipped bit is believed, and nothing else
// confirms it.
inline constexpr double kMostOdds = 1e-3;

// A file of n bytes has 8 n bits, and each try takes a digest of n bytes. This much takes
// a few seconds.
inline constexpr int64_t kMostSearched = int64_t{64} << 10;

// Tries each bit. `fits` says whether the bytes are right. Fails with kCorrupt if no bit
// is the one, if more than one is, or if there are more than kMostSearched bytes.
struct FoundBit {
  int64_t offset = 0;
  int bit = 0;
  Bytes bytes{};  // with the bit flipped back
};
Result<FoundBit> find_flipped_bit(ByteView bytes,
                                  const std::function<bool(ByteView)>& fits);

}  // namespace holdfast
