// The figures of a benchmark, with medians and quartiles, and the bars that they must
// meet. Each figure is printed at once and kept for a JSON file.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/env/env.h"

namespace holdfast {

// Several measurements of the same thing.
struct Series {
  std::vector<double> values;

  void add(double value) { values.push_back(value); }
  // The value that a share `part` (0 to 1) of the measurements lies below. Interpolates
  // between the two nearest measurements.
  double quantile(double part) const;
  double median() const { return quantile(0.5); }
};

// Divides each measurement of `a` by the one of `b` with the same index. The two were
// measured in turns.
Series ratios(const Series& a, const Series& b);

// Runs the body once for each rank, each in a thread of its own.
void on_each(int ranks, const std::function<void(int)>& body);
// How long the body takes.
double seconds(Env& env, const std::function<void()>& body);

// Puts the values of options where the maps say. Returns false for a wrong value. Other
// options are ignored, because they may be those of other benchmarks.
bool parse_options(int count, char** arguments,
                   const std::map<std::string_view, std::string*>& texts,
                   const std::map<std::string_view, int64_t*>& numbers);
// Reads a number above 0. Returns false if the text is anything else.
bool parse_number(std::string_view text, int64_t& into);

class Report {
 public:
  // Prints "name   median (lower to upper quartile) unit". All values are divided by
  // `scale`.
  void show(std::string_view name, const Series& series, std::string_view unit,
            double scale = 1);
  // Check that the median meets the bar.
  void at_least(std::string_view name, const Series& series, double bar);
  void at_most(std::string_view name, const Series& series, double bar);

  bool passed() const { return failed_ == 0; }
  // {"name": {"median":, "lower":, "upper":, "bar":, "passed":}, ...}
  Result<void> write_json(Env& env, const Path& path) const;

 private:
  void judge(std::string_view name, const Series& series, double bar, bool passed,
             std::string_view expected);
  void keep(std::string_view name, const Series& series, double scale);
  static std::string run_json();  // the machine and the date

  std::string json_;  // the entries, with commas between them
  int failed_ = 0;
};

}  // namespace holdfast
