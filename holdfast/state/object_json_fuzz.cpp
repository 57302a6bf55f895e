// decode_object over arbitrary bytes: an object that is accepted is written and read
// back the same.
#include <cstddef>
#include <cstdint>

#include "holdfast/state/object_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const holdfast::ByteView bytes = std::as_bytes(std::span(data, size));
  const auto read = holdfast::decode_object(bytes, "fuzz");
  if (!read.ok()) return 0;
  const auto text = holdfast::encode_object(*read);
  const auto again = holdfast::decode_object(holdfast::bytes_of(text.value()), "again");
  HOLDFAST_CHECK(again.value() == *read, "{}", *text);
  return 0;
}
