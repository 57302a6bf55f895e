#include "holdfast/simulate/allocate.h"

#include <cmath>
#include <queue>

#include "holdfast/base/reproducible_math.h"

namespace holdfast {
namespace {

Result<void> check(size_t jobs, int64_t workers, const AllocateOptions& options) {
  if (jobs == 0) return invalid("allocate: no jobs; expected at least one");
  if (!(options.window > 0) || !std::isfinite(options.window)) {
    return invalid("allocate: window {} s; expected more than 0", options.window);
  }
  if (!(options.efficiency > 0 && options.efficiency <= 1)) {
    return invalid("allocate: efficiency {}; expected more than 0 and at most 1",
                   options.efficiency);
  }
  if (options.least < 0 || workers > 100'000'000 ||
      workers / static_cast<int64_t>(jobs) < options.least) {
    return invalid("allocate: {} workers for {} jobs; expected at least {} for each",
                   workers, jobs, options.least);
  }
  return {};
}

// How many times as fast as one worker these workers are.
double pace(int64_t workers, double efficiency) {
  return workers == 0 ? 0 : reproducible::pow(static_cast<double>(workers), efficiency);
}

// Gives each worker to the job that gains most from one more. `at` says how far each
// job is along its curve.
std::vector<int64_t> share_out(std::span<const Curve> curves,
                               const std::vector<double>& at, int64_t workers,
                               const AllocateOptions& options) {
  std::vector<int64_t> out(curves.size(), options.least);
  struct Bid {
    double gain;
    size_t job;
    bool operator<(const Bid& other) const {
      return gain < other.gain || (gain == other.gain && job > other.job);
    }
  };
  const auto bid = [&](size_t job) {
    const auto reach = [&](int64_t count) {
      return at[job] + options.window * pace(count, options.efficiency);
    };
    return Bid{curves[job].drop(reach(out[job]), reach(out[job] + 1)), job};
  };
  std::priority_queue<Bid> bids;
  for (size_t job = 0; job < curves.size(); ++job) bids.push(bid(job));
  const auto given = options.least * static_cast<int64_t>(curves.size());
  for (int64_t left = workers - given; left > 0; --left) {
    const size_t job = bids.top().job;
    bids.pop();
    ++out[job];
    bids.push(bid(job));
  }
  return out;
}

}  // namespace

Result<std::vector<int64_t>> allocate(std::span<const Curve> curves, int64_t workers,
                                      const AllocateOptions& options) {
  HOLDFAST_TRY(check(curves.size(), workers, options));
  return share_out(curves, std::vector<double>(curves.size(), 0), workers, options);
}

Result<std::vector<Workers>> allocate_over(std::span<const Curve> curves,
                                           int64_t workers, double length,
                                           const AllocateOptions& options) {
  HOLDFAST_TRY(check(curves.size(), workers, options));
  if (!(length > 0) || !(length / options.window <= 1e6)) {
    return invalid("allocate: {} s in windows of {} s; expected 1 to 10^6 windows",
                   length, options.window);
  }
  if (options.least < 1)
    return invalid("allocate: least 0; expected 1 or more over time");
  std::vector<Workers> out(curves.size());
  std::vector<double> at(curves.size(), 0);
  const auto windows = static_cast<int64_t>(std::ceil(length / options.window));
  for (int64_t window = 0; window < windows; ++window) {
    const double time = static_cast<double>(window) * options.window;
    const std::vector<int64_t> counts = share_out(curves, at, workers, options);
    for (size_t job = 0; job < curves.size(); ++job) {
      const auto count = static_cast<double>(counts[job]);
      auto& phases = out[job].phases;
      if (phases.empty() || phases.back().count != count)
        phases.push_back({time, count});
      at[job] += options.window * pace(counts[job], options.efficiency);
    }
  }
  return out;
}

}  // namespace holdfast
