// The policies, and a comparison of what their schedules cost.
#include "holdfast/schedule/policies.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "holdfast/schedule/intervals.h"
#include "holdfast/schedule/optimum.h"
#include "holdfast/base/reproducible_math.h"

namespace holdfast {
namespace {

constexpr double kMinute = 60;
constexpr double kMostSaves = 5e6;

double mtbf_of(const Problem& problem) { return 1 / problem.mean_failure_rate(); }

class Optimal : public SchedulePolicy {
 public:
  std::string_view name() const override { return "optimal"; }
  std::string_view about() const override {
    return "the least expected cost of all schedules, by dynamic programming";
  }
  Schedule schedule(const Grid& grid) const override { return optimal_schedule(grid); }
};

class Even : public SchedulePolicy {
 public:
  std::string_view name() const override { return "even"; }
  std::string_view about() const override {
    return "the least expected cost of all evenly spaced schedules";
  }
  Schedule schedule(const Grid& grid) const override { return best_even(grid); }
};

// A policy with a constant interval that a formula gives.
class Constant : public SchedulePolicy {
 public:
  using Formula = double (*)(const Problem&);
  constexpr Constant(std::string_view name, std::string_view about, Formula formula)
      : name_(name), about_(about), formula_(formula) {}
  std::string_view name() const override { return name_; }
  std::string_view about() const override { return about_; }
  Schedule schedule(const Grid& grid) const override {
    const Problem& p = grid.problem();
    return every(std::max(formula_(p), p.persist), p.length);
  }

 private:
  std::string_view name_, about_;
  Formula formula_;
};

// Saves each time the loss has fallen by `step`. Ends when the loss would reach 0.
Schedule coci_schedule(const CociFit& fit, double first, double step, double length) {
  Schedule out;
  if (!(step > 0)) return out;
  const double count = std::min(std::floor(first / step), kMostSaves);
  for (int64_t i = 1; i <= static_cast<int64_t>(count); ++i) {
    const double loss = first - static_cast<double>(i) * step;
    if (loss <= 0) break;
    const double t = reproducible::log(loss / first) / fit.theta1 * kMinute;
    if (t >= length) break;
    out.times.push_back(t);
  }
  return out;
}

class Coci : public SchedulePolicy {
 public:
  explicit constexpr Coci(bool normalised) : normalised_(normalised) {}
  std::string_view name() const override {
    return normalised_ ? "coci-normalised" : "coci";
  }
  std::string_view about() const override {
    return normalised_ ? "equal steps of the loss scaled to [0, 1], by COCI's formula"
                       : "equal steps of the loss by COCI's formula, in minutes";
  }
  Schedule schedule(const Grid& grid) const override {
    const Problem& p = grid.problem();
    const CociFit fit = coci_fit(p.curve, p.length);
    const double rate = p.mean_failure_rate() * kMinute;
    if (fit.theta1 >= 0 || rate <= 0) return {};
    const double first = normalised_ ? 1 : reproducible::exp(fit.theta2);
    const double step = coci_loss_step(fit.theta1, rate, p.stall / kMinute);
    return coci_schedule(fit, first, step, p.length);
  }

 private:
  bool normalised_;
};

// COCI's rule for data-parallel jobs. Each time the number of workers changes, a round
// begins, with a step of the loss of its own. A save is due when the loss has fallen by
// the step of the present round since the last save.
class CociParallel : public SchedulePolicy {
 public:
  std::string_view name() const override { return "coci-parallel"; }
  std::string_view about() const override {
    return "equal steps of the loss by COCI's formula for several workers, in minutes";
  }
  Schedule schedule(const Grid& grid) const override {
    const Problem& p = grid.problem();
    std::vector<Workers::Phase> rounds = p.workers.phases;
    if (rounds.empty()) rounds.push_back({0, 1});
    Schedule out;
    double fallen = 0;  // since the last save, at the start of the round
    for (size_t k = 0; k < rounds.size() && rounds[k].start < p.length; ++k) {
      const double start = k == 0 ? 0 : rounds[k].start;
      const double end =
          k + 1 < rounds.size() ? std::min(rounds[k + 1].start, p.length) : p.length;
      fallen = add_round(p, rounds[k].count, start, end, fallen, out);
    }
    return out;
  }

