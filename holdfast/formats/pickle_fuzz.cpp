// Fuzz target: reads any bytes as a pickle and as a tree of torch. Must end in a value
// or an error.
#include <cstddef>
#include <cstdint>

#include "holdfast/formats/torch_zip_internal.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace holdfast;
  const auto pickle =
      read_pickle(std::as_bytes(std::span(data, size)),
                  {.where = "fuzz", .allow_global = torch_zip::may_occur});
  if (pickle.ok()) (void)torch_zip::read_tree(*pickle, "fuzz", size);
  return 0;
}
