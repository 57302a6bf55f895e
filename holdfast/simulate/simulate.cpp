// Simulates runs of a job under several schedules and summarises them.
#include "holdfast/simulate/simulate.h"

#include <algorithm>
#include <cmath>

#include "holdfast/schedule/exact_delay_internal.h"
#include "holdfast/simulate/failure_times_internal.h"
#include "holdfast/base/reproducible_math.h"
#include "holdfast/simulate/timeline_internal.h"

namespace holdfast {
namespace {

constexpr size_t kMostFailures = 10000;
constexpr int64_t kMostRuns = 100'000'000;

struct Outcome {
  std::array<double, kMetrics> metrics{};
  double saves = 0, stalled = 0, redone = 0;
  size_t failures = 0;
  bool finished = true;

  double& at(Metric metric) { return metrics[static_cast<size_t>(metric)]; }
};

// One run with one schedule.
class Run {
 public:
  Run(const Problem& problem, const Timeline& timeline, FailureTimes& failures,
      double stop)
      : problem_(problem), timeline_(timeline), failures_(failures), stop_(stop) {}

  Outcome outcome() {
    while (out_.failures < kMostFailures) {
      const double rest = timeline_.rest(base_);
      const double time = until_failure();
      if (time >= rest) {
        finish(rest);
        return out_;
      }
      fail(time);
    }
    out_.finished = false;
    finish(timeline_.rest(base_));
    return out_;
  }

 private:
  double until_failure() {
    if (failures_.by_hazard()) {
      return timeline_.time_of_hazard(base_, failures_.hazard(out_.failures));
    }
    if (failures_.by_work()) {
      return timeline_.time_of_work(base_, failures_.work(out_.failures));
    }
    failure_ = failures_.after(wall_);
    return failure_ - wall_;
  }

  void fail(double time) {
    if (stop_ < wall_ + time) stop_here();
    const Moment moment = timeline_.at(base_, time);
    const size_t durable = timeline_.durable(base_, moment, time);
    const double from = timeline_.work(durable);
    account(moment);
    out_.redone += moment.x - from;
    out_.at(Metric::kTime) += moment.x - from + problem_.restart;
    const double lost = problem_.curve.drop(from, moment.x);
    out_.at(Metric::kProgress) += lost;
    out_.at(Metric::kPriced) += lost;
    if (!problem_.workers.phases.empty()) {
      const Workers& w = problem_.workers;
      out_.at(Metric::kWorkerSeconds) +=
          w.until(moment.x) - w.until(from) + problem_.restart * w.at(moment.x);
    }
    wall_ = (failure_ > 0 ? failure_ : wall_ + time) + problem_.restart;
    base_ = durable;
    ++out_.failures;
    if (stop_ < wall_) stop_down();
  }

  void finish(double rest) {
    if (stop_ < wall_ + rest) stop_here();
    account(timeline_.at(base_, rest));
    if (std::isfinite(stop_)) record_stop(problem_.length, problem_.length);
    if (problem_.workers.phases.empty()) {
      out_.at(Metric::kWorkerSeconds) = out_.at(Metric::kTime);
    }
  }

  void account(const Moment& moment) {
    const double stalled = timeline_.stalls(base_, moment);
    out_.stalled += stalled;
    out_.at(Metric::kTime) += stalled;
    out_.at(Metric::kProgress) += timeline_.loss_of_stalls(base_, moment);
    if (!problem_.workers.phases.empty()) {
      out_.at(Metric::kWorkerSeconds) += timeline_.worker_stalls(base_, moment);
    }
    const auto saves = static_cast<double>(moment.segment - base_);
    out_.saves += saves;
    out_.at(Metric::kPriced) += saves * price_;
  }

  void stop_here() {
    const double time = stop_ - wall_;
    const Moment moment = timeline_.at(base_, time);
    const double lost = timeline_.loss_of_stalls(base_, moment);
    const size_t durable = timeline_.durable(base_, moment, time);
    out_.at(Metric::kProgressUntilStop) = out_.at(Metric::kProgress) + lost;
    record_stop(moment.x, timeline_.work(durable));
  }

