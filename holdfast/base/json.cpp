#include "holdfast/base/json.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "holdfast/base/json_place.h"
#include "holdfast/base/json_writer.h"

namespace holdfast {
namespace {

// The value as a message shows it: printable, and cut to 80 characters.
std::string value_in_message(const Json& value) {
  constexpr size_t kMost = 80;
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kMost) text.replace(kMost, text.npos, "...");
  return text;
}

// Builds the document from the events of the tokenizer, and refuses what parse_json() does
// not accept. The open containers stand on a stack of our own, so that a deep document
// cannot exhaust the stack of the thread.
class Builder : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(std::string_view where) : where_(where) {}

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(value); }
  bool number_unsigned(number_unsigned_t value) override { return put(value); }
  bool number_float(number_float_t value, const string_t&) override { return put(value); }
  bool string(string_t& value) override { return put(std::move(value)); }
  bool binary(binary_t&) override { return fail("binary value"); }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& key) override {
    if (open_.back().container.contains(key)) {
      return fail(fmt::format("duplicate key {}", value_in_message(key)));
    }
    open_.back().key = std::move(key);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return fail(fmt::format("not JSON at byte {}", position));
  }

  Result<Json> finish() && {
    if (error_) return *std::move(error_);
    return std::move(root_);
  }

 private:
  struct Open {
    Json container;
    std::string key = {};  // of the next value, in an object
  };

  bool put(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (Open& inner = open_.back(); inner.container.is_array()) {
      inner.container.push_back(std::move(value));
    } else {
      inner.container.emplace(std::move(inner.key), std::move(value));
    }
    return true;
  }

  bool open(Json container) {
    if (open_.size() >= kMaxJsonDepth) {
      return fail(fmt::format("more than {} levels deep", kMaxJsonDepth));
    }
    open_.push_back({std::move(container)});
    return true;
  }

  bool close() {
    Json done = std::move(open_.back().container);
    open_.pop_back();
    return put(std::move(done));
  }

  bool fail(const std::string& what) {
    if (!error_) error_ = invalid("{}: {}", where_, what);
    return false;
  }

  std::string_view where_;
  std::vector<Open> open_;
  Json root_;
  std::optional<Error> error_;
};

// Writes the events of the tokenizer again, in their order. Nothing is looked up, so the
// dict of a million tensors takes no longer than its text.
class Copier : public nlohmann::json_sax<Json> {
 public:
  Copier(JsonWriter& out, const TextMember& set) : out_(out), set_(set) {}

  bool null() override {
    if (begin()) out_.put_null();
    return true;
  }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(int64_t{value}); }
  bool number_unsigned(number_unsigned_t value) override { return put(uint64_t{value}); }
  bool number_float(number_float_t value, const string_t&) override { return put(value); }
  bool string(string_t& value) override { return put(std::string_view(value)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open('{'); }
  bool start_array(std::size_t) override { return open('['); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& key) override {
    if (skips_) return true;
    out_.key(key);
    if (open_.size() == 1 && !set_.key.empty() && key == set_.key) {
      out_.put(set_.value);
      skips_ = is_set_ = true;
    }
    return true;
  }
  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  // Begins a value, unless another stands in its place: then it is passed over. The members
  // of an object have begun with their keys.
  bool begin() {
    if (skips_) {
      skips_ = open_.size() > 1;
      return false;
    }
    if (open_.ends_with('[')) out_.item();
    return true;
  }
  bool put(auto value) {
    if (begin()) out_.put(value);
    return true;
  }
  bool open(char bracket) {
    const bool skipped = skips_;
    if (begin()) out_.open(bracket);
    skips_ = skipped;  // until the end of the container
    open_ += bracket;
    return true;
  }
  bool close() {
    open_.pop_back();
    if (skips_) {
      skips_ = open_.size() > 1;
      return true;
    }
    if (open_.empty() && !set_.key.empty() && !is_set_) {
      out_.key(set_.key);
      out_.put(set_.value);
    }
    out_.close();
    return true;
  }

  JsonWriter& out_;
  const TextMember set_;
  bool is_set_ = false;
  bool skips_ = false;
  std::string open_;  // the brackets
};

}  // namespace

Result<Json> parse_json(std::string_view text, std::string_view where) {
  // The tokenizer takes a NUL for the end of the text and would ignore what follows it.
  const size_t nul = text.find('\0');
  if (nul != text.npos) return invalid("{}: not JSON at byte {}", where, nul + 1);
  Builder builder(where);
  (void)Json::sax_parse(text.begin(), text.end(), &builder);  // errors are in builder
  return std::move(builder).finish();
}

void copy_json(JsonWriter& out, std::string_view text, const TextMember& set) {
  Copier copier(out, set);
  HOLDFAST_CHECK(Json::sax_parse(text.begin(), text.end(), &copier), "this is not JSON");
}

Result<int64_t> json_integer(const Json& value, std::string_view where, int64_t least,
                             int64_t most) {
  const bool fits =
      value.is_number_integer() &&
      (!value.is_number_unsigned() ||
       value.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()});
  if (!fits) {
    return invalid("{}: {}; expected an integer", where, value_in_message(value));
  }
  const int64_t number = value.get<int64_t>();
  if (number < least || number > most) {
    return invalid("{}: {}; expected {} to {}", where, number, least, most);
  }
  return number;
}

}  // namespace holdfast
