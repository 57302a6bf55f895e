// parse_xml over arbitrary bytes: what it accepts, escaped and written again, reads back
// as the same elements.
#include <cstdint>

#include "holdfast/remote/s3_xml_internal.h"

namespace holdfast {
namespace {

void write(const XmlElement& element, std::string& into) {
  into += "<" + element.name + ">" + escape_xml(element.text);
  for (const XmlElement& child : element.children) write(child, into);
  into += "</" + element.name + ">";
}

void check_equal(const XmlElement& a, const XmlElement& b) {
  HOLDFAST_CHECK(a.name == b.name && a.text == b.text, "reads back as another");
  HOLDFAST_CHECK(a.children.size() == b.children.size(), "other children");
  for (size_t i = 0; i < a.children.size(); ++i) {
    check_equal(a.children[i], b.children[i]);
  }
}

}  // namespace
}  // namespace holdfast

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace holdfast;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  (void)parse_xml_time(text, "fuzz");
  const Result<XmlElement> parsed = parse_xml(text, "fuzz");
  if (!parsed.ok()) return 0;
  std::string written;
  write(*parsed, written);
  const Result<XmlElement> again = parse_xml(written, "again");
  HOLDFAST_CHECK(again.ok(), "does not read back: {}", again.error().message());
  check_equal(*parsed, *again);
  return 0;
}
