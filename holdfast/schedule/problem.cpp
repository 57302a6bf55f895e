#include "holdfast/schedule/problem.h"

#include <array>
#include <cmath>
#include <utility>

namespace holdfast {
namespace {

constexpr std::array<std::pair<std::string_view, Objective>, 4> kObjectives{
    {{"delay", Objective::kDelay},
     {"progress", Objective::kProgress},
     {"explore", Objective::kExplore},
     {"priced", Objective::kPriced}}};

// In seconds. A longer time is a mistake.
constexpr double kMostSeconds = 1e12;
constexpr int64_t kMostSecondsPositions = 1'000'000;

Result<void> check_range(std::string_view name, double value) {
  if (value >= 0 && value <= kMostSeconds) return {};
  return invalid("{}: {} s; expected 0 to 10^12", name, value);
}

Result<void> check_workers(const Workers& workers) {
  double before = -1;
  for (const Workers::Phase& phase : workers.phases) {
    if (!(phase.start > before) || !(phase.start <= kMostSeconds)) {
      return invalid("workers: a phase at {} s after {} s; expected rising times",
                     phase.start, before);
    }
    if (!(phase.count > 0) || !(phase.count <= 1e9)) {
      return invalid("workers: {}; expected 1 to 10^9", phase.count);
    }
    before = phase.start;
  }
  return {};
}

Result<void> check_stops(const Stops& stops) {
  if (!(stops.rate >= 0) || !std::isfinite(stops.rate)) {
    return invalid("stops: rate {} a second; expected 0 or more", stops.rate);
  }
  if (!(stops.hard >= 0 && stops.hard <= 1)) {
    return invalid("stops: {} of them without notice; expected a share of 0 to 1",
                   stops.hard);
  }
  double before = 0;
  for (const Stops::At& stop : stops.at) {
    if (!(stop.time > before) || !(stop.time <= kMostSeconds)) {
      return invalid("stops: one at {} s after {} s; expected rising times", stop.time,
                     before);
    }
    if (!(stop.share >= 0 && stop.share <= 1)) {
      return invalid("stops: {} are stopped at {} s; expected a share of 0 to 1",
                     stop.share, stop.time);
    }
    before = stop.time;
  }
  return {};
}

Result<void> check_aim(const Problem& problem) {
  HOLDFAST_TRY(check_range("price", problem.price));
  if (problem.price > 0 && problem.objective != Objective::kPriced) {
    return invalid(
        "price: is given for the objective {}; expected the objective priced",
        name_of(problem.objective));
  }
  if (problem.second && !(*problem.second >= 0 && std::isfinite(*problem.second))) {
    return invalid("second: price {}; expected 0 or more", *problem.second);
  }
  if (problem.budget && *problem.budget < 0) {
    return invalid("budget: {} saves; expected 0 or more", *problem.budget);
  }
  if (problem.positions < 0 || problem.positions > kMostSecondsPositions) {
    return invalid("positions: {}; expected 0 to {}", problem.positions,
                   kMostSecondsPositions);
  }
  if (problem.objective == Objective::kDelay) return {};
  const double fall = problem.curve.drop(0, problem.length);
  if (fall > 0 && std::isfinite(fall)) return {};
  return invalid("{}: the loss falls by {}; expected a curve that falls",
                 name_of(problem.objective), fall);
}

}  // namespace

std::string_view name_of(Objective objective) {
  return kObjectives[static_cast<size_t>(objective)].first;
}

Result<Objective> parse_objective(std::string_view text) {
  for (const auto& [name, objective] : kObjectives) {
    if (text == name) return objective;
  }
  return invalid("objective: \"{}\"; expected delay, progress, explore or priced",
                 text);
}

bool Problem::steady() const {
  const auto& phases = workers.phases;
  return phases.empty() || (phases.size() == 1 && phases.front().start <= 0);
}

Result<void> check(const Problem& problem) {
  if (!(problem.length > 0 && problem.length <= kMostSeconds)) {
    return invalid("length: {} s; expected more than 0 and at most 10^12",
                   problem.length);
  }
  HOLDFAST_TRY(check_range("stall", problem.stall));
  HOLDFAST_TRY(check_range("persist", problem.persist));
  HOLDFAST_TRY(check_range("restart", problem.restart));
  HOLDFAST_TRY(check_range("step", problem.step));
  if (!(problem.mtbf > 0)) {
    return invalid("mtbf: {} s; expected more than 0, or never", problem.mtbf);
  }
  HOLDFAST_TRY(check_workers(problem.workers));
  HOLDFAST_TRY(check_stops(problem.stops));
  return check_aim(problem);
}

}  // namespace holdfast
