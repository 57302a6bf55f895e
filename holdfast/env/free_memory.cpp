#include "holdfast/env/free_memory.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

namespace holdfast {
namespace {

// Returns the number after `field` in a file of /proc or /sys; nullopt if there is
// none.
std::optional<int64_t> number_in(Env& env, const Path& path, std::string_view field) {
  const Result<std::string> text = env.read_text(path);
  const size_t at = text.ok() ? text->find(field) : std::string::npos;
  if (at == std::string::npos) return std::nullopt;
  const size_t digits = text->find_first_not_of(' ', at + field.size());
  if (digits == std::string::npos) return std::nullopt;
  int64_t number = 0;
  const auto [end, error] =
      std::from_chars(text->data() + digits, text->data() + text->size(), number);
  if (error != std::errc()) return std::nullopt;
  return number;
}

// Returns the folder of this process's control group, or the root group if it is
// unknown.
Path control_group(Env& env) {
  constexpr std::string_view kLine = "0::/";
  Path group = "/sys/fs/cgroup";
  const Result<std::string> text = env.read_text("/proc/self/cgroup");
  const size_t at = text.ok() ? text->find(kLine) : std::string::npos;
  if (at == std::string::npos) return group;
  const size_t begin = at + kLine.size();
  return group / text->substr(begin, text->find('\n', begin) - begin);
}

// What a group has used for files that it has read. The system gives it up when memory is
// needed.
int64_t page_cache(Env& env, const Path& group) {
  const Path path = group / "memory.stat";
  return number_in(env, path, "\nactive_file").value_or(0) +
         number_in(env, path, "\ninactive_file").value_or(0);
}

}  // namespace

int64_t free_memory(Env& env) {
  const std::optional<int64_t> kibibytes =
      number_in(env, "/proc/meminfo", "MemAvailable:");
  int64_t free = kibibytes.has_value() ? *kibibytes * 1024 : int64_t{1} << 30;
  const Path group = control_group(env);
  const std::optional<int64_t> limit = number_in(env, group / "memory.max", "");
  const std::optional<int64_t> used = number_in(env, group / "memory.current", "");
  if (limit.has_value() && used.has_value()) {
    free = std::min(free, *limit - *used + page_cache(env, group));
  }
  return std::max<int64_t>(free, 0);
}

}  // namespace holdfast
