// Formats numbers, times and tables for people, and makes names from files safe to
// print.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/env/env.h"

namespace holdfast {

// Example: "45.11 GB". Decimal units with two decimals. --json has the exact bytes.
std::string human_bytes(int64_t bytes);
// Example: "1,552".
std::string human_count(int64_t count);
// Examples: "7.06 s", "320.00 ms".
std::string human_time(int64_t nanoseconds);
// Examples: "0:07", "12:30", "3:25:00".
std::string human_clock(int64_t seconds);
// Examples: "12 s", "5 min", "3 h", "8 d". A negative age is "0 s".
std::string human_age(Duration age);
// Example: "2026-03-01 12:30:00Z".
std::string human_date(WallTime time);
// Examples: "0.25", "1e-05", "nan", "inf".
std::string human_number(double number);
// Examples: "18,034", "421.7", "3.25", "0.01568". Large figures have no exponent.
std::string human_figure(double figure);
// With a sign and one digit after the point: "+3.1". What rounds to 0 is "+0.0".
std::string signed_tenths(double number);
// Examples: "200 ms", "5.0 s", "4.4 min", "never" for infinity.
std::string human_seconds(double seconds);
// Examples: "0:53", "1:02:10"; with tenths "0:04.1".
std::string human_work_clock(double seconds, bool tenths);

// Makes a text safe to print. Everything that a terminal would obey, or that would make
// it show something else than the text says, becomes an escape: control characters and
// bytes that are not UTF-8 become \x1b, and marks that change the direction of writing
// and line separators become \u202e. Must be used for every name that comes from a file
// or a path.
std::string printable(std::string_view text);

// Shortens a text of more than `width` characters in its middle: "runs/exp...m/seed-3".
// The text must be printable and without colours.
std::string shorten(std::string_view text, size_t width);
// Breaks a line of more than `width` characters at its spaces. The lines after the first
// begin with two spaces. A width of 0 means that no line is too long.
std::string wrap(std::string_view text, size_t width);

enum class Colour { kNone, kRed, kGreen, kYellow };
// Returns the text in that colour if `on`, otherwise the plain text.
std::string paint(std::string_view text, Colour colour, bool on);

// A table of text with two spaces between columns. By default the first column is
// aligned left and the others right. `sides` changes that: 'l' or 'r' for each column,
// the last one for all columns that follow. A row may have fewer cells than others.
class Table {
 public:
  explicit Table(std::string sides = "lr") : sides_(std::move(sides)) {}

  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string text() const;
  // The number of characters of the longest line.
  size_t width() const;
  // Removes the column with this title in the first row.
  void remove(std::string_view title);
  // Shortens the cells of the column with this title until no line has more than `width`
  // characters, but not below 8 characters.
  void shrink(std::string_view title, size_t width);

 private:
  size_t column(std::string_view title) const;
  std::vector<size_t> widths() const;

  std::string sides_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace holdfast
