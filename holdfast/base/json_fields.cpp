#include "holdfast/base/json_fields.h"

#include <algorithm>
#include <cmath>

#include "holdfast/base/json.h"
#include "holdfast/base/json_text.h"

namespace holdfast {
namespace {

bool is_plain(std::string_view text) {
  return std::ranges::all_of(text, [](char c) {
    return c >= 0x20 && c < 0x7f && c != '"' && c != '\\';
  });
}

}  // namespace

void JsonWriter::open(char bracket) {
  out_ += bracket;
  open_.push_back({bracket});
  line_ = false;
}

void JsonWriter::close() {
  const Open inner = open_.back();
  open_.pop_back();
  if (!inner.empty) indent();
  out_ += inner.bracket == '{' ? '}' : ']';
}

void JsonWriter::indent() {
  if (style_.indent < 0) return;
  out_ += '\n';
  out_.append(static_cast<size_t>(style_.indent) * open_.size(), ' ');
}

void JsonWriter::begin_value() {
  if (!open_.back().empty) out_ += ',';
  open_.back().empty = false;
  if (line_) out_ += '\n';
  line_ = false;
  indent();
}

void JsonWriter::key(std::string_view key) {
  begin_value();
  put(key);
  out_ += style_.indent < 0 ? ":" : ": ";
}

void JsonWriter::item() { begin_value(); }

void JsonWriter::put(int64_t value) { append_json_integer(out_, value); }

void JsonWriter::put(uint64_t value) { out_ += std::to_string(value); }

void JsonWriter::put(double value) {
  if (!std::isfinite(value)) {
    return put(std::string_view(std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf"));
  }
  if (style_.rows) return append_json_double(out_, value);
  out_ += Json(value).dump();
}

void JsonWriter::put(std::string_view value) {
  if (style_.rows) {
    HOLDFAST_CHECK(is_utf8(value), "a name of {} bytes is not UTF-8", value.size());
    append_json_string(out_, value);
  } else if (is_plain(value)) {
    out_.append(1, '"').append(value).append(1, '"');
  } else {
    out_ += Json(value).dump(-1, ' ', style_.ascii, Json::error_handler_t::replace);
  }
}

std::string JsonPlace::text() const {
  if (parent_ == nullptr) return std::string(key_);
  if (index_ == kNoItem) return fmt::format("{}.{}", parent_->text(), key_);
  // The parent is a list.
  const JsonPlace& list = *parent_;
  if (list.parent_ == nullptr || list.index_ != kNoItem) {
    return fmt::format("{}[{}]", list.text(), index_);
  }
  return fmt::format("{}{}{}[{}]", list.parent_->text(),
                     list.parent_->parent_ == nullptr ? ": " : ".", list.key_, index_);
}

std::string JsonPlace::struct_text() const {
  return parent_ == nullptr ? text() : parent_->text();
}

Error JsonPlace::expected(std::string_view what) const {
  std::string seen = json_->type_name();
  if (json_->is_array()) seen += fmt::format(" of {}", json_->size());
  return invalid("{}: {}; expected {}", text(), seen, what);
}

Result<void> JsonPlace::read(bool& value) const {
  if (!json_->is_boolean()) return expected("true or false");
  value = json_->get<bool>();
  return {};
}

Result<void> JsonPlace::read(int64_t& value, int64_t least, int64_t most) const {
  // The way is text only if the number is wrong.
  const Result<int64_t> number = json_integer(*json_, "", least, most);
  if (number.ok()) {
    value = *number;
    return {};
  }
  const bool in_list = index_ != kNoItem;
  return json_integer(*json_, in_list ? parent_->text() : text(), least, most).error();
}

Result<void> JsonPlace::read(double& value) const {
  const std::string text = json_->is_string() ? json_->get<std::string>() : "";
  if (json_->is_number()) {
    value = json_->get<double>();
  } else if (text == "nan") {
    value = std::numeric_limits<double>::quiet_NaN();
  } else if (text == "inf" || text == "-inf") {
    value = text == "inf" ? HUGE_VAL : -HUGE_VAL;
  } else {
    return expected("a number, nan, inf or -inf");
  }
  return {};
}

Result<void> JsonPlace::read(std::string& value) const {
  if (!json_->is_string()) return expected("a string");
  value = json_->get_ref<const std::string&>();
  return {};
}

JsonKind JsonPlace::kind() const {
  switch (json_->type()) {
    case Json::value_t::boolean: return JsonKind::kBoolean;
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned: return JsonKind::kInteger;
    case Json::value_t::number_float: return JsonKind::kFraction;
    case Json::value_t::string: return JsonKind::kText;
    case Json::value_t::array: return JsonKind::kList;
    case Json::value_t::object: return JsonKind::kObject;
    default: return JsonKind::kNull;
  }
}

Result<size_t> JsonPlace::length() const {
  if (!json_->is_array()) return expected("an array");
  return json_->size();
}

JsonPlace JsonPlace::item(size_t i) const {
  return JsonPlace((*json_)[i], *this, {}, i);
}

std::optional<JsonPlace> JsonPlace::find(std::string_view key) const {
  if (!json_->is_object()) return std::nullopt;
  const auto found = json_->find(std::string(key));
  return found == json_->end() ? std::nullopt : std::optional(member(key, *found));
}

Result<JsonPlace> JsonPlace::at(std::string_view key) const {
  if (!is_object()) return expected("an object");
  if (const auto found = find(key)) return *found;
  return invalid("{}: no key \"{}\"", text(), key);
}

JsonPlace JsonPlace::member(std::string_view key, const Json& value) const {
  return JsonPlace(value, *this, key, kNoItem);
}

JsonPlace JsonPlace::as_member(std::string_view key, const JsonPlace& value) const {
  return member(key, *value.json_);
}

Result<void> JsonPlace::for_each(const Visit& visit) const {
  if (!json_->is_object()) return expected("an object");
  for (const auto& [key, value] : json_->items()) {
    HOLDFAST_TRY(visit(key, member(key, value)));
  }
  return {};
}

FieldReader::FieldReader(const JsonPlace& at, bool row) : at_(at), row_(row) {
  if (row) {
    const Result<size_t> count = at.length();
    note(count);
    if (count.ok()) size_ = *count;
  } else if (!at.is_object()) {
    error_ = at.expected("an object");
  }
}

std::optional<JsonPlace> FieldReader::member(std::string_view key, bool required) {
  if (failed()) return std::nullopt;
  if (row_) {
    const size_t place = taken_++;
    if (place < size_) return at_.as_member(key, at_.item(place));
    error_ = invalid("{}: {} values; expected {} at place {}", at_.text(), size_, key,
                     place);
    return std::nullopt;
  }
  asked_.push_back(key);
  if (auto found = at_.find(key)) return found;
  if (required) error_ = invalid("{}: no key \"{}\"", at_.text(), key);
  return std::nullopt;
}

void FieldReader::kind(std::string_view name) {
  std::string seen;
  (*this)("holdfast", seen);
  if (failed() || seen == name) return;
  error_ = invalid("{}: holds a {}; expected a \"{}\"", at_.text(), shown(seen), name);
}

void FieldReader::version(int64_t& number, int64_t newest) {
  (*this)("version", number);
  if (failed() || (number >= 1 && number <= newest)) return;
  error_ = unsupported("{}: version {}; expected {}{}", at_.text(), number,
                       newest == 1 ? "" : "1 to ", newest);
}

Result<void> FieldReader::finish() {
  if (error_) return *std::move(error_);
  if (row_ && taken_ != size_) {
    return invalid("{}: {} values; expected {}", at_.text(), size_, taken_);
  }
  if (row_ || !closed_) return {};
  return at_.for_each([&](const std::string& key, const JsonPlace&) -> Result<void> {
    if (std::ranges::find(asked_, key) != asked_.end()) return {};
    return invalid("{}: unknown key {}", at_.text(), shown(key));
  });
}

Result<JsonDocument> JsonDocument::parse(std::string_view text, std::string_view where) {
  auto json = std::make_shared<const Json>(HOLDFAST_TRY(parse_json(text, where)));
  return JsonDocument(std::move(json), where);
}

Result<void> read_document(std::string_view text, std::string_view where, ErrorCode code,
                           const std::function<Result<void>(const JsonPlace&)>& read) {
  const Result<JsonDocument> document = JsonDocument::parse(text, where);
  if (!document.ok()) return document.error().as(code);
  const Result<void> outcome = read(document->root());
  if (outcome.ok() || outcome.error().code() == ErrorCode::kUnsupported) return outcome;
  return outcome.error().as(code);
}

}  // namespace holdfast
