// A value of a JSON document that is read, and the way to it. Of the JSON library only
// the names of its types are needed here: it takes a second to compile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>

#include "holdfast/base/json_value.h"
#include "holdfast/base/result.h"

namespace holdfast {

inline constexpr int64_t kMostInteger = std::numeric_limits<int64_t>::max();
inline constexpr int64_t kLeastInteger = std::numeric_limits<int64_t>::min();

// The names of the way are made only for messages, because there may be many values. The
// places of lists and objects must outlive those of the values inside.
class JsonPlace {
 public:
  JsonPlace(const Json& document, std::string_view where) : json_(&document), key_(where) {}

  const Json& json() const { return *json_; }
  std::string text() const;
  // The place of the struct that the value is a member of: it is in messages about what a
  // text means.
  std::string struct_text() const;

  Result<void> read(bool& value) const;
  Result<void> read(int64_t& value, int64_t least = 0, int64_t most = kMostInteger) const;
  Result<void> read(double& value) const;
  Result<void> read(std::string& value) const;
  bool is_null() const;
  bool is_object() const;
  // The number of values of an array; fails for anything else.
  Result<size_t> length() const;
  JsonPlace item(size_t i) const;
  // Null if the object has no such key.
  const Json* find(std::string_view key) const;
  JsonPlace member(std::string_view key, const Json& value) const;
  using Visit = std::function<Result<void>(const std::string& key, const JsonPlace&)>;
  // Visits the members of an object in the order of their keys; fails for anything else.
  Result<void> for_each(const Visit& visit) const;
  // "list.json: files[3].name: array; expected a text".
  Error expected(std::string_view what) const;

 private:
  static constexpr size_t kNoItem = SIZE_MAX;
  JsonPlace(const Json& json, const JsonPlace& parent, std::string_view key, size_t index)
      : json_(&json), parent_(&parent), key_(key), index_(index) {}

  const Json* json_;
  const JsonPlace* parent_ = nullptr;
  std::string_view key_;  // the document's name if there is no parent
  size_t index_ = kNoItem;
};

// Parses the text and calls read() with the document. Failures have this code, unless the
// document is kUnsupported.
Result<void> read_document(std::string_view text, std::string_view where, ErrorCode code,
                           const std::function<Result<void>(const JsonPlace&)>& read);

}  // namespace holdfast
