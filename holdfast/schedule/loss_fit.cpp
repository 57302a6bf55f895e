#include "holdfast/schedule/loss_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "holdfast/base/reproducible_math.h"

namespace holdfast {
namespace {

constexpr size_t kMostBins = 64, kFewestBins = 8, kJudged = 3;
constexpr int64_t kFirstLosses = 5;
constexpr double kForget = 0.98;  // weight of a bin divided by that of the next one
// The fall must be this many standard errors. With many shapes to choose from, pure
// noise can give 3.
constexpr double kLeastDeviations = 5;

// A shape s(x). The curve is floor + scale s(x - x0).
struct Shape {
  bool power = false;
  double rate = 0, exponent = 1;
  double at(double x) const {
    if (!power) return reproducible::exp(-rate * x);
    return reproducible::pow(1 + rate * x, -exponent);
  }
};

// The weighted sums for a straight line through the points (s, y).
struct Line {
  double w = 0, s = 0, y = 0, ss = 0, sy = 0, yy = 0;
  void add(double weight, double shape, double value) {
    w += weight, s += weight * shape, y += weight * value;
    ss += weight * shape * shape, sy += weight * shape * value;
    yy += weight * value * value;
  }
};

}  // namespace

struct LossFit::Candidate {
  Shape shape{};
  double x0 = 0, floor = 0, scale = 0, error = INFINITY;
  // The standard error of the scale.
  double deviation = 0;

