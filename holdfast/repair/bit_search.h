// Finds the one bit of a small file whose flip gives the file its digest back.
#pragma once

#include <functional>

#include "holdfast/base/bytes.h"
#include "holdfast/base/result.h"

namespace holdfast {

// The greatest probability with which other damage may pass for one flipped bit.
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
