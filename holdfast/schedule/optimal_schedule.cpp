// Moves the saves of the optimum from their positions to the best times near them.
#include <algorithm>
#include <cmath>
#include <optional>

#include "holdfast/schedule/optimum.h"

namespace holdfast {
namespace {

// Finds how far each save should move, by Newton's method on the cost of all saves. The
// cost is a sum over neighbours, so its second derivatives have three diagonals.
// Derivatives are differences over half a cell. Returns nothing if the cost has no
// minimum near.
class NewtonStep {
 public:
  NewtonStep(const Grid& grid, const std::vector<double>& times)
      : grid_(grid), times_(times), e_(grid.cell() / 2) {}

  std::optional<std::vector<double>> moves() const {
    std::vector<double> upper(times_.size()), out(times_.size());
    for (size_t k = 0; k < times_.size(); ++k) {
      const double low = around(k, -e_), here = around(k, 0), high = around(k, e_);
      const double before = k == 0 ? 0 : cross(k - 1);
      const double bend =
          (low - 2 * here + high) / (e_ * e_) - (k == 0 ? 0 : before * upper[k - 1]);
      if (!(bend > 0)) return std::nullopt;
      upper[k] = k + 1 < times_.size() ? cross(k) / bend : 0;
      out[k] = ((low - high) / (2 * e_) - (k == 0 ? 0 : before * out[k - 1])) / bend;
    }
    for (size_t k = times_.size() - 1; k-- > 0;) out[k] -= upper[k] * out[k + 1];
    return out;
  }

 private:
  double at(size_t save) const {  // 1 is the first save
    return save == 0               ? 0
           : save <= times_.size() ? times_[save - 1]
                                   : grid_.problem().length;
  }
  // The cost of the intervals before and after save k, if it moves by d.
  double around(size_t k, double d) const {
    return grid_.cost_between(at(k), times_[k] + d) +
           grid_.cost_between(times_[k] + d, at(k + 2));
  }
  // The derivative of the cost by the saves k and k + 1.
  double cross(size_t k) const {
    const double x = times_[k], y = times_[k + 1];
    return (grid_.cost_between(x + e_, y + e_) - grid_.cost_between(x + e_, y - e_) -
            grid_.cost_between(x - e_, y + e_) + grid_.cost_between(x - e_, y - e_)) /
           (4 * e_ * e_);
  }

  const Grid& grid_;
  const std::vector<double>& times_;
  const double e_;
};

// Whether each save comes after the previous one is durable.
bool fits(const Grid& grid, const std::vector<double>& times) {
  double earliest = 0;
  for (const double x : times) {
    if (!(x > earliest)) return false;
    earliest = x + grid.problem().persist * (1 - 1e-9);
  }
  return times.empty() || times.back() < grid.problem().length;
}

// Moves the saves by the largest of a few shares of the step that reduces the cost.
// Returns false if none does.
bool move_saves(const Grid& grid, const std::vector<double>& moves,
                Schedule& schedule) {
  const double cost = grid.cost(schedule);
  for (const double share : {1.0, 0.5, 0.25, 0.1}) {
    Schedule moved = schedule;
    for (size_t k = 0; k < moves.size(); ++k) moved.times[k] += share * moves[k];
    if (!fits(grid, moved.times) || !(grid.cost(moved) < cost)) continue;
    schedule = std::move(moved);
    return true;
  }
  return false;
}

// Moves the saves as long as that reduces the cost.
void refine(const Grid& grid, Schedule& schedule) {
  constexpr int kRounds = 8;
  for (int round = 0; round < kRounds && !schedule.times.empty(); ++round) {
    const auto moves = NewtonStep(grid, schedule.times).moves();
    if (!moves || !move_saves(grid, *moves, schedule)) return;
    const auto [least, most] = std::ranges::minmax(*moves);
    if (std::max(-least, most) < grid.cell() / 100) return;
  }
}

// A schedule of the same shape with another number of saves.
Schedule with_other_count(const std::vector<double>& times, double length,
                          size_t count) {
  const auto at = [&](size_t k) {
    return k == 0 ? 0 : k <= times.size() ? times[k - 1] : length;
  };
  Schedule out;
  for (size_t k = 1; k <= count; ++k) {
    const double index =
        static_cast<double>(k * (times.size() + 1)) / static_cast<double>(count + 1);
    const auto whole = static_cast<size_t>(index);
    const double part = index - static_cast<double>(whole);
    out.times.push_back(at(whole) + part * (at(whole + 1) - at(whole)));
  }
  return out;
}

}  // namespace

// The best number of saves at any times can differ by one from that at positions.
Schedule optimal_schedule(const Grid& grid) {
  Schedule out = grid.schedule(optimum(grid));
  refine(grid, out);
  const Schedule found = out;
  const size_t count = found.times.size();
  if (grid.problem().budget || count == 0) return out;
  for (const size_t other : {count + 1, count - 1}) {
    Schedule tried = with_other_count(found.times, grid.problem().length, other);
    refine(grid, tried);
    const bool better = fits(grid, tried.times) && grid.cost(tried) < grid.cost(out);
    if (better) out = std::move(tried);
  }
  return out;
}

}  // namespace holdfast
