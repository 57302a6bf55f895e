// parse_json over arbitrary bytes: what it accepts has at most 64 levels, prints, and
// reads back as the same document.
#include "holdfast/base/json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace holdfast;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Result<Json> parsed = parse_json(text, "fuzz");
  if (!parsed.ok()) {
    HOLDFAST_CHECK(parsed.error().code() == ErrorCode::kInvalid, "code");
    return 0;
  }
  const Result<Json> again = parse_json(parsed->dump(), "again");
  HOLDFAST_CHECK(again.ok(), "does not read back: {}", again.error().message());
  HOLDFAST_CHECK(*again == *parsed, "reads back as another document");
  (void)json_integer(*parsed, "fuzz");
  return 0;
}
