#include "holdfast/schedule/grid.h"

#include <algorithm>
#include <cmath>

#include "holdfast/schedule/reproducible_math.h"
#include "holdfast/schedule/weights_internal.h"

namespace holdfast {
namespace {

// With so many cells the best schedule on the grid costs 0.04 % more than the best of
// all.
constexpr double kCellsPerInterval = 20;
constexpr double kFewestCells = 4;
constexpr double kFewest = 256, kMost = 200000;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Chooses the number of positions: enough for the shortest interval that the problem
// needs.
Result<int64_t> choose_positions(const Problem& problem) {
  const double shortest = std::max(shortest_interval(problem), problem.persist);
  const double intervals = problem.length / shortest;
  if (intervals * kFewestCells > kMost) {
    return invalid("length: {} s have {:.0f} intervals of {:.3g} s, limit {:.0f}",
                   problem.length, intervals, shortest, kMost / kFewestCells);
  }
  const double budget = problem.budget ? static_cast<double>(*problem.budget) : 0;
  const double wanted = kCellsPerInterval * std::max(intervals, budget);
  return static_cast<int64_t>(std::clamp(wanted, kFewest, kMost));
}

// The integral over [t, 1] of the parabola through (0, f0), (1/2, fm), (1, f1).
double parabola_rest(double f0, double fm, double f1, double t) {
  const double slope = -3 * f0 + 4 * fm - f1, bend = 2 * f0 - 4 * fm + 2 * f1;
  return f0 * (1 - t) + slope * (1 - t * t) / 2 + bend * (1 - t * t * t) / 3;
}

// Integrals of f from any x to the end. f is given at the 2n + 1 ends and middles of
// the n cells.
class Rest {
 public:
  Rest(const std::vector<double>& half, double cell)
      : half_(half), cell_(cell), rest_(half.size() / 2 + 1) {
    for (size_t c = rest_.size() - 1; c-- > 0;) rest_[c] = rest_[c + 1] + part(c, 0);
  }

  // The integral from a point on that lies `skip` cells and the part `t` < 1 of a cell
  // after position j.
  double from(size_t j, size_t skip, double t) const {
    const size_t c = j + skip;
    if (c + 1 >= rest_.size()) return 0;
    return t == 0 ? rest_[c] : rest_[c + 1] + part(c, t);
  }

 private:
  double part(size_t c, double t) const {
    const double* f = &half_[2 * c];
    if (t == 0) return cell_ / 6 * (f[0] + 4 * f[1] + f[2]);
    return cell_ * parabola_rest(f[0], f[1], f[2], t);
  }

  const std::vector<double>& half_;
  double cell_;
  std::vector<double> rest_;
};

// Adds stops at known times: each position from which a save is durable before the stop
// gets its mass.
void add_jumps(const Danger& danger, const Problem& problem, double cell,
               Grid::Component& out) {
  const double late = problem.stall + problem.persist;
  for (const Danger::Jump& jump : danger.jumps) {
    for (size_t j = 0; j + 1 < out.danger.size(); ++j) {
      const double durable = j == 0 ? 0 : static_cast<double>(j) * cell + late;
      if (durable > jump.time * (1 + 1e-12)) break;
      out.danger[j] += jump.mass;
      out.sum[j] += jump.mass * jump.left;
    }
  }
}

Grid::Component component_of(Danger danger, const Problem& problem, double cell) {
  Grid::Component out;
  const size_t n = danger.left.size() / 2;
  std::vector<double> weighted = danger.left;
  for (size_t i = 0; i < weighted.size(); ++i) weighted[i] *= danger.rate[i];
  const Rest rates(danger.rate, cell), sums(weighted, cell);
  const double late = problem.persist / cell, whole = std::floor(late);
  const auto skip = static_cast<size_t>(whole);
  for (std::vector<double>* each : {&out.left, &out.danger, &out.sum}) {
    each->resize(n + 1);
  }
  for (size_t j = 0; j <= n; ++j) {
    const bool now = j == 0 || j == n;
    out.left[j] = danger.left[2 * j];
    out.danger[j] = rates.from(j, now ? 0 : skip, now ? 0 : late - whole);
    out.sum[j] = sums.from(j, now ? 0 : skip, now ? 0 : late - whole);
  }
  add_jumps(danger, problem, cell, out);
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
  if (p.objective == Objective::kDelay && p.persist == 0 && p.steady() &&
      std::isfinite(p.mtbf)) {
    grid.build_exact();
    return grid;
  }
  Weights weights = weigh(p, grid.last_);
  grid.prices_ = std::move(weights.price);
  grid.prices_.back() = 0;
  for (Danger& danger : weights.dangers) {
    grid.components_.push_back(component_of(std::move(danger), p, grid.cell_));
  }
  return grid;
}

// From e^600 on the table continues as a straight line, so that it stays convex and
// sums stay finite.
void Grid::build_exact() {
  const double mtbf = 1 / problem_.failure_rate(0), scale = mtbf + problem_.restart;
  const auto entry = [&](double work, double stall) {
    const double y = (work + stall) / mtbf;
    if (y <= 600) return scale * reproducible::expm1(y) - work;
    return scale * reproducible::exp(600) * (1 + (y - 600));
  };
  for (int64_t k = 0; k <= last_; ++k) {
    exact_.push_back(entry(time(k), problem_.stall));
    exact_end_.push_back(entry(time(k), 0));
  }
}

double Grid::cost(int64_t i, int64_t j) const {
  const auto a = static_cast<size_t>(i), b = static_cast<size_t>(j);
  if (!exact_.empty()) return j == last_ ? exact_end_[b - a] : exact_[b - a];
  double sum = prices_[b];
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

std::vector<int64_t> Grid::snap(const Schedule& schedule) const {
  std::vector<int64_t> out;
  for (const double x : schedule.times) {
    const auto j = static_cast<int64_t>(std::floor(x / cell_ + 0.5));
    if (j <= 0 || j >= last_) continue;
    if (out.empty() || j - out.back() >= gap_) out.push_back(j);
  }
  return out;
}

Schedule Grid::schedule(std::span<const int64_t> saves) const {
  Schedule out;
  for (const int64_t j : saves) out.times.push_back(time(j));
  return out;
}

}  // namespace holdfast
