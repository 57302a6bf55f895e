// parse_collection and plan over arbitrary bytes: each must return a value or an
// error.
#include <cstddef>
#include <cstdint>

#include "holdfast/plan/plan.h"
#include "holdfast/state/collection_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  holdfast::Topology topology;
  const auto read = holdfast::parse_collection(text, "fuzz", topology);
  if (!read.ok() || read->layout().piece_count() > 64) return 0;
  (void)read->check_covered();
  (void)holdfast::plan(*read, *read, topology);
  return 0;
}
