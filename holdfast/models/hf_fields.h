// Reads the keys of a Hugging Face config.json.
#pragma once

#include <string_view>

#include "holdfast/base/json_place.h"

namespace holdfast {

inline constexpr int64_t kMaxLayers = int64_t{1} << 13;
inline constexpr int64_t kMaxHeads = int64_t{1} << 16;
inline constexpr int64_t kMaxSize = int64_t{1} << 28;

// True if the key is there and is not null. In these files null means the default.
inline bool is_given(const JsonPlace& config, std::string_view key) {
  const auto value = config.find(key);
  return value && !value->is_null();
}

inline Result<int64_t> size_of(const JsonPlace& config, std::string_view key,
                               int64_t most = kMaxSize, int64_t least = 1) {
  int64_t size = 0;
  HOLDFAST_TRY(HOLDFAST_TRY(config.at(key)).read(size, least, most));
  return size;
}

inline Result<int64_t> size_or(const JsonPlace& config, std::string_view key,
                               int64_t otherwise, int64_t most = kMaxSize,
                               int64_t least = 1) {
  if (!is_given(config, key)) return otherwise;
  return size_of(config, key, most, least);
}

inline Result<bool> flag_or(const JsonPlace& config, std::string_view key,
                            bool otherwise) {
  if (is_given(config, key)) HOLDFAST_TRY(config.find(key)->read(otherwise));
  return otherwise;
}

inline Result<void> check_multiple(const JsonPlace& config, const char* what,
                                   int64_t size, const char* by, int64_t divisor) {
  if (size % divisor == 0) return {};
  return invalid("{}: {} is {}; expected a multiple of {} = {}", config.text(), what,
                 size, by, divisor);
}

}  // namespace holdfast
