#include "holdfast/remote/object_store.h"

#include <algorithm>

namespace holdfast {
namespace {

constexpr size_t kMaxKeyBytes = 1024;

bool is_control(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte < 0x20 || byte == 0x7f;
}

bool is_plain_segment(std::string_view segment) {
  return !segment.empty() && segment != "." && segment != "..";
}

bool has_plain_segments(std::string_view key) {
  while (true) {
    const size_t slash = key.find('/');
    if (!is_plain_segment(key.substr(0, slash))) return false;
    if (slash == std::string_view::npos) return true;
    key.remove_prefix(slash + 1);
  }
}

}  // namespace

Result<void> check_object_key(const std::string& store, const std::string& key) {
  if (key.empty() || key.size() > kMaxKeyBytes) {
    return invalid("{}: key of {} bytes; expected 1 to {}", store, key.size(),
                   kMaxKeyBytes);
  }
  if (std::any_of(key.begin(), key.end(), is_control)) {
    return invalid("{}: key with a control character; expected none", store);
  }
  if (!has_plain_segments(key)) {
    return invalid(
        "{}: key \"{}\" has an empty, \".\" or \"..\" segment; expected none", store,
        key);
  }
  return {};
}

}  // namespace holdfast
