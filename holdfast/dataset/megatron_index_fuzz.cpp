// Fuzz target: reads any bytes as the .idx file of Megatron-LM, beside .bin files of several
// sizes.
#include <cstddef>
#include <cstdint>

#include "holdfast/dataset/scan_testing.h"

using namespace holdfast;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const MemorySource source = tests::fuzz_source(data, size);
  for (const int64_t bin : {0, 14, 1 << 20}) {
    tests::scan_checked(source, bin, [&](ScannedFile& file, const AppendWord& append) {
      return scan_megatron(file, bin, append);
    });
  }
  return 0;
}
