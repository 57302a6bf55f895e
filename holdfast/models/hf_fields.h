// Reads the keys of a Hugging Face config.json.
#pragma once

#include <string>

#include "holdfast/base/json.h"

namespace holdfast {

inline constexpr int64_t kMaxLayers = int64_t{1} << 13;
inline constexpr int64_t kMaxHeads = int64_t{1} << 16;
inline constexpr int64_t kMaxSize = int64_t{1} << 28;

// True if the key is there and is not null. In these files null means the default.
inline bool is_given(Fields& fields, const std::string& key) {
  if (!fields.has(key)) return false;
  const auto value = fields.any(key);
  return value.ok() && !(*value)->is_null();
}

inline Result<int64_t> size_of(Fields& fields, const std::string& key,
                               int64_t most = kMaxSize) {
  return fields.integer(key, 1, most);
}

inline Result<int64_t> size_or(Fields& fields, const std::string& key,
                               int64_t otherwise, int64_t most = kMaxSize) {
  if (!is_given(fields, key)) return otherwise;
  return size_of(fields, key, most);
}

inline Result<bool> flag_or(Fields& fields, const std::string& key, bool otherwise) {
  if (!is_given(fields, key)) return otherwise;
  return fields.boolean(key);
}

inline Result<void> check_multiple(const Fields& fields, const char* what, int64_t size,
                                   const char* by, int64_t divisor) {
  if (size % divisor == 0) return {};
  return invalid("{}: {} is {}; expected a multiple of {} = {}", fields.where(), what,
                 size, by, divisor);
}

}  // namespace holdfast
