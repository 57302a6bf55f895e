// Structs as JSON. A struct describes its members once, in a function fields(), and is
// written and read by that, as events are (env/event.h):
//
//   struct SealedFile {
//     std::string name{};
//     int64_t bytes = 0;
//     static void fields(auto& self, auto&& field) {
//       field("name", self.name);
//       field("bytes", self.bytes);
//       field.check([&] { return check_file_name(self.name); });
//     }
//   };
//   std::string text = to_json_text(file, kCompactJson);
//   Result<SealedFile> file = from_json<SealedFile>(text, "list.json");
//
// fields() may also stand beside the struct, as fields(Is<SealedFile> auto& self, ...),
// so that its header does not need it. What `field` can do is listed at FieldReader. A
// type that is no struct has a pair of functions put_json() and read_json().
//
// Messages name the place by its way through the document: "list.json: files[3].name".
// Readers refuse keys that fields() does not name, so that a misspelt key is never
// silently ignored.
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "holdfast/base/bytes.h"
#include "holdfast/base/json_place.h"
#include "holdfast/base/json_writer.h"
#include "holdfast/base/result.h"

namespace holdfast {

template <typename Self, typename T>
concept Is = std::same_as<std::remove_const_t<Self>, T>;

class FieldReader;
class FieldWriter;

template <typename T>
concept HasFields = requires(T& value, FieldReader& field) { T::fields(value, field); } ||
                    requires(T& value, FieldReader& field) { fields(value, field); };

// True for structs whose members stand in an array, in the order of fields(), without
// their keys: for documents of many entries.
template <typename T>
inline constexpr bool kRow = false;

void put_json(JsonWriter& text, HasFields auto const& value);
Result<void> read_json(const JsonPlace& at, HasFields auto& value);

inline void put_json(JsonWriter& text, bool value) { text.put(value); }
inline void put_json(JsonWriter& text, std::integral auto value) {
  text.put(static_cast<int64_t>(value));
}
inline void put_json(JsonWriter& text, double value) { text.put(value); }
inline void put_json(JsonWriter& text, const std::string& value) {
  text.put(std::string_view(value));
}
inline void put_json(JsonWriter& text, std::string_view value) { text.put(value); }
inline void put_json(JsonWriter& text, const char* value) { text.put(std::string_view(value)); }
inline void put_json(JsonWriter& text, std::nullptr_t) { text.put_null(); }
inline Result<void> read_json(const JsonPlace& at, bool& value) { return at.read(value); }
inline Result<void> read_json(const JsonPlace& at, int64_t& value) { return at.read(value); }
inline Result<void> read_json(const JsonPlace& at, double& value) { return at.read(value); }
inline Result<void> read_json(const JsonPlace& at, std::string& value) {
  return at.read(value);
}

// A time is the number of nanoseconds since the clock's epoch.
template <typename Clock>
void put_json(JsonWriter& text,
              const std::chrono::time_point<Clock, std::chrono::nanoseconds>& time) {
  text.put(int64_t{time.time_since_epoch().count()});
}
template <typename Clock>
Result<void> read_json(const JsonPlace& at,
                       std::chrono::time_point<Clock, std::chrono::nanoseconds>& time) {
  int64_t count = 0;
  HOLDFAST_TRY(at.read(count, kLeastInteger));
  time = std::chrono::time_point<Clock, std::chrono::nanoseconds>(
      std::chrono::nanoseconds(count));
  return {};
}

// Names that are not known before, with their values: a map, or pairs that keep their
// order when they are written. They are an object.
template <typename Map>
concept NamedValues = std::same_as<std::remove_const_t<typename Map::value_type::first_type>,
                                   std::string>;

// Nothing is null.
template <typename T>
void put_json(JsonWriter& text, const std::optional<T>& value) {
  value ? put_json(text, *value) : text.put_null();
}
template <typename T>
Result<void> read_json(const JsonPlace& at, std::optional<T>& value) {
  value.reset();
  return at.is_null() ? Result<void>() : read_json(at, value.emplace());
}

template <typename T>
  requires(!NamedValues<std::vector<T>>)
void put_json(JsonWriter& text, const std::vector<T>& list) {
  const bool rows = HasFields<T> && text.depth() == 1;
  text.open('[');
  for (const T& value : list) {
    if (rows) text.line();
    text.item();
    put_json(text, value);
  }
  text.close();
}
template <typename T>
  requires(!NamedValues<std::vector<T>>)
Result<void> read_json(const JsonPlace& at, std::vector<T>& list) {
  const size_t count = HOLDFAST_TRY(at.length());
  list.clear();
  list.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    HOLDFAST_TRY(read_json(at.item(i), list.emplace_back()));
  }
  return {};
}

