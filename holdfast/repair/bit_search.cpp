#include "holdfast/repair/bit_search.h"

#include <optional>

namespace holdfast {

Result<FoundBit> find_flipped_bit(ByteView bytes,
                                  const std::function<bool(ByteView)>& fits) {
  if (std::ssize(bytes) > kMostSearched) {
    return corrupt("has {} bytes; expected at most {} to look for one flipped bit",
                   bytes.size(), kMostSearched);
  }
  Bytes tried = copy_of(bytes);
  std::optional<FoundBit> found;
  for (size_t i = 0; i < tried.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      const auto mask = static_cast<std::byte>(1 << bit);
      tried[i] ^= mask;
      const bool right = fits(tried);
      if (right && found) return corrupt("more than one flipped bit explains the damage");
      if (right) found = {.offset = static_cast<int64_t>(i), .bit = bit, .bytes = tried};
      tried[i] ^= mask;
    }
  }
  if (!found) return corrupt("no single flipped bit explains the damage");
  return *std::move(found);
}

}  // namespace holdfast
