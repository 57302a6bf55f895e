#include "holdfast/cli/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace holdfast {
namespace {

std::string scaled(int64_t value, double step, const auto& units) {
  double shown = static_cast<double>(value);
  size_t unit = 0;
  while (shown >= step && unit + 1 < units.size()) shown /= step, ++unit;
  if (unit == 0) return fmt::format("{} {}", value, units[0]);
  return fmt::format("{:.2f} {}", shown, units[unit]);
}

}  // namespace

std::string human_bytes(int64_t bytes) {
  return scaled(bytes, 1000, std::array{"B", "kB", "MB", "GB", "TB", "PB"});
}

std::string human_time(int64_t nanoseconds) {
  return scaled(nanoseconds, 1000, std::array{"ns", "us", "ms", "s"});
}

std::string human_count(int64_t count) {
  const std::string digits = std::to_string(count);
  std::string grouped;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) grouped += ',';
    grouped += digits[i];
  }
  return grouped;
}

std::string Table::text() const {
  std::vector<size_t> width;
  for (const auto& row : rows_) {
    width.resize(std::max(width.size(), row.size()));
    for (size_t c = 0; c < row.size(); ++c)
      width[c] = std::max(width[c], row[c].size());
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      line += c == 0 ? fmt::format("{:<{}}", row[c], width[c])
                     : fmt::format("  {:>{}}", row[c], width[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace holdfast