template <typename A, typename B>
void put_json(JsonWriter& text, const std::pair<A, B>& pair) {
  text.open('[');
  text.item();
  put_json(text, pair.first);
  text.item();
  put_json(text, pair.second);
  text.close();
}
template <typename A, typename B>
Result<void> read_json(const JsonPlace& at, std::pair<A, B>& pair) {
  const Result<size_t> count = at.length();
  if (!count.ok() || *count != 2) return at.expected("a pair");
  HOLDFAST_TRY(read_json(at.item(0), pair.first));
  return read_json(at.item(1), pair.second);
}

void put_json(JsonWriter& text, NamedValues auto const& map) {
  text.open('{');
  for (const auto& [name, value] : map) {
    text.key(name);
    put_json(text, value);
  }
  text.close();
}
template <NamedValues Map>
Result<void> read_json(const JsonPlace& at, Map& map) {
  map.clear();
  return at.for_each([&](const std::string& name, const JsonPlace& one) -> Result<void> {
    typename Map::value_type::second_type value{};
    HOLDFAST_TRY(read_json(one, value));
    map.insert(map.end(), typename Map::value_type(name, std::move(value)));
    return {};
  });
}

// A map of other keys is a list of pairs.
template <typename Key, typename T>
  requires(!std::same_as<Key, std::string>)
void put_json(JsonWriter& text, const std::map<Key, T>& map) {
  put_json(text, std::vector<std::pair<Key, T>>(map.begin(), map.end()));
}
template <typename Key, typename T>
  requires(!std::same_as<Key, std::string>)
Result<void> read_json(const JsonPlace& at, std::map<Key, T>& map) {
  std::vector<std::pair<Key, T>> pairs;
  HOLDFAST_TRY(read_json(at, pairs));
  map = std::map<Key, T>(pairs.begin(), pairs.end());
  return {};
}

// The value whose text this is. parse() returns a Result, whose error is about the text,
// or an optional.
template <typename T>
Result<void> read_text(const JsonPlace& at, T& value, auto parse,
                       std::string_view expected = "") {
  std::string text;
  HOLDFAST_TRY(at.read(text));
  auto parsed = parse(text);
  if constexpr (requires { parsed.error(); }) {
    if (!parsed.ok()) return parsed.error().within(at.struct_text());
  } else if (!parsed) {
    return at.expected(expected);
  }
  value = *std::move(parsed);
  return {};
}

// Writes the members that fields() names. See FieldReader.
class FieldWriter {
 public:
  static constexpr bool kReads = false;
  FieldWriter(JsonWriter& text, bool row) : text_(text), row_(row) {}

  template <typename T>
  void operator()(std::string_view key, const T& value) {
    begin(key);
    put_json(text_, value);
  }
  void kind(std::string_view name) { (*this)("holdfast", name); }
  void version(int64_t number, int64_t = 0) { (*this)("version", number); }
  void integer(std::string_view key, auto value, int64_t, int64_t) { (*this)(key, value); }
  template <typename T>
  void text(std::string_view key, const T& value, auto to_text, auto,
            std::string_view = "") {
    (*this)(key, to_text(value));
  }
  template <typename T>
  void maybe(std::string_view key, const T& value) {
    (*this)(key, value);
  }
  template <typename T>
  void optional(std::string_view key, const T& value, auto... /* range */) {
    if (value != T()) (*this)(key, value);
  }
  template <typename T>
  void derived(std::string_view key, const T& value) {
    (*this)(key, value);
  }
  void object(std::string_view key, auto members) {
    begin(key);
    put_object(members);
  }
  // What is only written: an array of objects, each of which describe(field, value)
  // describes, or put_members(field, value), a function beside the type of the values.
  void list(std::string_view key, const auto& values, auto describe) {
    begin(key);
    text_.open('[');
    for (const auto& value : values) {
      text_.item();
      put_object([&](FieldWriter& field) { describe(field, value); });
    }
    text_.close();
  }
  void list(std::string_view key, const auto& values) {
    list(key, values, [](FieldWriter& field, const auto& value) { put_members(field, value); });
  }
  // An object that put_members(field, *value) describes; null if there is no value.
  void object_or_null(std::string_view key, const auto& value) {
    if (!value) return (*this)(key, nullptr);
    object(key, [&](FieldWriter& field) { put_members(field, *value); });
  }
  // A JSON text, as a value.
  void json(std::string_view key, std::string_view text) {
    begin(key);
    copy_json(text_, text);
  }
  void line() { text_.line(); }
  bool has(std::string_view) const { return false; }
  size_t size() const { return 0; }
  void check(auto) {}
  void allow_unknown() {}

 private:
  void put_object(auto members) {
    text_.open('{');
    FieldWriter field(text_, false);
    members(field);
    text_.close();
  }
  void begin(std::string_view key) { row_ ? text_.item() : text_.key(key); }

