#include "holdfast/schedule/grid.h"

#include <algorithm>
#include <cmath>

namespace holdfast {
namespace {

// With so many cells the best schedule on the grid costs at most 0.005 % more than the
// best of all.
constexpr double kCellsPerInterval = 60;
constexpr double kFewestCells = 4;
constexpr double kFewest = 1024, kMost = 200000;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Chooses the number of positions: enough for the shortest interval that the problem
// needs.
Result<int64_t> choose_positions(const Problem& problem) {
  const double shortest = std::max(shortest_interval(problem), problem.persist);
  const double intervals = problem.length / shortest;
  if (intervals * kFewestCells > kMost) {
    return invalid(
        "length: {} s have {:.0f} intervals of {:.6g} s; expected at most {:.0f}, as in a "
        "shorter length, for which the interval is the same",
        problem.length, intervals, shortest, kMost / kFewestCells);
  }
  const double budget = problem.budget ? static_cast<double>(*problem.budget) : 0;
  const double wanted = kCellsPerInterval * std::max(intervals, budget);
  return static_cast<int64_t>(std::clamp(wanted, kFewest, kMost));
}

// Whether a save that begins at x is durable before a stop at this time. The state at
// the start is durable.
bool durable_by(const Problem& problem, double x, double stop) {
  const double durable = x > 0 ? x + problem.stall + problem.persist : 0;
  return durable <= stop * (1 + 1e-12);
}

// Adds stops at known times: each position from which a save is durable before the stop
// gets its mass.
void add_jumps(const std::vector<Danger::Jump>& jumps, const Problem& problem,
               double cell, Grid::Component& out) {
  for (const Danger::Jump& jump : jumps) {
    for (size_t j = 0; j + 1 < out.danger.size(); ++j) {
      if (!durable_by(problem, static_cast<double>(j) * cell, jump.time)) break;
      out.danger[j] += jump.mass;
      out.sum[j] += jump.mass * jump.left;
    }
  }
}

// The dangers at the positions. `left` is at all nodes of the mesh.
Grid::Component component_of(const std::vector<double>& left,
                             const MeshIntegral& danger, const MeshIntegral& sum,
                             double late) {
  Grid::Component out;
  const size_t n = left.size() / 2;
  const MeshPoint skip = MeshPoint::at(late);
  for (size_t j = 0; j <= n; ++j) {
    const bool now = j == 0 || j == n;
    const MeshPoint durable =
        now ? MeshPoint{j, 0} : MeshPoint{j + skip.cell, skip.part};
    out.left.push_back(left[2 * j]);
    out.danger.push_back(danger.from(durable));
    out.sum.push_back(sum.from(durable));
  }
  return out;
}

}  // namespace

Result<Grid> Grid::build(Problem problem) {
  HOLDFAST_TRY(check(problem));
  Grid grid;
  grid.last_ = problem.positions > 0 ? problem.positions
                                     : HOLDFAST_TRY(choose_positions(problem));
  grid.cell_ = problem.length / static_cast<double>(grid.last_);
  grid.gap_ = std::max<int64_t>(
      1, static_cast<int64_t>(std::ceil(problem.persist / grid.cell_ - 1e-9)));
  if (problem.budget && *problem.budget * grid.gap_ >= grid.last_) {
    return invalid("budget: {} saves of {} s each do not fit into {} s",
                   *problem.budget, static_cast<double>(grid.gap_) * grid.cell_,
                   problem.length);
  }
  grid.problem_ = std::move(problem);
  const Problem& p = grid.problem_;
  if (p.objective == Objective::kDelay && ExactDelay::holds_for(p)) {
    grid.build_exact();
    return grid;
  }
  Weights weights = weigh(p, grid.last_);
  grid.prices_ = std::move(weights.price);
  if (ExactProgress::holds_for(p)) {
    grid.progress_.emplace(p, weights.dangers.front().left, grid.prices_, grid.cell_);
    return grid;
  }
  for (Danger& danger : weights.dangers) grid.add_danger(std::move(danger));
  return grid;
}

void Grid::add_danger(Danger danger) {
  std::vector<double> weighted = danger.left;
  for (size_t i = 0; i < weighted.size(); ++i) weighted[i] *= danger.rate[i];
  AnyTime any{std::move(danger.left), MeshIntegral(std::move(danger.rate), cell_),
              MeshIntegral(std::move(weighted), cell_), std::move(danger.jumps)};
  components_.push_back(
      component_of(any.left, any.danger, any.sum, problem_.persist / cell_));
  add_jumps(any.jumps, problem_, cell_, components_.back());
  any_time_.push_back(std::move(any));
}

void Grid::build_exact() {
  exact_.emplace(problem_);
  const double extra = problem_.stall + problem_.persist;
  for (int64_t k = 0; k <= last_; ++k) {
    growth_.push_back(exact_->growth(time(k) + extra));
    growth_to_end_.push_back(exact_->growth(time(k)));
  }
}

double Grid::cost(int64_t i, int64_t j) const {
  const auto a = static_cast<size_t>(i), b = static_cast<size_t>(j);
  if (exact_) {
    const bool late = exact_->ends_late(time(j == last_ ? i : j));
    if (late) return exact_->interval(time(i), j == last_ ? problem_.length : time(j));
    const double grown = (j == last_ ? growth_to_end_ : growth_)[b - a];
    return exact_->of_growth(time(i), time(j - i), grown);
  }
  if (progress_) return progress_->cost(i, j);
  double sum = j == last_ ? 0 : prices_[b];
  for (const Component& c : components_) {
    sum += c.left[a] * (c.danger[a] - c.danger[b]) - (c.sum[a] - c.sum[b]);
  }
  return sum;
}

double Grid::cost(std::span<const int64_t> saves) const {
  double sum = 0;
  int64_t before = 0;
  for (const int64_t j : saves) {
    if (before > 0 && j - before < gap_) return kInfinity;
    sum += cost(before, j);
    before = j;
  }
  return sum + cost(before, last_);
}

// The parabola through the prices at the three nearest positions.
double Grid::price_at(double x) const {
  const double at = x / cell_;
  if (last_ < 2) return prices_[static_cast<size_t>(std::lround(at))];
  const int64_t middle = std::clamp<int64_t>(std::llround(at), 1, last_ - 1);
  const double* f = &prices_[static_cast<size_t>(middle)];
  const double t = at - static_cast<double>(middle);
  return f[0] + t * ((f[1] - f[-1]) / 2 + t * (f[1] - 2 * f[0] + f[-1]) / 2);
}

Grid::End Grid::end_at(double x) const {
  End out{.time = x};
  if (exact()) return out;
  const bool ends = x >= problem_.length;
  if (x > 0 && !ends) out.price = price_at(x);
  const double durable = x > 0 ? x + problem_.persist : 0;
  for (size_t c = 0; c < any_time_.size() && !ends; ++c) {
    const AnyTime& any = any_time_[c];
    const MeshPoint at = MeshPoint::at(durable / cell_);
    out.left[c] = mesh_value(any.left, MeshPoint::at(x / cell_));
    out.danger[c] = any.danger.from(at);
    out.sum[c] = any.sum.from(at);
    for (const Danger::Jump& jump : any.jumps) {
      if (!durable_by(problem_, x, jump.time)) continue;
      out.danger[c] += jump.mass;
      out.sum[c] += jump.mass * jump.left;
    }
  }
  return out;
}

double Grid::cost_between(const End& from, const End& to) const {
  if (exact_) return exact_->interval(from.time, to.time);
  if (progress_) return progress_->cost_between(from.time, to.time);
  double sum = to.price;
  for (size_t c = 0; c < any_time_.size(); ++c) {
    sum += from.left[c] * (from.danger[c] - to.danger[c]) - (from.sum[c] - to.sum[c]);
  }
  return sum;
}

double Grid::cost_between(double x, double y) const {
  return cost_between(end_at(x), end_at(y));
}

double Grid::cost(const Schedule& schedule) const {
  const double length = problem_.length, gap = problem_.persist * (1 - 1e-9);
  double sum = 0;
  End before = end_at(0);
  for (const double x : schedule.times) {
    const bool in_flight = before.time > 0 && x - before.time < gap;
    if (!(x > 0) || x >= length || in_flight) continue;
    const End here = end_at(x);
    sum += cost_between(before, here);
    before = here;
  }
  return sum + cost_between(before, end_at(length));
}

double Grid::cost_at_positions(const Schedule& schedule) const {
  double sum = 0;
  int64_t before = 0;
  for (const double x : schedule.times) {
    const auto j = static_cast<int64_t>(std::floor(x / cell_ + 0.5));
    if (j <= 0 || j >= last_ || (before > 0 && j - before < gap_)) continue;
    if (j == before) continue;
    sum += cost(before, j);
    before = j;
  }
  return sum + cost(before, last_);
}

Schedule Grid::schedule(std::span<const int64_t> saves) const {
  Schedule out;
  for (const int64_t j : saves) out.times.push_back(time(j));
  return out;
}

}  // namespace holdfast
