#include "holdfast/cli/text.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "holdfast/base/json_text.h"
#include "holdfast/base/result.h"

namespace holdfast {
namespace {

std::string scaled(int64_t value, double step, const auto& units) {
  double shown = static_cast<double>(value);
  size_t unit = 0;
  while (shown >= step && unit + 1 < units.size()) shown /= step, ++unit;
  if (unit == 0) return fmt::format("{} {}", value, units[0]);
  return fmt::format("{:.2f} {}", shown, units[unit]);
}

// The size of the UTF-8 character at the start of `text` in bytes; 0 if there is none.
size_t character_bytes(std::string_view text) {
  for (size_t size = 1; size <= std::min<size_t>(text.size(), 4); ++size) {
    if (is_utf8(text.substr(0, size))) return size;
  }
  return 0;
}

uint32_t code_point(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return first;
  uint32_t code = first & (0xffu >> (character.size() + 1));
  for (const char c : character.substr(1)) {
    code = code << 6 | (static_cast<unsigned char>(c) & 0x3fu);
  }
  return code;
}

// Whether the character changes the direction of writing or separates lines, so that a
// terminal would show something else than the text says.
bool misleads_reader(uint32_t code) {
  return code == 0x061c || code == 0x200e || code == 0x200f ||
         (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

bool is_control(uint32_t code) { return code < 0x20 || (code >= 0x7f && code < 0xa0); }

// The number of characters that a terminal shows, without the codes of paint().
size_t width_of(std::string_view text) {
  size_t width = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\033') {
      i = std::min(text.find('m', i), text.size() - 1);
    } else if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) {
      ++width;
    }
  }
  return width;
}

std::string padded(const std::string& cell, size_t width, bool left) {
  const std::string space(width - std::min(width, width_of(cell)), ' ');
  return left ? cell + space : space + cell;
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

std::string human_clock(int64_t seconds) {
  const int64_t minutes = seconds / 60;
  if (minutes < 60) return fmt::format("{}:{:02}", minutes, seconds % 60);
  return fmt::format("{}:{:02}:{:02}", minutes / 60, minutes % 60, seconds % 60);
}

std::string human_age(Duration age) {
  constexpr int64_t kMinute = 60, kHour = 3600, kDay = 86400;
  const int64_t seconds = std::max<int64_t>(
      std::chrono::duration_cast<std::chrono::seconds>(age).count(), 0);
  if (seconds < 2 * kMinute) return fmt::format("{} s", seconds);
  if (seconds < 2 * kHour) return fmt::format("{} min", seconds / kMinute);
  if (seconds < 2 * kDay) return fmt::format("{} h", seconds / kHour);
  return fmt::format("{} d", seconds / kDay);
}

std::string human_date(WallTime time) {
  const auto seconds =
      std::chrono::floor<std::chrono::seconds>(time.time_since_epoch());
  return fmt::format("{:%Y-%m-%d %H:%M:%S}Z",
                     fmt::gmtime(static_cast<std::time_t>(seconds.count())));
}

std::string human_number(double number) { return fmt::format("{:.6g}", number); }

std::string human_figure(double figure) {
  const double size = std::fabs(figure);
  if (size >= 1000 && size < 1e15) return human_count(std::llround(figure));
  if (size >= 100) return fmt::format("{:.1f}", figure);
  return fmt::format("{:.4g}", figure);
}

std::string signed_tenths(double number) {
  const double rounded = std::round(number * 10) / 10;
  return fmt::format("{:+.1f}", rounded == 0 ? 0.0 : rounded);
}

std::string human_seconds(double seconds) {
  if (std::isinf(seconds)) return "never";
  if (seconds == 0) return "0 s";
  if (seconds < 1) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds < 120) return fmt::format("{:.1f} s", seconds);
  if (seconds < 7200) return fmt::format("{:.1f} min", seconds / 60);
  if (seconds < 2 * 86400) return fmt::format("{:.1f} h", seconds / 3600);
  return fmt::format("{:.1f} d", seconds / 86400);
}

std::string human_work_clock(double seconds, bool tenths) {
  if (!tenths) return human_clock(std::llround(seconds));
  const int64_t all = std::llround(seconds * 10);
  return fmt::format("{}.{}", human_clock(all / 10), all % 10);
}

std::string printable(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const size_t size = character_bytes(text);
    const std::string_view character = text.substr(0, std::max<size_t>(size, 1));
    const uint32_t code = size == 0 ? 0 : code_point(character);
    if (size == 0) {
      shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[0]));
    } else if (is_control(code)) {
      shown += fmt::format("\\x{:02x}", code);
    } else if (misleads_reader(code)) {
      shown += fmt::format("\\u{:04x}", code);
    } else {
      shown += character;
    }
    text.remove_prefix(character.size());
  }
  return shown;
}

