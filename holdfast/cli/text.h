// Numbers, times and tables as a person likes to read them, and names from files made
// harmless.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/base/clock.h"

namespace holdfast {

// "45.11 GB": decimal units, two decimals. Exact bytes are what --json is for.
std::string human_bytes(int64_t bytes);
// "1,552"
std::string human_count(int64_t count);
// "7.06 s", "320.00 ms"
std::string human_time(int64_t nanoseconds);
// "0:07", "12:30", "3:25:00"
std::string human_clock(int64_t seconds);
// "12 s", "5 min", "3 h", "8 d"; a time to come is "0 s".
std::string human_age(Duration age);
// "2026-03-01 12:30:00Z"
std::string human_date(WallTime time);
// "0.25", "1e-05", "nan", "inf"
std::string human_number(double number);

// The text with everything that a terminal obeys, or that makes it lie about what is
// there, shown as an escape: control characters and bytes that are no UTF-8 as \x1b,
// marks that turn the direction of writing and line separators as \u202e. For every
// name that comes from a file or a path.
std::string printable(std::string_view text);

enum class Colour { kNone, kRed, kGreen, kYellow };
// The text in that colour, if `on`.
std::string paint(std::string_view text, Colour colour, bool on);

// Rows of cells, two spaces between columns. The first column stands to the left and the
// others to the right, unless `sides` says otherwise: 'l' or 'r' a column, the last for
// all that follow. A row of fewer cells is fine.
class Table {
 public:
  explicit Table(std::string sides = "lr") : sides_(std::move(sides)) {}

  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string text() const;

 private:
  std::string sides_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace holdfast
