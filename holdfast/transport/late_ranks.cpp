#include "holdfast/transport/late_ranks.h"

#include <fmt/format.h>

namespace holdfast {

std::string name_ranks(const std::vector<int>& ranks) {
  constexpr size_t kNamed = 5;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size() && i < kNamed; ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i]);
  }
  if (ranks.size() > kNamed) text += fmt::format(", ... ({} of them)", ranks.size());
  return text;
}

}  // namespace holdfast