std::string shorten(std::string_view text, size_t width) {
  constexpr std::string_view kGap = "...";
  if (width_of(text) <= width || width <= kGap.size()) return std::string(text);
  const size_t head = (width - kGap.size() + 1) / 2;
  const size_t tail = width - kGap.size() - head;
  const size_t all = width_of(text);
  std::string shown;
  for (size_t at = 0; !text.empty(); ++at) {
    const std::string_view character =
        text.substr(0, std::max<size_t>(character_bytes(text), 1));
    if (at == head) shown += kGap;
    if (at < head || at >= all - tail) shown += character;
    text.remove_prefix(character.size());
  }
  return shown;
}

std::string wrap(std::string_view text, size_t width) {
  std::string out, line;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    const bool fits = width == 0 || width_of(line) + 1 + width_of(word) <= width;
    if (line.size() > 1 && !fits) out += std::exchange(line, " ") + "\n";
    line += (line.empty() ? "" : " ") + std::string(word);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out + line;
}

std::string paint(std::string_view text, Colour colour, bool on) {
  if (!on || colour == Colour::kNone) return std::string(text);
  const int code = colour == Colour::kRed ? 31 : colour == Colour::kGreen ? 32 : 33;
  return fmt::format("\033[{}m{}\033[0m", code, text);
}

std::vector<size_t> Table::widths() const {
  std::vector<size_t> width;
  for (const auto& row : rows_) {
    width.resize(std::max(width.size(), row.size()));
    for (size_t c = 0; c < row.size(); ++c)
      width[c] = std::max(width[c], width_of(row[c]));
  }
  return width;
}

size_t Table::width() const {
  size_t all = 0;
  for (const size_t width : widths()) all += width + (all == 0 ? 0 : 2);
  return all;
}

size_t Table::column(std::string_view title) const {
  const auto found = std::ranges::find(rows_.front(), title);
  HOLDFAST_CHECK(found != rows_.front().end(), "no column {}", title);
  return static_cast<size_t>(found - rows_.front().begin());
}

void Table::remove(std::string_view title) {
  const size_t at = column(title);
  sides_.resize(std::max(sides_.size(), rows_.front().size()), sides_.back());
  sides_.erase(at, 1);
  for (auto& row : rows_) {
    if (at < row.size()) row.erase(row.begin() + static_cast<ptrdiff_t>(at));
  }
}

void Table::shrink(std::string_view title, size_t width) {
  constexpr size_t kLeast = 8;
  const size_t at = column(title), now = widths()[at], all = this->width();
  if (all <= width) return;
  const size_t room = now > all - width ? now - (all - width) : 0;
  for (auto& row : rows_) {
    if (at < row.size()) row[at] = shorten(row[at], std::max(room, kLeast));
  }
}

std::string Table::text() const {
  const std::vector<size_t> width = widths();
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      const bool left = sides_[std::min(c, sides_.size() - 1)] == 'l';
      line += (c == 0 ? "" : "  ") + padded(row[c], width[c], left);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace holdfast
