#include "holdfast/checkpoint/free_memory.h"

#include <charconv>
#include <string_view>

namespace holdfast {

int64_t free_memory(Env& env) {
  constexpr std::string_view kField = "MemAvailable:";
  const Result<std::string> text = env.read_text("/proc/meminfo");
  const size_t at = text.ok() ? text->find(kField) : std::string::npos;
  if (at == std::string::npos) return int64_t{1} << 30;
  const size_t digits = text->find_first_not_of(' ', at + kField.size());
  int64_t kibibytes = 0;
  std::from_chars(text->data() + digits, text->data() + text->size(), kibibytes);
  return kibibytes * 1024;
}

}  // namespace holdfast
