// event_from_json over arbitrary bytes: an event that is accepted is written and read
// back the same.
#include "holdfast/env/event_log.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace holdfast;
  const std::string_view line(reinterpret_cast<const char*>(data), size);
  const Result<EventRecord> record = event_from_json(line, "fuzz");
  if (!record.ok()) return 0;
  const std::string written = event_to_json(*record);
  const Result<EventRecord> again = event_from_json(written, "again");
  HOLDFAST_CHECK(again.ok(), "does not read back: {}", again.error().message());
  HOLDFAST_CHECK(event_to_json(*again) == written, "reads back as another event");
  return 0;
}
