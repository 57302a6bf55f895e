// Measures how long planning takes on one core and compares it with bars. The layouts
// are built before the clock starts.
//
// Prints a table, and how the time grows with the number of pieces and moves. Exits
// with 1 if a bar is missed.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "holdfast/models/build.h"
#include "holdfast/models/transformers.h"
#include "holdfast/plan/plan.h"

namespace holdfast {
namespace {

struct Row {
  const char* from;
  const char* to;
  int64_t layers;
  int repeats;
  double bar;  // in seconds; 0: no bar
};

// A GPT layer has 12 parameters, and mixed-precision Adam keeps 4 tensors for each.
constexpr Row kRows[] = {
    {"tp=8,pp=2,dp=4", "tp=4,pp=4,dp=4", 21, 9, 0.050},
    {"tp=4,pp=2,dp=8", "tp=8,pp=4,dp=2", 21, 9, 0.050},
    {"tp=8,pp=8,dp=1", "tp=2,pp=4,dp=8", 21, 9, 0.050},
    {"tp=8,pp=1,dp=8,zero=1", "tp=4,pp=4,dp=4,zero=1", 21, 9, 0},
    {"tp=8,pp=16,dp=8", "tp=16,pp=8,dp=8", 208, 3, 5.0},
    {"dp=1024,zero=3", "tp=8,dp=128,zero=3", 21, 1, 0},
    {"dp=1024,zero=3", "dp=1000,zero=3", 21, 1, 0},
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
      .count();
}

double peak_memory_gib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / (1 << 20);
}

Collection build(const Row& row, const char* text) {
  const Parallel parallel = parse_parallel(text).value();
  const Model model = make_gpt({.layers = row.layers,
                                .hidden = 4096,
                                .heads = 32,
                                .vocabulary = 50257,
                                .positions = 2048});
  const auto positions = static_cast<uint32_t>(parallel.positions());
  return build_collection(model, parallel, Training{},
                          make_devices((positions + 7) / 8, std::min(positions, 8u)))
      .value();
}

struct Measured {
  size_t tensors, pieces, moves;
  double building, planning;
};

Measured measure(const Row& row) {
  const auto start = std::chrono::steady_clock::now();
  const Collection source = build(row, row.from), target = build(row, row.to);
  Measured m{source.tensors().size(),
             source.layout().piece_count() + target.layout().piece_count(), 0,
             seconds_since(start), 0};
  const size_t hosts =
      std::max(source.layout().holders().size(), target.layout().holders().size()) / 8 +
      1;
  const Topology topology = Topology::uniform(static_cast<uint32_t>(hosts));
  std::vector<double> times;
  for (int i = 0; i < row.repeats; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const Plan made = plan(source, target, topology).value();
    times.push_back(seconds_since(begin));
    m.moves = made.moves.size();
  }
  std::nth_element(times.begin(), times.begin() + row.repeats / 2, times.end());
  m.planning = times[static_cast<size_t>(row.repeats / 2)];
  return m;
}

bool print_bars() {
  bool met = true;
  fmt::print("{:<24}{:<24}{:>8}{:>10}{:>10}{:>10}{:>10}{:>8}\n", "from", "to",
             "tensors", "pieces", "moves", "build s", "plan s", "bar s");
  for (const Row& row : kRows) {
    const Measured m = measure(row);
    const bool missed = row.bar > 0 && m.planning > row.bar;
    fmt::print("{:<24}{:<24}{:>8}{:>10}{:>10}{:>10.3f}{:>10.4f}{:>8}{}\n", row.from,
               row.to, m.tensors, m.pieces, m.moves, m.building, m.planning,
               row.bar > 0 ? fmt::format("{}", row.bar) : "-",
               missed ? "  MISSED" : "");
    met &= !missed;
    if (row.layers > 100) {
      const double gib = peak_memory_gib();
      fmt::print("{:>48} peak memory {:.2f} GiB, bar 2{}\n", "", gib,
                 gib > 2 ? "  MISSED" : "");
      met &= gib <= 2;
    }
  }
  return met;
}

// Fits a line to log(time) over log(pieces and moves). A slope of 1 means linear time.
bool print_fit() {
  fmt::print("\ncost against size, tp=8,pp=4,dp=d -> tp=4,pp=8,dp=d\n");
  double sx = 0, sy = 0, sxx = 0, sxy = 0, n = 0;
  for (const int64_t layers : {16, 32, 64, 128}) {
    const Measured m = measure({"tp=8,pp=4,dp=8", "tp=4,pp=8,dp=8", layers, 5, 0});
    const auto size = static_cast<double>(m.pieces + m.moves);
    fmt::print("{:>10.0f} pieces and moves {:>8.4f} s {:>8.0f} ns each\n", size,
               m.planning, m.planning / size * 1e9);
    const double x = std::log(size), y = std::log(m.planning);
    sx += x, sy += y, sxx += x * x, sxy += x * y, ++n;
  }
  const double slope = (n * sxy - sx * sy) / (n * sxx - sx * sx);
  const bool met = slope < 1.15;
  fmt::print("time ~ size^{:.2f} (1 is linear, bar 1.15){}\n", slope,
             met ? "" : "  MISSED");
  return met;
}

}  // namespace
}  // namespace holdfast

int main() {
  const bool bars = holdfast::print_bars();
  const bool fit = holdfast::print_fit();
  return bars && fit ? 0 : 1;
}