 private:
  // Returns how much the loss has fallen at the end of the round since the last save.
  static double add_round(const Problem& p, double workers, double start, double end,
                          double fallen, Schedule& out) {
    const double rate = p.mean_failure_rate() * kMinute;
    const CociFit fit = coci_fit(p.curve.from(start), end - start);
    if (fit.theta1 >= 0 || rate <= 0) return fallen;
    const double first = reproducible::exp(fit.theta2);
    const double step = coci_loss_step(fit.theta1, rate, p.stall / kMinute, workers);
    const double last = first * reproducible::exp(fit.theta1 * (end - start) / kMinute);
    double saved_at = first + fallen;  // the loss at the last save
    while (step > 0 && saved_at - step > last &&
           static_cast<double>(out.times.size()) < kMostSaves) {
      saved_at = std::min(saved_at - step, first);
      const double t = reproducible::log(saved_at / first) / fit.theta1 * kMinute;
      if (start + t > 0) out.times.push_back(start + t);
    }
    return saved_at - last;
  }
};

// `count` saves with equal gaps.
Schedule equal_gaps(const Grid& grid, int64_t count) {
  Schedule out;
  for (int64_t k = 1; k <= count; ++k) {
    out.times.push_back(grid.problem().length * static_cast<double>(k) /
                        static_cast<double>(count + 1));
  }
  return out;
}

// Computes the times at which the loss has fallen in equal steps. Between two grid
// positions the loss is taken as a straight line.
class EqualDrops {
 public:
  explicit EqualDrops(const Grid& grid) {
    for (int64_t j = 0; j <= grid.last(); ++j) {
      fallen_.push_back(grid.problem().curve.drop(0, grid.time(j)));
    }
  }

  Schedule operator()(const Grid& grid, int64_t count) const {
    Schedule out;
    size_t j = 0;
    for (int64_t k = 1; k <= count; ++k) {
      const double part = static_cast<double>(k) / static_cast<double>(count + 1);
      const double fallen = fallen_.back() * part;
      while (j + 2 < fallen_.size() && fallen_[j + 1] < fallen) ++j;
      const double slope = fallen_[j + 1] - fallen_[j];
      const double into = slope > 0 ? std::min(1.0, (fallen - fallen_[j]) / slope) : 0;
      out.times.push_back((static_cast<double>(j) + into) * grid.cell());
    }
    return out;
  }

