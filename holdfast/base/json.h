// JSON from outside: parse_json() reads a document within limits, and Fields reads the
// keys of one object.
//
// parse_json refuses duplicate keys, more than 64 levels and trailing bytes; messages
// name `where` (a path) and the byte. Every getter of Fields names its key, and done()
// refuses keys that no getter asked for, so that a misspelt key is never silently
// ignored.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

#include "holdfast/base/json_value.h"
#include "holdfast/base/result.h"

namespace holdfast {

inline constexpr int kMaxJsonDepth = 64;

Result<Json> parse_json(std::string_view text, std::string_view where);

// Reader of one JSON object. Not thread safe; the object must outlive it.
class Fields {
 public:
  // Fails unless `value` is an object. Messages name the object by `where`.
  static Result<Fields> of(const Json& value, std::string where);

  bool has(const std::string& key) const;
  const std::string& where() const { return where_; }

  // Each getter fails if the key is missing, or if its value is of another type or out
  // of range.
  Result<int64_t> integer(const std::string& key, int64_t least = 0,
                          int64_t most = std::numeric_limits<int64_t>::max());
  Result<std::string> text(const std::string& key);
  Result<bool> boolean(const std::string& key);
  Result<const Json*> array(const std::string& key);
  Result<const Json*> any(const std::string& key);
  // Fails if the object has a key that no getter asked for.
  Result<void> done() const;

 private:
  Fields(const Json& object, std::string where)
      : object_(&object), where_(std::move(where)) {}

  const Json* object_;
  std::string where_;
  std::set<std::string> asked_;
};

// An integer in [least, most], or an error that names `where`.
Result<int64_t> json_integer(const Json& value, std::string_view where,
                             int64_t least = 0,
                             int64_t most = std::numeric_limits<int64_t>::max());

}  // namespace holdfast
