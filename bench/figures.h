// What a benchmark found: figures with medians and quartiles, and the bars they are held
// against. Printed as they come, kept for a JSON file.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "holdfast/env/env.h"

namespace holdfast {

// The same thing measured several times.
struct Series {
  std::vector<double> values;

  void add(double value) { values.push_back(value); }
  // The value that `part` (0 to 1) of them lie below, between neighbours where it must.
  double quantile(double part) const;
  double median() const { return quantile(0.5); }
};

// One divided by the other, measurement by measurement: two series taken by turns.
Series ratios(const Series& a, const Series& b);

// Reads a number above 0, all of the text; false for anything else.
bool parse_number(std::string_view text, int64_t& into);

class Figures {
 public:
  // "name   median (lower to upper quartile) unit", all values divided by `scale`.
  void show(std::string_view name, const Series& series, std::string_view unit,
            double scale = 1);
  // The median is held against the bar.
  void at_least(std::string_view name, const Series& series, double bar);
  void at_most(std::string_view name, const Series& series, double bar);

  bool passed() const { return failed_ == 0; }
  // {"name": {"median":, "lower":, "upper":, "bar":, "passed":}, ...}
  Result<void> write_json(Env& env, const Path& path) const;

 private:
  void judge(std::string_view name, const Series& series, double bar, bool passed,
             std::string_view want);
  void keep(std::string_view name, const Series& series, double scale);

  std::string json_;  // the entries, with commas between them
  int failed_ = 0;
};

}  // namespace holdfast
