#include "holdfast/state/object_json.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>
#include <unordered_set>

#include "holdfast/base/json.h"
#include "holdfast/base/json_text.h"

namespace holdfast {
namespace {

constexpr uint64_t kUsualNan = 0x7ff8000000000000;

// True for an optional '-' and digits without leading zeros, if the number is outside
// int64_t. So every number has exactly one text.
bool is_big(std::string_view decimal) {
  const std::string_view digits = decimal.substr(decimal.starts_with('-') ? 1 : 0);
  if (digits.size() < 19 || digits.front() == '0') return false;
  if (digits.find_first_not_of("0123456789") != digits.npos) return false;
  int64_t fits = 0;
  const auto* end = decimal.data() + decimal.size();
  return std::from_chars(decimal.data(), end, fits).ec ==
         std::errc::result_out_of_range;
}

// True if Python can use it as a key. A list or dict, or a tuple with one in it, could
// change and is no key.
bool may_be_key(const Object& key) {
  if (key.as<Object::List>() != nullptr || key.as<Object::Dict>() != nullptr) {
    return false;
  }
  const auto* tuple = key.as<Object::Tuple>();
  return tuple == nullptr || std::ranges::all_of(tuple->items, may_be_key);
}

bool is_container(const Object& object) {
  return object.as<Object::List>() != nullptr ||
         object.as<Object::Tuple>() != nullptr || object.as<Object::Dict>() != nullptr;
}

bool is_natural(const Object::Dict& dict) {
  return std::ranges::all_of(dict.items, [](const auto& item) {
    const auto* key = item.first.template as<std::string>();
    return key != nullptr && !key->starts_with('$');
  });
}

std::string float_name(double number) {
  const auto bits = std::bit_cast<uint64_t>(number);
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  if (bits == kUsualNan) return "nan";
  return fmt::format("{:016x}", bits);
}

class Writer {
 public:
  Result<std::string> write(const Object& object) && {
    HOLDFAST_TRY(put(object));
    return std::move(out_);
  }

 private:
  // One step of the path to the value that is being written: a key of a dict, or an
  // index of a list.
  struct Step {
    const std::string* key;
    size_t index;
  };

  Result<void> put(const Object& object) {
    if (path_.size() >= kMaxObjectDepth && is_container(object)) {
      return invalid("{}: more than {} levels deep", place(), kMaxObjectDepth);
    }
    return std::visit([this](const auto& value) { return put_value(value); },
                      object.value());
  }

  Result<void> put_value(const Object::None&) { return put_text("null"); }
  Result<void> put_value(bool value) { return put_text(value ? "true" : "false"); }
  Result<void> put_value(int64_t value) {
    append_json_integer(out_, value);
    return {};
  }
  Result<void> put_value(double value) {
    if (!std::isfinite(value)) return put_marked("$float", float_name(value));
    append_json_double(out_, value);
    return {};
  }
  Result<void> put_value(const std::string& value) { return put_string(value); }
  Result<void> put_value(const Bytes& value) {
    // Not put_marked: hex is UTF-8 without escapes, and a step of a training may wait.
    out_.append("{\"$bytes\":\"").append(to_hex(value)).append("\"}");
    return {};
  }
  Result<void> put_value(const Object::TensorName& value) {
    return put_marked("$tensor", value.name);
  }
  Result<void> put_value(const Object::BigInteger& value) {
    if (!is_big(value.decimal)) {
      return invalid(
          "{}: big integer \"{}\"; expected a decimal number outside 64 bits", place(),
          value.decimal.substr(0, 40));
    }
    return put_marked("$int", value.decimal);
  }
  Result<void> put_value(const Object::List& value) { return put_items(value.items); }
  Result<void> put_value(const Object::Tuple& value) {
    out_ += "{\"$tuple\":";
    HOLDFAST_TRY(put_items(value.items));
    return put_text("}");
  }
  Result<void> put_value(const Object::Dict& value) {
    return is_natural(value) ? put_natural(value) : put_pairs(value);
  }

  Result<void> put_text(std::string_view text) {
    out_ += text;
    return {};
  }

  Result<void> put_string(std::string_view text) {
    if (!is_utf8(text)) {
      return invalid("{}: text of {} bytes is not UTF-8", place(), text.size());
    }
    append_json_string(out_, text);
    return {};
  }

  Result<void> put_marked(std::string_view marker, std::string_view text) {
    out_ += "{\"";
    out_ += marker;
    out_ += "\":";
    HOLDFAST_TRY(put_string(text));
    return put_text("}");
  }

  Result<void> put_below(const std::string* key, size_t index, const Object& object) {
    path_.push_back({key, index});
    HOLDFAST_TRY(put(object));
    path_.pop_back();
    return {};
  }

