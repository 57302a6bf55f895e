#include "bench/figures.h"

#include <fmt/chrono.h>
#include <fmt/core.h>
#include <sys/utsname.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <thread>

#include "holdfast/base/json_text.h"

namespace holdfast {

double Series::quantile(double part) const {
  HOLDFAST_CHECK(!values.empty(), "quantile of nothing");
  std::vector<double> sorted = values;
  std::sort(sorted.begin(), sorted.end());
  const double at = part * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(std::floor(at));
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], at - std::floor(at));
}

void on_each(int ranks, const std::function<void(int)>& body) {
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&body, rank] { body(rank); });
  }
}

double seconds(Env& env, const std::function<void()>& body) {
  const Instant start = env.now();
  body();
  return std::chrono::duration<double>(env.now() - start).count();
}

bool parse_options(int count, char** arguments,
                   const std::map<std::string_view, std::string*>& texts,
                   const std::map<std::string_view, int64_t*>& numbers) {
  for (int i = 1; i < count; ++i) {
    const auto text = texts.find(arguments[i]);
    const auto number = numbers.find(arguments[i]);
    if (text == texts.end() && number == numbers.end()) continue;
    if (++i == count) return false;
    if (text != texts.end()) *text->second = arguments[i];
    if (number != numbers.end() && !parse_number(arguments[i], *number->second)) {
      return false;
    }
  }
  return true;
}

bool parse_number(std::string_view text, int64_t& into) {
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), into);
  return error == std::errc() && end == text.data() + text.size() && into > 0;
}

Series ratios(const Series& a, const Series& b) {
  HOLDFAST_CHECK(a.values.size() == b.values.size(), "{} values and {}",
                 a.values.size(), b.values.size());
  Series series;
  for (size_t i = 0; i < a.values.size(); ++i) series.add(a.values[i] / b.values[i]);
  return series;
}

void Report::show(std::string_view name, const Series& series, std::string_view unit,
                   double scale) {
  fmt::print("  {:<44} {:>8.3f}  ({:.3f} to {:.3f}) {}\n", name,
             series.median() / scale, series.quantile(0.25) / scale,
             series.quantile(0.75) / scale, unit);
  std::fflush(stdout);
  keep(name, series, scale);
  json_ += '}';
}

void Report::at_least(std::string_view name, const Series& series, double bar) {
  judge(name, series, bar, series.median() >= bar, ">=");
}

void Report::at_most(std::string_view name, const Series& series, double bar) {
  judge(name, series, bar, series.median() <= bar, "<=");
}

void Report::judge(std::string_view name, const Series& series, double bar,
                    bool passed, std::string_view expected) {
  fmt::print("  {:<44} {:>8.3f}  ({:.3f} to {:.3f}); expected {} {}  {}\n", name,
             series.median(), series.quantile(0.25), series.quantile(0.75), expected,
             bar, passed ? "PASS" : "FAIL");
  std::fflush(stdout);
  if (!passed) ++failed_;
  keep(name, series, 1);
  json_ += ", \"bar\": ";
  append_json_double(json_, bar);
  json_ += fmt::format(", \"passed\": {}}}", passed);
}

void Report::keep(std::string_view name, const Series& series, double scale) {
  json_ += json_.empty() ? "  " : ",\n  ";
  append_json_string(json_, name);
  json_ += ": {\"median\": ";
  append_json_double(json_, series.median() / scale);
  json_ += ", \"lower\": ";
  append_json_double(json_, series.quantile(0.25) / scale);
  json_ += ", \"upper\": ";
  append_json_double(json_, series.quantile(0.75) / scale);
}

// As bench/measuring/machines.py has it, as far as a program without Python knows it.
std::string Report::run_json() {
  utsname kernel{};
  uname(&kernel);
  std::string processor;
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; processor.empty() && std::getline(file, line);) {
    if (line.starts_with("model name")) processor = line.substr(line.find(':') + 2);
  }
  std::string json = "  \"run\": {\"machine\": ";
  append_json_string(json, kernel.machine);
  json += ", \"processor\": ";
  append_json_string(json, processor);
  return json + fmt::format(", \"cores\": {}, \"date\": \"{:%Y-%m-%d}\"}}",
                            std::thread::hardware_concurrency(),
                            fmt::gmtime(std::time(nullptr)));
}

Result<void> Report::write_json(Env& env, const Path& path) const {
  const std::string comma = json_.empty() ? "" : ",\n";
  const std::string text = "{\n" + run_json() + comma + json_ + "\n}\n";
  return env.replace_file(path, bytes_of(text));
}

}  // namespace holdfast
