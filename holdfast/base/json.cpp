#include "holdfast/base/json.h"

#include "holdfast/base/json_document.h"

namespace holdfast {
namespace {

// The value as a message shows it: printable, and cut to 80 characters.
std::string value_in_message(const Json& value) {
  constexpr size_t kMost = 80;
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kMost) text.replace(kMost, text.npos, "...");
  return text;
}

// Builds the document, and refuses what parse_json() does not accept.
class Builder : public JsonDocument<Json> {
 public:
  explicit Builder(std::string_view where) : where_(where) {}

  bool binary(binary_t&) override { return fail("binary value"); }
  bool start_object(std::size_t size) override {
    return check_depth() && JsonDocument::start_object(size);
  }
  bool start_array(std::size_t size) override {
    return check_depth() && JsonDocument::start_array(size);
  }
  bool key(string_t& key) override {
    if (innermost().contains(key)) {
      return fail(fmt::format("duplicate key {}", value_in_message(key)));
    }
    return JsonDocument::key(key);
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return fail(fmt::format("not JSON at byte {}", position));
  }

  Result<Json> finish() && {
    if (error_) return *std::move(error_);
    return std::move(*this).take();
  }

 private:
  bool check_depth() {
    if (depth() < kMaxJsonDepth) return true;
    return fail(fmt::format("more than {} levels deep", kMaxJsonDepth));
  }

  bool fail(const std::string& what) {
    if (!error_) error_ = invalid("{}: {}", where_, what);
    return false;
  }

  std::string_view where_;
  std::optional<Error> error_;
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

Result<Fields> Fields::of(const Json& value, std::string where) {
  if (!value.is_object()) {
    return invalid("{}: {}; expected an object", where, value.type_name());
  }
  return Fields(value, std::move(where));
}

bool Fields::has(const std::string& key) const { return object_->contains(key); }

Result<const Json*> Fields::any(const std::string& key) {
  asked_.insert(key);
  const auto found = object_->find(key);
  if (found == object_->end()) return invalid("{}: no key \"{}\"", where_, key);
  return &*found;
}

Result<int64_t> Fields::integer(const std::string& key, int64_t least, int64_t most) {
  const Json* value = HOLDFAST_TRY(any(key));
  return json_integer(*value, fmt::format("{}.{}", where_, key), least, most);
}

Result<std::string> Fields::text(const std::string& key) {
  const Json* value = HOLDFAST_TRY(any(key));
  if (!value->is_string()) {
    return invalid("{}.{}: {}; expected a string", where_, key, value->type_name());
  }
  return value->get<std::string>();
}

Result<bool> Fields::boolean(const std::string& key) {
  const Json* value = HOLDFAST_TRY(any(key));
  if (!value->is_boolean()) {
    return invalid("{}.{}: {}; expected true or false", where_, key,
                   value->type_name());
  }
  return value->get<bool>();
}

Result<const Json*> Fields::array(const std::string& key) {
  const Json* value = HOLDFAST_TRY(any(key));
  if (!value->is_array()) {
    return invalid("{}.{}: {}; expected an array", where_, key, value->type_name());
  }
  return value;
}

Result<void> Fields::done() const {
  for (const auto& [key, value] : object_->items()) {
    if (!asked_.contains(key)) {
      return invalid("{}: unknown key {}", where_, value_in_message(key));
    }
  }
  return {};
}

}  // namespace holdfast
