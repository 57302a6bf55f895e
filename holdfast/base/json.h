// JSON from outside: parsed with limits, read with names.
//
// parse_json refuses duplicate keys, more than 64 levels and trailing bytes; messages
// name `where` (a path) and the byte. Fields reads one object: every getter names the
// key it wants, and done() refuses keys that nobody asked for, so that a typing error
// is never silently ignored.
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
  // Fails unless `value` is an object. `where` names it in messages.
  static Result<Fields> of(const Json& value, std::string where);

  bool has(const std::string& key) const;
  const std::string& where() const { return where_; }

  // Each fails if the key is missing or of another type or out of range.
  Result<int64_t> integer(const std::string& key, int64_t least = 0,
                          int64_t most = std::numeric_limits<int64_t>::max());
  // Also an integer, which may lose digits beyond the 53rd bit. Always finite.
  Result<double> number(const std::string& key,
                        double least = std::numeric_limits<double>::lowest(),
                        double most = std::numeric_limits<double>::max());
  Result<std::string> text(const std::string& key);
  Result<bool> boolean(const std::string& key);
  Result<const Json*> array(const std::string& key);
  Result<const Json*> any(const std::string& key);
  // Fails on a key that no getter asked for.
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