 private:
  std::vector<double> fallen_;
};

// Finds the best number of saves for a family of schedules. First tries numbers that
// grow by a tenth each, then the numbers around the best one.
template <typename Family>
Schedule best_count(const Grid& grid, const Family& family, bool at_positions = false) {
  const auto cost_of = [&](const Schedule& schedule) {
    return at_positions ? grid.cost_at_positions(schedule) : grid.cost(schedule);
  };
  if (const auto budget = grid.problem().budget) return family(grid, *budget);
  const int64_t most = grid.last() / grid.gap();
  Schedule best = family(grid, 0);
  double cost = cost_of(best);
  int64_t at = 0;
  const auto attempt = [&](int64_t count) {
    Schedule schedule = family(grid, count);
    const double price = cost_of(schedule);
    if (price < cost) best = std::move(schedule), cost = price, at = count;
    return price;
  };
  for (int64_t m = 1; m < most; m += 1 + m / 10) {
    if (attempt(m) > 3 * cost && m > 40) break;
  }
  const int64_t low = std::max<int64_t>(1, at - at / 8), high = at + at / 8 + 1;
  const int64_t stride = 1 + (high - low) / 128;
  for (int64_t m = low; m <= high; m += stride) attempt(m);
  return best;
}

class EqualProgress : public SchedulePolicy {
 public:
  std::string_view name() const override { return "equal-progress"; }
  std::string_view about() const override {
    return "equal steps of the loss, as many as cost least";
  }
  Schedule schedule(const Grid& grid) const override {
    const Problem& p = grid.problem();
    if (!(p.curve.drop(0, p.length) > 0)) return best_even(grid);
    return best_count(grid, EqualDrops(grid));
  }
};

double formula_young(const Problem& p) { return young(p.stall, mtbf_of(p)); }
double formula_daly_first(const Problem& p) {
  return daly_first(p.stall, mtbf_of(p), p.restart);
}
double formula_daly(const Problem& p) { return daly(p.stall, mtbf_of(p)); }
double formula_daly_exact(const Problem& p) { return daly_exact(p.stall, mtbf_of(p)); }
double formula_checkfreq(const Problem& p) {
  return checkfreq(p.stall, p.persist, p.step);
}

const Optimal kOptimal;
const Even kEven;
const Constant kYoung("young", "a constant interval of sqrt(2 stall MTBF)",
                      formula_young);
const Constant kDalyFirst("daly-first", "Daly's first-order interval, with the restart",
                          formula_daly_first);
const Constant kDaly("daly", "Daly's higher-order interval", formula_daly);
const Constant kDalyExact("daly-exact", "the interval of least expected time per work",
                          formula_daly_exact);
const Constant kCheckfreq("checkfreq",
                          "what the persist time and stalls of 3.5 % allow",
                          formula_checkfreq);
const Coci kCoci(false), kCociNormalised(true);
const CociParallel kCociParallel;
const EqualProgress kEqualProgress;

const std::array<const SchedulePolicy*, 11> kPolicies{
    &kOptimal,   &kEven, &kYoung,          &kDalyFirst,    &kDaly,         &kDalyExact,
    &kCheckfreq, &kCoci, &kCociNormalised, &kCociParallel, &kEqualProgress};

}  // namespace

std::span<const SchedulePolicy* const> policies() { return kPolicies; }

std::string policy_names() {
  std::string out;
  for (const SchedulePolicy* policy : kPolicies) {
    out += (out.empty() ? "" : ", ") + std::string(policy->name());
  }
  return out;
}

Result<const SchedulePolicy*> find_policy(std::string_view name) {
  for (const SchedulePolicy* policy : kPolicies) {
    if (policy->name() == name) return policy;
  }
  return invalid("policy: \"{}\"; expected {}", name, policy_names());
}

Schedule every(double interval, double length) {
  Schedule out;
  if (!(interval > 0) || !std::isfinite(interval)) return out;
  const double count = std::ceil(length / interval * (1 - 1e-12)) - 1;
  const auto saves = static_cast<int64_t>(std::clamp(count, 0.0, kMostSaves));
  for (int64_t k = 1; k <= saves; ++k) {
    out.times.push_back(static_cast<double>(k) * interval);
  }
  return out;
}

Schedule best_even(const Grid& grid, bool at_positions) {
  return best_count(grid, equal_gaps, at_positions);
}

CociFit coci_fit(const Curve& curve, double length) {
  constexpr int kPoints = 300;
  const Curve::Piece& piece = curve.pieces().front();
  if (curve.pieces().size() == 1 && piece.shape == Curve::Shape::kExponential &&
      piece.floor == 0) {
    return {-piece.rate * kMinute, reproducible::log(piece.first)};
  }
  double sx = 0, sy = 0, sxx = 0, sxy = 0;
  for (int i = 1; i < kPoints; ++i) {
    const double t = length / kMinute * i / kPoints;
    const double loss = curve.loss(t * kMinute);
    if (!(loss > 0)) return {};
    const double y = reproducible::log(loss);
    sx += t, sy += y, sxx += t * t, sxy += t * y;
  }
  const double n = kPoints - 1, spread = n * sxx - sx * sx;
  const double slope = spread > 0 ? (n * sxy - sx * sy) / spread : 0;
  if (!(slope < 0)) return {};
  return {slope, (sy - slope * sx) / n};
}

const Comparison::Row& Comparison::row(std::string_view name) const {
  const auto found = std::ranges::find_if(
      rows, [&](const Row& each) { return each.policy->name() == name; });
  HOLDFAST_CHECK(found != rows.end(), "there is no policy {}", name);
  return *found;
}

Comparison compare(const Grid& grid) {
  Comparison out;
  for (const SchedulePolicy* policy : kPolicies) {
    Schedule schedule = policy->schedule(grid);
    const double cost = grid.cost(schedule);
    out.rows.push_back({policy, std::move(schedule), cost});
  }
  return out;
}

}  // namespace holdfast
