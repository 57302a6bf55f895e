// Fuzz target: reads any bytes as a torch zip file. Must end in a value or an error. A
// value is read in full and written again.
#include <cstddef>
#include <cstdint>

#include "holdfast/env/memory_sink_testing.h"
#include "holdfast/formats/torch_zip.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace holdfast;
  const auto source = std::make_shared<MemorySource>(
      "fuzz", copy_of(std::as_bytes(std::span(data, size))));
  const auto contents = open_torch(source);
  (void)verify_torch(source);
  if (!contents.ok()) return 0;
  MemorySink sink;
  const auto written = write_torch(sink, *contents);
  if (!written.ok()) return 0;
  const auto again =
      open_torch(std::make_shared<MemorySource>("again", std::move(sink).take_bytes()));
  HOLDFAST_CHECK(again.ok(), "{}", again.error().message());
  // A file that is only None comes back as an empty dict.
  HOLDFAST_CHECK(contents->objects.none() || again->objects == contents->objects,
                 "the objects differ after writing");
  return 0;
}
