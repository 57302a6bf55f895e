// For the fuzz targets of this part: what a scanner may append.
#pragma once

#include <algorithm>

#include "holdfast/dataset/sample_table.h"

namespace holdfast::tests {

inline MemorySource fuzz_source(const uint8_t* data, size_t size) {
  return {"fuzz", copy_of(std::as_bytes(std::span(data, size)))};
}

// Scans the source. It may fail. Words must lead forwards and stay inside of `most` bytes.
// Returns how many there were.
template <typename Scan>
int64_t scan_checked(const Source& source, int64_t most, const Scan& scan) {
  constexpr int64_t kStart = (int64_t{1} << kStartBits) - 1;
  int64_t before = 0, count = 0;
  ScannedFile file(source, {});
  const AppendWord append = [&](int64_t word) -> Result<void> {
    const int64_t begin = word & kStart;
    HOLDFAST_CHECK(word >= 0 && begin >= before && begin <= most, "word {:x} after {:x}",
                   word, before);
    before = begin;
    ++count;
    return {};
  };
  (void)scan(file, append);
  return count;
}

}  // namespace holdfast::tests
