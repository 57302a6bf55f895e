// A value of a JSON document that is read, and the way to it. Of the JSON library only
// the names of its types are needed here: it takes a second to compile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "holdfast/base/json_value.h"
#include "holdfast/base/result.h"

namespace holdfast {

inline constexpr int64_t kMostInteger = std::numeric_limits<int64_t>::max();
inline constexpr int64_t kLeastInteger = std::numeric_limits<int64_t>::min();

enum class JsonKind : uint8_t { kNull, kBoolean, kInteger, kFraction, kText, kList, kObject };

// The names of the way are made only for messages, because there may be many values. The
// places of lists and objects must outlive those of the values inside.
class JsonPlace {
 public:
  JsonPlace(const Json& document, std::string_view where) : json_(&document), key_(where) {}

  JsonKind kind() const;
  std::string text() const;
  // The place of the struct that the value is a member of: it is in messages about what a
  // text means.
  std::string struct_text() const;

  Result<void> read(bool& value) const;
  Result<void> read(int64_t& value, int64_t least = 0, int64_t most = kMostInteger) const;
  Result<void> read(double& value) const;
  Result<void> read(std::string& value) const;
  // The value, or nothing if it is of another type.
  template <typename T>
  std::optional<T> as() const {
    T value{};
    return read(value).ok() ? std::optional<T>(std::move(value)) : std::nullopt;
  }
  // The value of a member, or nothing if there is none of this name and type.
  template <typename T>
  std::optional<T> member_as(std::string_view key) const {
    const auto value = find(key);
    return value ? value->template as<T>() : std::nullopt;
  }
  bool is_null() const { return kind() == JsonKind::kNull; }
  bool is_object() const { return kind() == JsonKind::kObject; }
  bool is_list() const { return kind() == JsonKind::kList; }
  // The number of values of an array; fails for anything else.
  Result<size_t> length() const;
  JsonPlace item(size_t i) const;
  // Nothing if the value is no object, or has no such key.
  std::optional<JsonPlace> find(std::string_view key) const;
  // Fails if the object has no such key.
  Result<JsonPlace> at(std::string_view key) const;
  // The same value as a member of this one, for the values of rows.
  JsonPlace as_member(std::string_view key, const JsonPlace& value) const;
  using Visit = std::function<Result<void>(const std::string& key, const JsonPlace&)>;
  // Visits the members of an object in the order of their keys; fails for anything else.
  Result<void> for_each(const Visit& visit) const;
  // "list.json: files[3].name: array; expected a text".
  Error expected(std::string_view what) const;

 private:
  JsonPlace member(std::string_view key, const Json& value) const;
  static constexpr size_t kNoItem = SIZE_MAX;
  JsonPlace(const Json& json, const JsonPlace& parent, std::string_view key, size_t index)
      : json_(&json), parent_(&parent), key_(key), index_(index) {}

  const Json* json_;
  const JsonPlace* parent_ = nullptr;
  std::string_view key_;  // the document's name if there is no parent
  size_t index_ = kNoItem;
};

// A document that was parsed, within the limits of json.h.
class JsonDocument {
 public:
  // Fails if the text is no JSON. Messages name it by `where`.
  static Result<JsonDocument> parse(std::string_view text, std::string_view where);
  // The document must outlive what is reached from it.
  JsonPlace root() const { return JsonPlace(*json_, where_); }

 private:
  JsonDocument(std::shared_ptr<const Json> json, std::string_view where)
      : json_(std::move(json)), where_(where) {}

  // Shared only because its type is incomplete here.
  std::shared_ptr<const Json> json_;
  std::string where_;
};

// Parses the text and calls read() with the document. Failures have this code, unless the
// document is kUnsupported.
Result<void> read_document(std::string_view text, std::string_view where, ErrorCode code,
                           const std::function<Result<void>(const JsonPlace&)>& read);

}  // namespace holdfast
