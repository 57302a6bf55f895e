#include "holdfast/cli/suggest.h"

#include <algorithm>
#include <vector>

namespace holdfast {
namespace {

// The least number of typing errors that turn `a` into `b`.
size_t typing_errors(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> least(a.size() + 1,
                                         std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        least[i][j] = i + j;
        continue;
      }
      const size_t wrong = a[i - 1] == b[j - 1] ? 0 : 1;
      least[i][j] = std::min(
          {least[i - 1][j] + 1, least[i][j - 1] + 1, least[i - 1][j - 1] + wrong});
      const bool swapped =
          i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) least[i][j] = std::min(least[i][j], least[i - 2][j - 2] + 1);
    }
  }
  return least[a.size()][b.size()];
}

}  // namespace

std::optional<std::string> nearest_word(std::string_view word,
                                        std::span<const std::string> known) {
  constexpr size_t kLongest = 64;  // so that the work stays small
  const size_t begin = std::min(word.find_first_not_of('-'), word.size());
  const size_t letters = word.size() - begin;
  if (letters < 2 || letters > kLongest) return std::nullopt;
  std::optional<std::string> best;
  size_t fewest = std::max<size_t>(letters / 3, 1);
  for (const std::string& one : known) {
    const size_t errors = one.starts_with(word) ? 1 : typing_errors(word, one);
    if (errors > fewest || (best && errors == fewest)) continue;
    best = one;
    fewest = errors;
  }
  return best;
}

}  // namespace holdfast
