#include <expat.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "holdfast/remote/s3_xml_internal.h"

namespace holdfast {
namespace {

static_assert(sizeof(XML_Char) == 1, "expat was built for UTF-16; expected UTF-8");

struct FreeParser {
  void operator()(XML_Parser parser) const { XML_ParserFree(parser); }
};

// Builds the elements while expat reads. Stops expat at the first thing that is not
// allowed, so that nothing can grow far beyond its limit.
class XmlReader {
 public:
  XmlReader() : parser_(XML_ParserCreate("UTF-8")) {
    HOLDFAST_CHECK(parser_ != nullptr, "no memory for an XML parser");
    XML_SetUserData(parser_.get(), this);
    XML_SetElementHandler(parser_.get(), &begin_element, &end_element);
    XML_SetCharacterDataHandler(parser_.get(), &add_text);
    XML_SetStartDoctypeDeclHandler(parser_.get(), &refuse_document_type);
    XML_SetStartCdataSectionHandler(parser_.get(), &refuse_cdata);
    XML_SetProcessingInstructionHandler(parser_.get(), &refuse_instruction);
  }

  Result<XmlElement> read(std::string_view text, const std::string& where) {
    const XML_Status status =
        XML_Parse(parser_.get(), text.data(), static_cast<int>(text.size()), XML_TRUE);
    if (status == XML_STATUS_OK) return std::move(root_);
    const char* why = refused_ != nullptr
                          ? refused_
                          : XML_ErrorString(XML_GetErrorCode(parser_.get()));
    return unavailable("{}: answer is no XML of an S3 server: {} at byte {} of {}",
                       where, why, XML_GetCurrentByteIndex(parser_.get()), text.size());
  }

 private:
  static XmlReader& reader(void* user) { return *static_cast<XmlReader*>(user); }

  // Expat may still report the end of the element whose start was refused, so even that
  // one is put on the stack.
  static void begin_element(void* user, const XML_Char* name, const XML_Char**) {
    XmlReader& self = reader(user);
    self.open_.push_back({.name = name, .text = {}, .children = {}});
    if (self.open_.size() > kMaxXmlDepth) self.refuse("more than 16 levels");
    if (++self.elements_ > kMaxXmlElements) self.refuse("more than 100000 elements");
  }
  static void end_element(void* user, const XML_Char*) {
    XmlReader& self = reader(user);
    XmlElement ended = std::move(self.open_.back());
    self.open_.pop_back();
    if (self.open_.empty()) {
      self.root_ = std::move(ended);
    } else {
      self.open_.back().children.push_back(std::move(ended));
    }
  }
  static void add_text(void* user, const XML_Char* text, int bytes) {
    reader(user).open_.back().text.append(text, static_cast<size_t>(bytes));
  }
  static void refuse_document_type(void* user, const XML_Char*, const XML_Char*,
                                   const XML_Char*, int) {
    reader(user).refuse("a document type");
  }
  static void refuse_cdata(void* user) { reader(user).refuse("a CDATA section"); }
  static void refuse_instruction(void* user, const XML_Char*, const XML_Char*) {
    reader(user).refuse("a processing instruction");
  }

  void refuse(const char* why) {
    refused_ = why;
    XML_StopParser(parser_.get(), XML_FALSE);
  }

  std::unique_ptr<XML_ParserStruct, FreeParser> parser_;
  std::vector<XmlElement> open_;  // the root first; none of them has ended yet
  XmlElement root_;               // set when the root element has ended
  size_t elements_ = 0;
  const char* refused_ = nullptr;  // why expat was stopped, if it was
};

// Removes a number of exactly `digits` digits, and the text `then` behind it, from the
// front of `text`. Returns the number, or -1 if `text` begins otherwise.
int take_number(std::string_view& text, size_t digits, std::string_view then) {
  if (text.size() < digits + then.size() || text.substr(digits, then.size()) != then) {
    return -1;
  }
  int value = 0;
  for (const char c : text.substr(0, digits)) {
    if (c < '0' || c > '9') return -1;
    value = value * 10 + (c - '0');
  }
  text.remove_prefix(digits + then.size());
  return value;
}

}  // namespace

const XmlElement* XmlElement::find(std::string_view child) const {
  for (const XmlElement& element : children) {
    if (element.name == child) return &element;
  }
  return nullptr;
}

std::string XmlElement::text_of(std::string_view child) const {
  const XmlElement* found = find(child);
  return found == nullptr ? "" : found->text;
}

Result<XmlElement> parse_xml(std::string_view text, const std::string& where) {
  if (text.size() > kMaxXmlBytes) {
    return unavailable("{}: answer of {} bytes; expected at most {}", where,
                       text.size(), kMaxXmlBytes);
  }
  // While a server works on a slow request, it sends spaces ahead of its answer. XML
  // does not allow these, so they are removed.
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  return XmlReader().read(text, where);
}

std::string escape_xml(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '&') {
      escaped += "&amp;";
    } else if (c == '<') {
      escaped += "&lt;";
    } else if (c == '>') {
      escaped += "&gt;";
    } else if (c == '"') {
      escaped += "&quot;";
    } else if (c == '\r') {
      escaped += "&#13;";  // an XML reader would turn "\r" into a line feed
    } else {
      escaped += c;
    }
  }
  return escaped;
}

Result<WallTime> parse_xml_time(std::string_view text, const std::string& where) {
  std::string_view rest = text;
  const int year = take_number(rest, 4, "-");
  const int month = take_number(rest, 2, "-");
  const int day = take_number(rest, 2, "T");
  const int hour = take_number(rest, 2, ":");
  const int minute = take_number(rest, 2, ":");
  const int second = take_number(rest, 2, "");
  // 64 bits of nanoseconds reach until the year 2262.
  const bool sensible = year >= 1970 && year < 2262 && hour >= 0 && hour < 24 &&
                        minute >= 0 && minute < 60 && second >= 0 && second <= 60;
  const std::chrono::year_month_day date(
      std::chrono::year{year}, std::chrono::month{static_cast<unsigned>(month)},
      std::chrono::day{static_cast<unsigned>(day)});
  if (!sensible || !date.ok() || !rest.ends_with('Z')) {
    return unavailable("{}: time \"{}\" in the answer; expected one such as {}", where,
                       text.substr(0, 64), "2026-01-02T03:04:05.678Z");
  }
  return WallTime(std::chrono::sys_days(date)) + std::chrono::hours(hour) +
         std::chrono::minutes(minute) + std::chrono::seconds(second);
}

}  // namespace holdfast
