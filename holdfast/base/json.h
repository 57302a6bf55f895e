// JSON from outside: parse_json() reads a document within limits. It refuses duplicate
// keys, more than 64 levels and trailing bytes; messages name `where` (a path) and the
// byte. Only `base` and tests use this header, because it comes with the whole JSON
// library: others read a JsonDocument (json_place.h).
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "holdfast/base/json_value.h"
#include "holdfast/base/result.h"

namespace holdfast {

inline constexpr int kMaxJsonDepth = 64;

Result<Json> parse_json(std::string_view text, std::string_view where);

// An integer in [least, most], or an error that names `where`.
Result<int64_t> json_integer(const Json& value, std::string_view where,
                             int64_t least = 0,
                             int64_t most = std::numeric_limits<int64_t>::max());

}  // namespace holdfast
