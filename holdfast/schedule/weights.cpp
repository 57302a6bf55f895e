// Computes what saves and failures cost at the nodes of a mesh, for each objective.
#include <algorithm>
#include <array>
#include <cmath>

#include "holdfast/base/reproducible_math.h"
#include "holdfast/schedule/weights_internal.h"

namespace holdfast {
namespace {

using Nodes = std::vector<double>;

// The values of a function at the nodes of an even mesh.
Nodes at_nodes(const Problem& problem, int64_t count, auto&& function) {
  Nodes out(static_cast<size_t>(count) + 1);
  const double h = problem.length / static_cast<double>(count);
  for (size_t i = 0; i < out.size(); ++i) out[i] = function(static_cast<double>(i) * h);
  return out;
}

Nodes failure_rates(const Problem& problem, int64_t count) {
  if (problem.steady()) {
    return Nodes(static_cast<size_t>(count) + 1, problem.failure_rate(0));
  }
  return at_nodes(problem, count, [&](double x) { return problem.failure_rate(x); });
}

Nodes time_left(const Problem& problem, int64_t count) {
  return at_nodes(problem, count, [&](double x) { return problem.length - x; });
}

// scale e^(-rate x) at all nodes. Computes the exponential at every 64th node, and
// multiplies in between.
Nodes decay(const Problem& problem, int64_t count, double scale, double rate) {
  constexpr size_t kBlock = 64;
  const double h = problem.length / static_cast<double>(count);
  std::array<double, kBlock> within{};
  for (size_t i = 0; i < kBlock; ++i) {
    within[i] = reproducible::exp(-rate * h * static_cast<double>(i));
  }
  Nodes out(static_cast<size_t>(count) + 1);
  for (size_t i = 0; i < out.size(); i += kBlock) {
    const double first = scale * reproducible::exp(-rate * h * static_cast<double>(i));
    const size_t end = std::min(kBlock, out.size() - i);
    for (size_t k = 0; k < end; ++k) out[i + k] = first * within[k];
  }
  return out;
}

// The only piece of a curve. Null if the curve has several pieces, or if the piece is a
// line.
const Curve::Piece* single_piece(const Curve& curve) {
  const Curve::Piece& piece = curve.pieces().front();
  const bool one = curve.pieces().size() == 1 && piece.start == 0;
  return one && piece.shape != Curve::Shape::kLine ? &piece : nullptr;
}

// What is left of the curve at each node, and how fast it falls there.
struct OnMesh {
  // `left` is Curve::drop() to the end, `fall` is Curve::fall().
  Nodes left, fall;
};

// For a single piece both values follow from one function for each node. Near the end
// the difference has few digits, but there it enters only small costs.
OnMesh single_on_mesh(const Problem& problem, int64_t count,
                      const Curve::Piece& piece) {
  const double scale = piece.first - piece.floor;
  if (piece.shape == Curve::Shape::kExponential) {
    Nodes left = decay(problem, count, scale, piece.rate), fall = left;
    const double end = left.back();
    for (double& each : left) each -= end;
    for (double& each : fall) each *= piece.rate;
    return {std::move(left), std::move(fall)};
  }
  Nodes left = at_nodes(problem, count, [&](double x) {
    return scale * reproducible::pow(1 + piece.rate * x, -piece.exponent);
  });
  const double end = left.back();
  Nodes fall = at_nodes(problem, count, [&](double x) {
    return piece.rate * piece.exponent / (1 + piece.rate * x);
  });
  for (size_t i = 0; i < left.size(); ++i) fall[i] *= left[i], left[i] -= end;
  return {std::move(left), std::move(fall)};
}

OnMesh on_mesh(const Problem& problem, int64_t count) {
  const Curve& curve = problem.curve;
  if (const Curve::Piece* piece = single_piece(curve)) {
    return single_on_mesh(problem, count, *piece);
  }
  const double end = problem.length;
  return {at_nodes(problem, count,
                   [&](double x) { return curve.drop(std::min(x, end), end); }),
          at_nodes(problem, count, [&](double x) { return curve.fall(x); })};
}

// The progress that a stall at each node costs.
Nodes stall_losses(const Problem& problem, int64_t count) {
  const Curve::Piece* piece = single_piece(problem.curve);
  if (piece != nullptr && piece->shape == Curve::Shape::kExponential) {
    return decay(problem, count, problem.curve.drop(0, problem.stall), piece->rate);
  }
  return at_nodes(problem, count,
                  [&](double x) { return problem.curve.drop(x, x + problem.stall); });
}

double mean_fall(const Problem& problem) {
  return problem.curve.drop(0, problem.length) / problem.length;
}

// The share of jobs that are not stopped before x. If `to` is true, stops at x itself
// count too.
double alive(const Stops& stops, double x, bool to = false) {
  double share = reproducible::exp(-stops.rate * x);
  for (const Stops::At& stop : stops.at) {
    if (stop.time < x || (to && stop.time == x)) share *= 1 - stop.share;
  }
  return share;
}

Nodes shares_alive(const Problem& problem, int64_t count) {
  if (problem.stops.at.empty()) return decay(problem, count, 1, problem.stops.rate);
  return at_nodes(problem, count, [&](double x) { return alive(problem.stops, x); });
}

// How much progress one second of delay at x takes from what is left when the job is
// stopped: the integral of v dF from x on, where v is the fall of the loss and F the
// distribution of stops. A job that is never stopped loses what its last second would
// bring.
Nodes delay_weight(const Problem& problem, int64_t count, const Nodes& share,
                   const Nodes& fall) {
  const Stops& stops = problem.stops;
  const double h = problem.length / static_cast<double>(count);
  Nodes out(share.size());
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

// The price of a save is C (W + w S), where C is the stall, W is delay_weight(), w is
// the price of a second and S is the share of jobs that are alive, which pay that
// price. Failures cost (W + w S) for each second of age, hard stops cost v for each
// second of age.
Weights weigh_explore(const Problem& problem, int64_t count) {
  const Nodes share = shares_alive(problem, count);
  OnMesh curve = on_mesh(problem, count);
  Nodes weight = delay_weight(problem, count, share, curve.fall);
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
  out.dangers.push_back({false, std::move(curve.left), stop, hard_jumps(problem)});
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
                  : stall_losses(problem, n);
  out.dangers.push_back(
      {false, on_mesh(problem, count).left, failure_rates(problem, count), {}});
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
    if (interval > 0 && interval < shortest) shortest = interval;  // false for 0 / 0
  }
  return shortest;
}

}  // namespace holdfast
