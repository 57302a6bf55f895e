// Fuzz target: finds the lines in any bytes. Each line with something else than blanks is
// a sample.
#include <cstddef>
#include <cstdint>

#include "holdfast/dataset/scan_testing.h"

using namespace holdfast;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const MemorySource source = tests::fuzz_source(data, size);
  const int64_t words = tests::scan_checked(source, source.size(), scan_lines);
  const auto lines = std::count(data, data + size, uint8_t{'\n'});
  HOLDFAST_CHECK(words <= lines + 2, "{} words for {} lines", words, lines);
  return 0;
}
