#include "holdfast/env/free_memory.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "holdfast/base/number_text.h"

namespace holdfast {
namespace {

// Returns the number after `field` in a file of /proc or /sys; nullopt if there is
// none.
std::optional<int64_t> number_behind(Env& env, const Path& path, std::string_view field) {
  const Result<std::string> text = env.read_text(path);
  const size_t at = text.ok() ? text->find(field) : std::string::npos;
  if (at == std::string::npos) return std::nullopt;
  const size_t digits = text->find_first_not_of(' ', at + field.size());
  if (digits == std::string::npos) return std::nullopt;
  std::string_view rest = std::string_view(*text).substr(digits);
  return take_number<int64_t>(rest);
}

// The files of a control group that say what it may use, in versions 2 and 1 of groups.
struct GroupFiles {
  Path root;              // where the groups of that version are
  std::string_view line;  // what stands before this process's group in /proc
  std::string_view limit, used, active, inactive;
};
constexpr std::string_view kCgroup = "/sys/fs/cgroup";
GroupFiles version_2() {
  return {kCgroup, "0::/", "memory.max", "memory.current", "\nactive_file",
          "\ninactive_file"};
}
GroupFiles version_1() {
  return {Path(kCgroup) / "memory", ":memory:/", "memory.limit_in_bytes",
          "memory.usage_in_bytes", "\ntotal_active_file", "\ntotal_inactive_file"};
}

// The folder of this process's group below the root; empty if it is unknown.
Path control_group(Env& env, std::string_view line) {
  const Result<std::string> text = env.read_text("/proc/self/cgroup");
  const size_t at = text.ok() ? text->find(line) : std::string::npos;
  if (at == std::string::npos) return {};
  const size_t begin = at + line.size();
  return Path(text->substr(begin, text->find('\n', begin) - begin)).relative_path();
}

// What one group may still use. Files that it has read count as free, because the system
// gives them up when memory is needed.
std::optional<int64_t> free_in(Env& env, const GroupFiles& files, const Path& group) {
  const std::optional<int64_t> limit = number_behind(env, group / files.limit, "");
  const std::optional<int64_t> used = number_behind(env, group / files.used, "");
  if (!limit || !used) return std::nullopt;
  const Path stat = group / "memory.stat";
  const int64_t read = number_behind(env, stat, files.active).value_or(0) +
                       number_behind(env, stat, files.inactive).value_or(0);
  return *limit - std::max<int64_t>(*used - read, 0);
}

// The least of this process's group and all groups around it: a limit often belongs to
// the job, and the group of the process has none of its own.
int64_t least_free(Env& env, const GroupFiles& files, int64_t free) {
  for (Path group = control_group(env, files.line);; group = group.parent_path()) {
    if (const auto here = free_in(env, files, files.root / group)) {
      free = std::min(free, *here);
    }
    if (group.empty()) return free;
  }
}

}  // namespace

int64_t free_memory(Env& env) {
  const std::optional<int64_t> kibibytes =
      number_behind(env, "/proc/meminfo", "MemAvailable:");
  int64_t free = kibibytes.has_value() ? *kibibytes * 1024 : int64_t{1} << 30;
  free = least_free(env, version_2(), least_free(env, version_1(), free));
  return std::max<int64_t>(free, 0);
}

}  // namespace holdfast