  void stop_down() {
    out_.at(Metric::kProgressUntilStop) = out_.at(Metric::kProgress);
    record_stop(timeline_.work(base_), timeline_.work(base_));
  }

  // Records what is missing at a stop, compared with a job that has worked all the
  // time.
  void record_stop(double in_hand, double durable) {
    if (std::isinf(stop_)) return;
    if (in_hand == problem_.length) {
      out_.at(Metric::kProgressUntilStop) = out_.at(Metric::kProgress);
    }
    const double could = std::min(stop_, problem_.length);
    stop_ = INFINITY;
    out_.at(Metric::kInHand) = problem_.curve.drop(in_hand, could);
    out_.at(Metric::kDurable) = problem_.curve.drop(durable, could);
  }

  const Problem& problem_;
  const Timeline& timeline_;
  FailureTimes& failures_;
  // The price of a save, in loss.
  const double price_ = (problem_.stall + problem_.price) *
                        problem_.curve.drop(0, problem_.length) / problem_.length;
  double stop_;
  double wall_ = 0;
  // The wall time of the last failure. It is kept because a sum of times could be
  // rounded to a moment before it.
  double failure_ = 0;
  size_t base_ = 0;
  Outcome out_;
};

Summary summarise(std::vector<double>& values) {
  Summary out;
  const auto n = static_cast<double>(values.size());
  for (const double value : values) out.mean += value / n;
  double squares = 0;
  for (const double value : values) squares += (value - out.mean) * (value - out.mean);
  if (values.size() > 1) out.half = 1.96 * std::sqrt(squares / (n - 1) / n);
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  out.median = *middle;
  if (values.size() % 2 == 0) out.median = (*std::max_element(values.begin(), middle) + *middle) / 2;
  return out;
}

using Columns = std::array<std::vector<double>, kMetrics>;

void summarise_all(std::vector<Columns>& columns, std::vector<SimulatedSchedule>& out) {
  const Columns first = columns.front();
  for (size_t c = 0; c < columns.size(); ++c) {
    for (size_t m = 0; m < kMetrics; ++m) {
      std::vector<double>& values = columns[c][m];
      if (values.empty()) continue;
      std::vector<double> differences = values;
      for (size_t r = 0; r < values.size(); ++r) differences[r] -= first[m][r];
      out[c].metrics[m] = summarise(values);
      if (c > 0) out[c].against_first[m] = summarise(differences);
    }
  }
}

Result<void> check_trace(const FailureModel& model) {
  if (model.trace.empty())
    return invalid("trace: has no failures; expected at least one");
  double before = 0;
  for (const double time : model.trace) {
    if (!(time > before) || !std::isfinite(time)) {
      return invalid("trace: a failure at {} s after {} s; expected rising times", time,
                     before);
    }
    before = time;
  }
  if (model.trace_length != 0 && !(model.trace_length >= before)) {
    return invalid(
        "trace: is {} s long; expected at least {} s, the time of its last failure",
        model.trace_length, before);
  }
  return {};
}

Result<void> check_model(const Problem& problem, const SimulateOptions& options) {
  const FailureModel& model = options.failures;
  if (options.runs < 1 || options.runs > kMostRuns) {
    return invalid("runs: {}; expected 1 to {}", options.runs, kMostRuns);
  }
  if (options.stop_at && !(*options.stop_at > 0)) {
    return invalid("stop: at {} s; expected more than 0", *options.stop_at);
  }
  if (model.kind == FailureModel::Kind::kTrace) return check_trace(model);
  if (model.kind == FailureModel::Kind::kEvery && !(model.period > 0)) {
    return invalid("failures: one every {} s; expected more than 0", model.period);
  }
  if (model.phase && !(*model.phase >= 0 && *model.phase <= 1)) {
    return invalid("failures: at a phase of {}; expected a share of 0 to 1",
                   *model.phase);
  }
  if (model.kind == FailureModel::Kind::kOnce &&
      !(model.share > 0 && model.share <= 1)) {
    return invalid("failures: in the first {} of the run; expected a share of 0 to 1",
                   model.share);
  }
  if (model.kind != FailureModel::Kind::kWeibull) return {};
  if (!(model.shape >= 0.1 && model.shape <= 20)) {
    return invalid("weibull: shape {}; expected 0.1 to 20", model.shape);
  }
  if (!(model.age >= 0) || !std::isfinite(model.age)) {
    return invalid("weibull: age {} s; expected 0 or more", model.age);
  }
  if (problem.workers.phases.size() > 1) {
    return invalid("weibull: {} phases of workers; expected a constant number",
                   problem.workers.phases.size());
  }
  if (!std::isfinite(problem.mtbf))
    return invalid("weibull: has no mtbf; expected one");
  return {};
}

// The wall time at which this run is stopped.
double draw_stop(const Problem& problem, const SimulateOptions& options, int64_t run) {
  if (options.stop_at) return *options.stop_at;
  if (problem.stops.rate <= 0) return INFINITY;
  RandomStream dice(options.seed ^ 0x5709, static_cast<uint64_t>(run));
  return dice.exponential() / problem.stops.rate;
}

void add(const Outcome& outcome, bool stops, Columns& columns, SimulatedSchedule& out) {
  for (size_t m = 0; m < kMetrics; ++m) {
    if (stops || m <= static_cast<size_t>(Metric::kPriced)) {
      columns[m].push_back(outcome.metrics[m]);
    }
  }
  out.saves += outcome.saves;
  out.stalled += outcome.stalled;
  out.redone += outcome.redone;
  out.failures += static_cast<double>(outcome.failures);
  out.unfinished += !outcome.finished;
}

}  // namespace

std::string_view name_of(Metric metric) {
  constexpr std::array<std::string_view, kMetrics> kNames{
      "time",    "worker_seconds", "progress", "priced", "progress_until_stop",
      "in_hand", "durable"};
  return kNames[static_cast<size_t>(metric)];
}

Result<std::vector<SimulatedSchedule>> simulate(
    const Problem& problem, std::span<const NamedSchedule> schedules,
    const SimulateOptions& options) {
  HOLDFAST_TRY(check(problem));
  HOLDFAST_TRY(check_model(problem, options));
  if (schedules.empty())
    return invalid("simulate: no schedules; expected at least one");
  FailureModel model = options.failures;
  if (model.kind == FailureModel::Kind::kTrace && model.trace_length == 0) {
    model.trace_length = model.trace.back();
  }
  std::vector<Timeline> timelines;
  std::vector<SimulatedSchedule> out;
  for (const NamedSchedule& each : schedules) {
    timelines.emplace_back(problem, each.schedule);
    out.push_back({.name = each.name,
                   .scheduled_saves = static_cast<int64_t>(timelines.back().saves())});
  }
  std::vector<Columns> columns(schedules.size());
  const bool stops = options.stop_at || problem.stops.rate > 0;
  FailureTimes failures(problem, model);
  for (int64_t run = 0; run < options.runs; ++run) {
    failures.begin(options, run);
    const double stop = draw_stop(problem, options, run);
    for (size_t c = 0; c < schedules.size(); ++c) {
      add(Run(problem, timelines[c], failures, stop).outcome(), stops, columns[c],
          out[c]);
    }
  }
  for (SimulatedSchedule& each : out) {
    for (double* sum : {&each.saves, &each.failures, &each.stalled, &each.redone}) {
      *sum /= static_cast<double>(options.runs);
    }
  }
  summarise_all(columns, out);
  return out;
}

std::optional<double> expected_time(const Problem& problem, const Schedule& schedule) {
  if (!problem.steady()) return std::nullopt;
  const auto saves = static_cast<double>(schedule.times.size());
  if (std::isinf(problem.mtbf)) return problem.length + saves * problem.stall;
  const ExactDelay exact(problem);
  double beyond = 0, before = 0;
  for (const double x : schedule.times) {
    if (before > 0 && x - before < problem.persist) return std::nullopt;
    beyond += exact.interval(before, x);
    before = x;
  }
  return problem.length + beyond + exact.interval(before, problem.length);
}

}  // namespace holdfast