  double at(double x) const { return floor + scale * shape.at(x - x0); }
};

namespace {

// Finds the best floor and scale of a shape by linear least squares. Computes relative
// to a value near the losses, so that a small fall at a high level keeps its digits. If
// all losses are positive, the floor is not negative.
template <typename Bins, typename Candidate>
void solve(const Bins& bins, Candidate& c) {
  const double origin = bins.back().loss;
  double least = INFINITY;
  Line line;
  double weight = 1;
  for (size_t i = bins.size(); i-- > 0; weight *= kForget) {
    line.add(weight * bins[i].count, c.shape.at(bins[i].x - c.x0),
             bins[i].loss - origin);
    least = std::min(least, bins[i].loss);
  }
  const double det = line.w * line.ss - line.s * line.s;
  c.error = INFINITY;
  if (!(det > 1e-12 * line.w * line.ss)) return;
  c.scale = (line.w * line.sy - line.s * line.y) / det;
  double floor = (line.y - c.scale * line.s) / line.w;
  if (least > 0 && floor + origin < 0) {
    floor = -origin;
    c.scale = (line.sy - floor * line.s) / line.ss;
  }
  c.error = line.yy - 2 * (floor * line.y + c.scale * line.sy) +
            floor * floor * line.w + 2 * floor * c.scale * line.s +
            c.scale * c.scale * line.ss;
  c.error = std::max(c.error, 1e-18 * line.yy);
  c.floor = floor + origin;
  const double freedom = static_cast<double>(bins.size()) - 3;
  c.deviation = std::sqrt(c.error / freedom * line.w / det);
  if (!(c.scale > 0)) c.error = INFINITY;
}

// Fits a shape, and keeps it if it is better than the best so far.
template <typename Bins, typename Candidate>
void attempt(const Bins& bins, Candidate& best, Shape shape) {
  Candidate c = best;
  c.shape = shape;
  solve(bins, c);
  if (c.error < best.error) best = c;
}

// Tries rates from 0.2 / span on, each 1.5 times the last, where `span` is the time
// seen. Then refines the best rate with steps up and down that shrink to about a
// hundredth.
template <typename Bins, typename Candidate>
Candidate fit_exponential(const Bins& bins, Candidate best, double span) {
  double rate = 0.2 / span;
  for (int i = 0; i < 18; ++i, rate *= 1.5) attempt(bins, best, {false, rate, 1});
  double step = 1.2;
  for (int i = 0; i < 6; ++i, step = std::sqrt(step)) {
    const double found = best.shape.rate;
    attempt(bins, best, {false, found * step, 1});
    attempt(bins, best, {false, found / step, 1});
  }
  return best;
}

template <typename Bins, typename Candidate>
Candidate fit_power(const Bins& bins, Candidate best, double span) {
  double rate = 1 / span;
  for (int i = 0; i < 6; ++i, rate *= 4) {
    for (const double a : {0.2, 0.4, 0.8, 1.6}) attempt(bins, best, {true, rate, a});
  }
  double step = 2;
  for (int i = 0; i < 6; ++i, step = std::sqrt(step)) {
    const Shape s = best.shape;
    attempt(bins, best, {true, s.rate * step, s.exponent});
    attempt(bins, best, {true, s.rate / step, s.exponent});
    attempt(bins, best, {true, s.rate, std::min(s.exponent * std::sqrt(step), 4.0)});
    attempt(bins, best, {true, s.rate, s.exponent / std::sqrt(step)});
  }
  return best;
}

// Akaike's information criterion with the correction for few bins.
double criterion(double error, double parameters, double n) {
  return n * reproducible::log(error) + 2 * parameters +
         2 * parameters * (parameters + 1) / std::max(n - parameters - 1, 1.0);
}

}  // namespace

// Whether a loss is far from the recent values. If five in a row are far, the level has
// changed, and they are not outliers.
bool LossFit::outlier(double loss) {
  if (!std::isfinite(loss) || std::fabs(loss) > 1e100) return true;
  const double off = loss - mean_;
  const bool far = seen_ > 20 && off * off > 64 * variance_ && variance_ > 0;
  if (far && ++rejected_in_a_row_ < 5) return true;
  rejected_in_a_row_ = 0;
  const double weight = 1.0 / static_cast<double>(std::min<int64_t>(++seen_, 50));
  mean_ += weight * off;
  if (seen_ <= kFirstLosses) first_loss_ = mean_;
  variance_ = (1 - weight) * (variance_ + weight * off * off);
  return false;
}

void LossFit::add(double x, double loss) {
  if (!std::isfinite(x) || outlier(loss)) return;
  open_.count += 1;
  open_.x += (x - open_.x) / open_.count;
  open_.loss += (loss - open_.loss) / open_.count;
  if (open_.count >= per_bin_) close_bin();
}

void LossFit::close_bin() {
  bins_.push_back(open_);
  open_ = {};
  if (bins_.size() < kMostBins) return;
  for (size_t i = 0; i < kMostBins / 2; ++i) {
    const Bin &a = bins_[2 * i], &b = bins_[2 * i + 1];
    const double count = a.count + b.count;
    bins_[i] = {count, (a.count * a.x + b.count * b.x) / count,
                (a.count * a.loss + b.count * b.loss) / count};
  }
  bins_.resize(kMostBins / 2);
  per_bin_ *= 2;
}

void LossFit::milestone() {
  if (open_.count > 0) close_bin();
  open_segment(0);
}

void LossFit::open_segment(size_t keep) {
  bins_.erase(bins_.begin(), bins_.end() - static_cast<ptrdiff_t>(keep));
  // Bins are small again, so that the new slope is known soon.
  per_bin_ = 1;
  ++segments_;
}

std::optional<LossFit::Candidate> LossFit::best_fit(const std::vector<Bin>& bins) {
  const double span = bins.back().x - bins.front().x;
  if (!(span > 0)) return std::nullopt;
  Candidate start;
  start.x0 = bins.front().x;
  const Candidate a = fit_exponential(bins, start, span);
  const Candidate b = fit_power(bins, start, span);
  const auto n = static_cast<double>(bins.size());
  if (std::isinf(a.error) && std::isinf(b.error)) return std::nullopt;
  if (std::isinf(a.error)) return b;
  if (std::isinf(b.error)) return a;
  return criterion(a.error, 3, n) <= criterion(b.error, 4, n) ? a : b;
}

bool LossFit::changed() const {
  if (bins_.size() < kFewestBins + kJudged) return false;
  const std::vector<Bin> earlier(bins_.begin(), bins_.end() - kJudged);
  const auto model = best_fit(earlier);
  if (!model) return false;
  std::vector<double> off;
  for (const Bin& bin : earlier) off.push_back(std::fabs(bin.loss - model->at(bin.x)));
  std::ranges::nth_element(off, off.begin() + static_cast<ptrdiff_t>(off.size() / 2));
  // The median absolute deviation of a normal distribution is 0.6745 standard
  // deviations.
  const double deviation = off[off.size() / 2] / 0.6745;
  const double limit = 6 * deviation + 1e-9 * std::fabs(earlier.back().loss);
  const auto beyond = [&](const Bin& bin, double sign) {
    return sign * (bin.loss - model->at(bin.x)) > limit;
  };
  const auto all = [&](double sign) {
    return std::all_of(bins_.end() - kJudged, bins_.end(),
                       [&](const Bin& bin) { return beyond(bin, sign); });
  };
  return all(1) || all(-1);
}

std::optional<FittedCurve> LossFit::fit() {
  if (changed()) open_segment(kJudged);
  if (bins_.size() < kFewestBins) return std::nullopt;
  const auto model = best_fit(bins_);
  if (!model) return std::nullopt;
  const double cv = model->deviation / model->scale;
  if (!(cv * kLeastDeviations <= 1)) return std::nullopt;
  const Shape& s = model->shape;
  const double first = model->floor + model->scale;
  Result<Curve> curve = s.power ? Curve::power(first, s.rate, s.exponent, model->floor)
                                : Curve::exponential(first, s.rate, model->floor);
  if (!curve.ok()) return std::nullopt;
  return FittedCurve{curve->later(model->x0), 1 / (1 + cv * cv),
                     s.power ? "power law" : "exponential"};
}

double FittedExponential::loss(double x) const {
  return first * reproducible::exp(-rate * (x - start));
}

namespace {

// The exponential with this rate that is nearest to the bins, and the sum of its squared
// errors.
template <typename Bins>
std::pair<FittedExponential, double> with_rate(const Bins& bins, double rate) {
  FittedExponential out{bins.front().x, 0, rate};
  double ss = 0, sy = 0, yy = 0;
  for (const auto& bin : bins) {
    const double shape = reproducible::exp(-rate * (bin.x - out.start));
    ss += bin.count * shape * shape, sy += bin.count * shape * bin.loss;
    yy += bin.count * bin.loss * bin.loss;
  }
  out.first = sy / ss;
  return {out, yy - sy * sy / ss};
}

}  // namespace

std::optional<FittedExponential> LossFit::fit_decay() const {
  if (bins_.size() < kFewestBins) return std::nullopt;
  const double span = bins_.back().x - bins_.front().x;
  const bool positive =
      std::ranges::all_of(bins_, [](const Bin& bin) { return bin.loss > 0; });
  if (!(span > 0) || !positive) return std::nullopt;
  // The best rate times the span is between 0.001 and 50, or the loss does not fall
  // measurably. The error has one minimum, which the golden section finds.
  constexpr double kGolden = 0.6180339887498949;
  double low = reproducible::log(1e-3), high = reproducible::log(50.0);
  const auto error = [&](double log_rate) {
    return with_rate(bins_, reproducible::exp(log_rate) / span).second;
  };
  for (int round = 0; round < 40; ++round) {
    const double a = high - kGolden * (high - low), b = low + kGolden * (high - low);
    (error(a) < error(b) ? high : low) = error(a) < error(b) ? b : a;
  }
  const auto [fit, least] =
      with_rate(bins_, reproducible::exp((low + high) / 2) / span);
  const bool falls = fit.first > 0 && fit.rate * span > 2e-3;
  return falls && least < with_rate(bins_, 0).second ? std::optional(fit)
                                                     : std::nullopt;
}

}  // namespace holdfast