  JsonWriter& text_;
  const bool row_;
};

// Reads the members that fields() names. After the first that is missing or wrong, the
// others are passed over. Everything here stands in FieldWriter, too.
class FieldReader {
 public:
  static constexpr bool kReads = true;
  FieldReader(const JsonPlace& at, bool row);

  // A member.
  template <typename T>
  void operator()(std::string_view key, T& value) {
    if (const auto at = member(key, true)) note(read_json(*at, value));
  }
  // {"holdfast": name, "version": number}: what the document is. `number` is the version
  // that is written, and afterwards the one that was read; versions above `newest` are
  // kUnsupported.
  void kind(std::string_view name);
  void version(int64_t& number, int64_t newest);
  void version(int64_t only) {
    int64_t number = 0;
    version(number, only);
  }
  void integer(std::string_view key, auto& value, int64_t least, int64_t most) {
    int64_t number = 0;
    if (const auto at = member(key, true)) note(at->read(number, least, most));
    if (!failed()) value = static_cast<std::remove_reference_t<decltype(value)>>(number);
  }
  // A value that stands there as to_text(value); parse() is as in read_text().
  template <typename T>
  void text(std::string_view key, T& value, auto, auto parse,
            std::string_view expected = "") {
    if (const auto at = member(key, true)) note(read_text(*at, value, parse, expected));
  }
  // A member that older documents do not have: it stays as it is then.
  template <typename T>
  void maybe(std::string_view key, T& value) {
    if (has(key)) (*this)(key, value);
  }
  // A member that is left out where it has its usual value, T().
  template <typename T>
  void optional(std::string_view key, T& value) {
    if (has(key)) (*this)(key, value);
  }
  void optional(std::string_view key, auto& value, int64_t least, int64_t most) {
    if (has(key)) integer(key, value, least, most);
  }
  // What follows from other members is not read.
  void derived(std::string_view key, const auto&) { (void)member(key, false); }
  void object(std::string_view key, auto members) {
    const auto at = member(key, true);
    if (!at) return;
    FieldReader inner(*at, false);
    members(inner);
    note(inner.finish());
  }
  void line() {}
  // Whether the key is there; the writer always says no.
  bool has(std::string_view key) const { return !failed() && at_.find(key).has_value(); }
  // The number of values of a row; 0 for the writer.
  size_t size() const { return size_; }
  // Fails if test() returns an error, which gets the name of this struct in front.
  void check(auto test) {
    if (!failed()) note(test().within(at_.text()));
  }
  void allow_unknown() { closed_ = false; }

  // What went wrong. Names a key that nobody asked for.
  Result<void> finish();

 private:
  std::optional<JsonPlace> member(std::string_view key, bool required);
  bool failed() const { return error_.has_value(); }
  template <typename T>
  void note(const Result<T>& result) {
    if (!result.ok() && !error_) error_ = result.error();
  }

  const JsonPlace at_;
  const bool row_;
  bool closed_ = true;
  size_t size_ = 0;   // of a row
  size_t taken_ = 0;  // values of a row that were asked for
  std::vector<std::string_view> asked_;
  std::optional<Error> error_;
};

// A text that need not be UTF-8: its bytes as hexadecimal digits.
void bytes_field(std::string_view key, auto& text, auto& field) {
  field.text(
      key, text, [](const std::string& value) { return to_hex(bytes_of(value)); },
      [](std::string_view digits) -> Result<std::string> {
        return std::string(text_of(HOLDFAST_TRY(from_hex(digits))));
      });
}

template <typename T>
void describe_fields(T& value, auto& field) {
  if constexpr (requires { std::remove_const_t<T>::fields(value, field); }) {
    std::remove_const_t<T>::fields(value, field);
  } else {
    fields(value, field);
  }
}

void put_json(JsonWriter& text, HasFields auto const& value) {
  constexpr bool row = kRow<std::remove_cvref_t<decltype(value)>>;
  text.open(row ? '[' : '{');
  FieldWriter field(text, row);
  describe_fields(value, field);
  text.close();
}
Result<void> read_json(const JsonPlace& at, HasFields auto& value) {
  FieldReader field(at, kRow<std::remove_cvref_t<decltype(value)>>);
  describe_fields(value, field);
  return field.finish();
}

template <typename T>
std::string to_json_text(const T& value, JsonStyle style) {
  JsonWriter text(style);
  put_json(text, value);
  return std::move(text).take();
}

template <typename T>
Result<T> from_json(std::string_view text, std::string_view where,
                    ErrorCode code = ErrorCode::kInvalid) {
  T value{};
  HOLDFAST_TRY(read_document(text, where, code, [&](const JsonPlace& at) {
    return read_json(at, value);
  }));
  return value;
}

}  // namespace holdfast
