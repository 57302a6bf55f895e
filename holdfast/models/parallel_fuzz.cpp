// parse_parallel over arbitrary text: it must return a configuration or an error, and
// an accepted configuration prints and reads back as the same.
#include <cstddef>

#include "holdfast/models/parallel.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace holdfast;
  const auto parallel = parse_parallel({reinterpret_cast<const char*>(data), size});
  if (!parallel.ok()) return 0;
  const auto again = parse_parallel(to_string(*parallel));
  HOLDFAST_CHECK(again.ok() && *again == *parallel, "{} does not read back",
                 to_string(*parallel));
  (void)stages_of_layers(*parallel, 96);
  return 0;
}
