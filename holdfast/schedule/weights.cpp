#include <algorithm>
#include <cmath>

#include "holdfast/schedule/portable.h"
#include "holdfast/schedule/weights_internal.h"

namespace holdfast {
namespace {

using Nodes = std::vector<double>;

Nodes at_nodes(const Problem& problem, int64_t count, auto&& function) {
  Nodes out(static_cast<size_t>(count) + 1);
  const double h = problem.length / static_cast<double>(count);
  for (size_t i = 0; i < out.size(); ++i) out[i] = function(static_cast<double>(i) * h);
  return out;
}

Nodes failure_rates(const Problem& problem, int64_t count) {
  if (problem.workers.phases.empty()) {
    return Nodes(static_cast<size_t>(count) + 1, 1 / problem.mtbf);
  }
  return at_nodes(problem, count, [&](double x) { return problem.failure_rate(x); });
}

Nodes time_left(const Problem& problem, int64_t count) {
  return at_nodes(problem, count, [&](double x) { return problem.length - x; });
}

Nodes loss_left(const Problem& problem, int64_t count) {
  return at_nodes(problem, count, [&](double x) {
    return problem.curve.drop(std::min(x, problem.length), problem.length);
  });
}

double mean_fall(const Problem& problem) {
  return problem.curve.drop(0, problem.length) / problem.length;
}

// The share of jobs not stopped before x; `to` includes stops at x itself.
double alive(const Stops& stops, double x, bool to = false) {
  double share = portable::exp(-stops.rate * x);
  for (const Stops::At& stop : stops.at) {
    if (stop.time < x || (to && stop.time == x)) share *= 1 - stop.share;
  }
  return share;
}

// What one second of delay at x takes from what is left when the job is stopped: the
// integral of v dF from x on. A job that is never stopped loses the last second's.
Nodes delay_weight(const Problem& problem, int64_t count, const Nodes& share) {
  const Stops& stops = problem.stops;
  const double h = problem.length / static_cast<double>(count);
  Nodes out(share.size());
  const Nodes fall =
      at_nodes(problem, count, [&](double x) { return problem.curve.fall(x); });
  double sum = alive(stops, problem.length, true) * fall.back();
  for (size_t i = out.size(); i-- > 0;) {
    const double x = static_cast<double>(i) * h;
    if (i + 1 < out.size()) {
      sum += h / 2 * stops.rate * (share[i] * fall[i] + share[i + 1] * fall[i + 1]);
    }
    for (const Stops::At& stop : stops.at) {
      const bool here = stop.time >= x && (stop.time < x + h || i + 1 == out.size());
      if (here && stop.time <= problem.length) {
        sum += alive(stops, stop.time) * stop.share * problem.curve.fall(stop.time);
      }
    }
    out[i] = sum;
  }
  return out;
}

std::vector<Danger::Jump> hard_jumps(const Problem& problem) {
  std::vector<Danger::Jump> out;
  for (const Stops::At& stop : problem.stops.at) {
    if (!stop.hard || stop.time > problem.length) continue;
    out.push_back({stop.time, alive(problem.stops, stop.time) * stop.share,
                   problem.curve.drop(stop.time, problem.length)});
  }
  return out;
}

Nodes product(Nodes a, const Nodes& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] *= b[i];
  return a;
}

// A = C (W + w S); failures cost (W + w S) a second of age, hard stops v. W and S count
// all jobs, so the price w of a second is paid by those alive, S.
Weights weigh_explore(const Problem& problem, int64_t count) {
  const Nodes share =
      at_nodes(problem, count, [&](double x) { return alive(problem.stops, x); });
  Nodes weight = delay_weight(problem, count, share);
  const double second = problem.second.value_or(mean_fall(problem));
  for (size_t i = 0; i < weight.size(); ++i) weight[i] += second * share[i];
  Weights out;
  for (size_t i = 0; i < weight.size(); i += 2) {
    out.price.push_back(problem.stall * weight[i]);
  }
  out.dangers.push_back({true,
                         time_left(problem, count),
                         product(failure_rates(problem, count), weight),
                         {}});
  Nodes stop = share;
  for (double& rate : stop) rate *= problem.stops.rate * problem.stops.hard;
  out.dangers.push_back({false, loss_left(problem, count), stop, hard_jumps(problem)});
  return out;
}

}  // namespace

Weights weigh(const Problem& problem, int64_t n) {
  const int64_t count = 2 * n;
  if (problem.objective == Objective::kExplore) return weigh_explore(problem, count);
  Weights out;
  if (problem.objective == Objective::kDelay) {
    out.price.assign(static_cast<size_t>(n) + 1, problem.stall);
    out.dangers.push_back(
        {true, time_left(problem, count), failure_rates(problem, count), {}});
    return out;
  }
  const double flat = (problem.stall + problem.price) * mean_fall(problem);
  out.price = problem.objective == Objective::kPriced
                  ? Nodes(static_cast<size_t>(n) + 1, flat)
                  : at_nodes(problem, n, [&](double x) {
                      return problem.curve.drop(x, x + problem.stall);
                    });
  out.dangers.push_back(
      {false, loss_left(problem, count), failure_rates(problem, count), {}});
  return out;
}

double shortest_interval(const Problem& problem) {
  constexpr int64_t kSamples = 256;
  const Weights weights = weigh(problem, kSamples);
  double shortest = problem.length;
  for (size_t i = 0; i < weights.price.size(); ++i) {
    const double x = problem.length * static_cast<double>(i) / kSamples;
    double loss = 0;
    for (const Danger& danger : weights.dangers) {
      loss += danger.rate[2 * i] * (danger.in_time ? 1 : problem.curve.fall(x));
    }
    const double interval = std::sqrt(2 * weights.price[i] / loss);
    if (interval > 0 && interval < shortest) shortest = interval;  // not if 0 / 0
  }
  return shortest;
}

}  // namespace holdfast
