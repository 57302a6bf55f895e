#include <algorithm>
#include <cmath>

#include "holdfast/simulate/timeline_internal.h"

namespace holdfast {

Timeline::Timeline(const Problem& problem, const Schedule& schedule)
    : problem_(problem), steady_(problem.steady()) {
  x_.push_back(0);
  for (const double x : schedule.times) {
    if (x > x_.back() && x < problem.length) x_.push_back(x);
  }
  x_.push_back(problem.length);
  for (std::vector<double>* sum : {&ends_, &waits_, &hazard_, &stalls_, &losses_,
                                   &worker_stalls_, &loss_of_wait_}) {
    sum->assign(x_.size(), 0);
  }
  const Workers& workers = problem.workers;
  for (size_t k = 1; k < x_.size(); ++k) {
    const bool last = k + 1 == x_.size();
    const double x = x_[k], work = x - x_[k - 1];
    const double wait = last || k == 1 ? 0 : std::max(0.0, problem.persist - work);
    const double stall = last ? 0 : wait + problem.stall;
    const double loss = last ? 0 : problem.curve.drop(x, x + stall);
    waits_[k] = wait;
    ends_[k] = ends_[k - 1] + work + stall;
    stalls_[k] = stalls_[k - 1] + stall;
    losses_[k] = losses_[k - 1] + loss;
    loss_of_wait_[k] = wait > 0 ? loss - problem.curve.drop(x, x + problem.stall) : 0;
    const double count = workers.at(x);
    worker_stalls_[k] = worker_stalls_[k - 1] + stall * count;
    const double exposed = workers.until(x) - workers.until(x_[k - 1]) + stall * count;
    hazard_[k] = hazard_[k - 1] + exposed / problem.mtbf;
  }
}

Moment Timeline::at(size_t base, double time) const {
  double on_line = ends_[base] + time;
  if (time > gap(base)) on_line += saved_wait(base);
  const auto after = std::upper_bound(ends_.begin() + static_cast<ptrdiff_t>(base) + 1,
                                      ends_.end(), on_line);
  const auto segment =
      std::min(static_cast<size_t>(after - ends_.begin()) - 1, x_.size() - 2);
  const double into = on_line - ends_[segment], work = std::min(into, gap(segment));
  return {segment, x_[segment] + work, std::max(0.0, into - work)};
}

size_t Timeline::durable(size_t base, const Moment& moment, double time) const {
  if (moment.segment == base) return base;
  double on_line = ends_[base] + time + saved_wait(base);
  const bool in_flight = on_line - ends_[moment.segment] < problem_.persist;
  return in_flight ? moment.segment - 1 : moment.segment;
}

double Timeline::time_of_hazard(size_t base, double hazard) const {
  if (steady_) {
    const double time = hazard / problem_.failure_rate(0);
    return time < rest(base) ? time : INFINITY;
  }
  const Workers& workers = problem_.workers;
  const auto until = [&](double time) {  // the hazard that is used up after `time`
    const Moment m = at(base, time);
    double used = hazard_[m.segment] - hazard_[base];
    if (m.segment > base) {
      used -= saved_wait(base) * workers.at(x_[base + 1]) / problem_.mtbf;
    }
    used += (workers.until(m.x) - workers.until(x_[m.segment])) / problem_.mtbf;
    return used + m.stalled * workers.at(m.x) / problem_.mtbf;
  };
  double low = 0, high = rest(base);
  if (until(high) <= hazard) return INFINITY;
  for (int round = 0; round < 50; ++round) {
    const double middle = low + (high - low) / 2;
    (until(middle) < hazard ? low : high) = middle;
  }
  return low;
}

double Timeline::time_of_work(size_t base, double x) const {
  if (!(x < x_.back())) return INFINITY;
  const auto after = std::upper_bound(x_.begin(), x_.end(), x);
  const auto segment = std::max(static_cast<size_t>(after - x_.begin()) - 1, base);
  const double waited = segment > base ? saved_wait(base) : 0;
  return ends_[segment] - ends_[base] - waited + std::max(0.0, x - x_[segment]);
}

double Timeline::stalls(size_t base, const Moment& moment) const {
  const double waited = moment.segment > base ? saved_wait(base) : 0;
  double own = moment.stalled;
  if (moment.segment == base && own > 0) own -= saved_wait(base);
  return stalls_[moment.segment] - stalls_[base] - waited + own;
}

double Timeline::loss_of_stalls(size_t base, const Moment& moment) const {
  const double waited =
      moment.segment > base && base + 1 < x_.size() ? loss_of_wait_[base + 1] : 0;
  double own = moment.stalled;
  if (moment.segment == base && own > 0) own -= saved_wait(base);
  const double loss = own > 0 ? problem_.curve.drop(moment.x, moment.x + own) : 0;
  return losses_[moment.segment] - losses_[base] - waited + loss;
}

double Timeline::worker_stalls(size_t base, const Moment& moment) const {
  const Workers& workers = problem_.workers;
  const double waited =
      moment.segment > base ? saved_wait(base) * workers.at(x_[base + 1]) : 0;
  double own = moment.stalled;
  if (moment.segment == base && own > 0) own -= saved_wait(base);
  return worker_stalls_[moment.segment] - worker_stalls_[base] - waited +
         own * workers.at(moment.x);
}

}  // namespace holdfast