  Result<void> put_items(const std::vector<Object>& items) {
    out_ += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += ',';
      HOLDFAST_TRY(put_below(nullptr, i, items[i]));
    }
    return put_text("]");
  }

  Result<void> put_natural(const Object::Dict& dict) {
    std::unordered_set<std::string_view> seen;
    out_ += '{';
    for (size_t i = 0; i < dict.items.size(); ++i) {
      const auto& [key, value] = dict.items[i];
      const auto& name = *key.as<std::string>();
      if (!seen.insert(name).second) return repeated(name);
      if (i > 0) out_ += ',';
      HOLDFAST_TRY(put_string(name));
      out_ += ':';
      HOLDFAST_TRY(put_below(&name, i, value));
    }
    return put_text("}");
  }

  Result<void> put_pairs(const Object::Dict& dict) {
    std::unordered_set<std::string> seen;
    out_ += "{\"$dict\":[";
    for (size_t i = 0; i < dict.items.size(); ++i) {
      const auto& [key, value] = dict.items[i];
      if (!may_be_key(key)) {
        return invalid("{}: key {} is a list or dict or has one in it", place(), i);
      }
      out_ += i > 0 ? ",[" : "[";
      const size_t start = out_.size();
      HOLDFAST_TRY(put_below(nullptr, i, key));
      if (!seen.insert(out_.substr(start)).second) return repeated(out_.substr(start));
      out_ += ',';
      HOLDFAST_TRY(put_below(key.as<std::string>(), i, value));
      out_ += ']';
    }
    return put_text("]}");
  }

  Error repeated(std::string_view key) const {
    return invalid("{}: key {} occurs twice", place(), key);
  }

  // "object.groups[0].lr"
  std::string place() const {
    std::string text = "object";
    for (const Step& step : path_) {
      text += step.key == nullptr ? fmt::format("[{}]", step.index) : "." + *step.key;
    }
    return text;
  }

  std::string out_;
  std::vector<Step> path_;
};

// Builds the tree from the tokenizer's events. Every container is first read as the
// list or dict that it looks like. At its end, a dict with a marker such as "$tuple"
// becomes the value that it stands for. The open containers stand on a stack of our
// own, so that we can limit the depth.
class ObjectReader : public nlohmann::json_sax<Json> {
 public:
  explicit ObjectReader(std::string_view where) : where_(where) {}

  bool null() override { return put(Object(), 0); }
  bool boolean(bool value) override { return put(Object(value), 0); }
  bool number_integer(number_integer_t value) override {
    return put(Object(int64_t{value}), 0);
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > uint64_t{std::numeric_limits<int64_t>::max()}) {
      return fail(fmt::format("integer {} is outside 64 bits; expected $int", value));
    }
    return put(Object(static_cast<int64_t>(value)), 0);
  }
  bool number_float(number_float_t value, const string_t& text) override {
    if (text.find_first_of(".eE") == text.npos) {
      return fail(fmt::format("integer {} is outside 64 bits; expected $int",
                              text.substr(0, 40)));
    }
    return put(Object(value), 0);
  }
  bool string(string_t& value) override { return put(Object(std::move(value)), 0); }
  bool binary(binary_t&) override { return fail("binary value"); }
  bool start_object(std::size_t) override { return open(true); }
  bool start_array(std::size_t) override { return open(false); }
  bool key(string_t& key) override {
    stack_.back().key = std::move(key);
    return true;
  }
  bool end_array() override {
    Frame frame = pop();
    return put(Object(Object::List{std::move(frame.list)}), frame.depth + 1);
  }
  bool end_object() override {
    Frame frame = pop();
    if (frame.dict.size() == 1 && key_of(frame, 0).starts_with('$')) {
      return end_marked(std::move(frame));
    }
    std::unordered_set<std::string_view> seen;
    for (size_t i = 0; i < frame.dict.size(); ++i) {
      const std::string& key = key_of(frame, i);
      if (key.starts_with('$')) return fail("a key with $ stands beside other keys");
      if (!seen.insert(key).second) return fail("a key occurs twice");
    }
    return put(Object(Object::Dict{std::move(frame.dict)}), frame.depth + 1);
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return fail(fmt::format("not JSON at byte {}", position));
  }

  Result<Object> finish() && {
    if (error_) return *std::move(error_);
    return std::move(root_);
  }

 private:
  struct Frame {
    bool object = false;
    std::vector<Object> list{};
    std::vector<std::pair<Object, Object>> dict{};
    std::string key{};
    int depth = 0;  // the depth of the deepest child
  };
  // A "$dict" needs three levels of JSON for one level of the tree.
  static constexpr size_t kMostFrames = 3 * kMaxObjectDepth + 3;

  static const std::string& key_of(const Frame& frame, size_t i) {
    return *frame.dict[i].first.as<std::string>();
  }

  bool open(bool object) {
    if (stack_.size() == kMostFrames) return too_deep();
    stack_.push_back({.object = object});
    return true;
  }

  Frame pop() {
    Frame frame = std::move(stack_.back());
    stack_.pop_back();
    return frame;
  }

  // Adds a value to the container that is open. `depth` says how deep containers are
  // nested in the value, itself included.
  bool put(Object value, int depth) {
    // Two levels more than the tree may have are allowed here: a "$dict" that is not
    // complete yet still counts its inner lists.
    if (depth > kMaxObjectDepth + 2) return too_deep();
    if (stack_.empty()) {
      if (depth > kMaxObjectDepth) return too_deep();
      root_ = std::move(value);
      return true;
    }
    Frame& frame = stack_.back();
    frame.depth = std::max(frame.depth, depth);
    if (frame.object) {
      frame.dict.emplace_back(Object(std::move(frame.key)), std::move(value));
    } else {
      frame.list.push_back(std::move(value));
    }
    return true;
  }

  bool end_marked(Frame frame) {
    const std::string marker = key_of(frame, 0);
    Object& inner = frame.dict[0].second;
    if (auto* text = std::get_if<std::string>(&inner.value())) {
      return end_text(marker, std::move(*text));
    }
    auto* list = std::get_if<Object::List>(&inner.value());
    if (list != nullptr && marker == "$tuple") {
      return put(Object(Object::Tuple{std::move(list->items)}), frame.depth);
    }
    if (list != nullptr && marker == "$dict") {
      return end_pairs(std::move(list->items), std::max(frame.depth - 1, 1));
    }
    return fail("a key with $ is no marker for its value");
  }

  bool end_text(const std::string& marker, std::string text) {
    if (marker == "$tensor") return put(Object(Object::TensorName{std::move(text)}), 0);
    if (marker == "$float") return end_float(text);
    if (marker == "$int") {
      if (!is_big(text)) return fail("$int is not a number outside 64 bits");
      return put(Object(Object::BigInteger{std::move(text)}), 0);
    }
    if (marker != "$bytes") return fail("a key with $ is no marker for its value");
    auto bytes = from_hex(text);
    if (!bytes.ok()) return fail(bytes.error().message());
    return put(Object(*std::move(bytes)), 0);
  }

  bool end_float(const std::string& text) {
    for (const double number :
         {std::numeric_limits<double>::infinity(),
          -std::numeric_limits<double>::infinity(), std::bit_cast<double>(kUsualNan)}) {
      if (text == float_name(number)) return put(Object(number), 0);
    }
    uint64_t bits = 0;
    (void)std::from_chars(text.data(), text.data() + text.size(), bits, 16);
    const auto number = std::bit_cast<double>(bits);
    if (!std::isnan(number) || float_name(number) != text) {
      return fail("$float is neither infinite nor a NaN");
    }
    return put(Object(number), 0);
  }

  bool end_pairs(std::vector<Object> items, int depth) {
    Object::Dict dict;
    std::unordered_set<std::string> seen;
    for (Object& item : items) {
      auto* pair = std::get_if<Object::List>(&item.value());
      if (pair == nullptr || pair->items.size() != 2) {
        return fail("$dict has an item that is no pair");
      }
      Object& key = pair->items[0];
      if (!may_be_key(key)) return fail("a key is a list or dict, or has one in it");
      const auto text = encode_object(key);
      if (!text.ok()) return fail(text.error().message());
      if (!seen.insert(*text).second) return fail("a key occurs twice");
      dict.items.emplace_back(std::move(key), std::move(pair->items[1]));
    }
    if (is_natural(dict)) return fail("$dict is used where a plain dict is possible");
    return put(Object(std::move(dict)), depth);
  }

  bool too_deep() {
    return fail(fmt::format("more than {} levels deep", kMaxObjectDepth));
  }
  bool fail(const std::string& what) {
    if (!error_) error_ = corrupt("{}: {}", where_, what);
    return false;
  }

  std::string_view where_;
  std::vector<Frame> stack_;
  Object root_;
  std::optional<Error> error_;
};

}  // namespace

Result<std::string> encode_object(const Object& object) {
  return Writer().write(object);
}

Result<Object> decode_object(ByteView json, std::string_view where) {
  const std::string_view text = text_of(json);
  // The tokenizer takes a NUL for the end of the text and would ignore what follows it.
  const size_t nul = text.find('\0');
  if (nul != text.npos) return corrupt("{}: not JSON at byte {}", where, nul + 1);
  ObjectReader reader(where);
  (void)Json::sax_parse(text.begin(), text.end(), &reader);  // errors are in reader
  return std::move(reader).finish();
}

}  // namespace holdfast
