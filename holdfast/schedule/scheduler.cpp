// The scheduler's clocks, and what makes a save due. scheduler_interval.cpp chooses the
// interval.
#include "holdfast/schedule/scheduler.h"

#include <algorithm>
#include <cmath>

namespace holdfast {
namespace {

constexpr int64_t kFirstSave =
    3;  // after so many steps buffers and clocks have settled
constexpr double kTriesAnInterval = 8;  // tries in an interval after a save was dropped
// A save that is in flight for at least so many seconds may never become durable.
constexpr double kLost = 600;
// After how many seconds of work the interval is chosen again. It is chosen sooner while
// the losses do not show a curve yet.
constexpr double kLookAgain = 60;
constexpr double kLookSoon = 15;

double seconds(Duration time) { return std::chrono::duration<double>(time).count(); }

Result<void> check_positive(std::string_view name, const std::optional<double>& value) {
  if (!value || (*value > 0 && !std::isnan(*value))) return {};
  return invalid("{}: {}; expected more than 0", name, *value);
}

Result<void> check_rising(std::string_view name, const std::vector<int64_t>& steps) {
  if (std::ranges::adjacent_find(steps, std::greater_equal{}) == steps.end()) return {};
  return invalid("{}: is not in rising order; expected each step once", name);
}

Result<void> check(const SchedulerOptions& options) {
  HOLDFAST_TRY(check_positive("mtbf", options.mtbf));
  HOLDFAST_TRY(check_positive("deadline", options.deadline));
  HOLDFAST_TRY(check_positive("bytes_a_day", options.bytes_a_day));
  HOLDFAST_TRY(check_rising("durable_steps", options.durable_steps));
  HOLDFAST_TRY(check_rising("milestones", options.milestones));
  if (options.workers < 1)
    return invalid("workers: {}; expected 1 or more", options.workers);
  if (!(options.slack >= 0 && options.slack <= 1)) {
    return invalid("slack: {}; expected a share of 0 to 1", options.slack);
  }
  if (!(options.duty > 0 && options.duty <= 1)) {
    return invalid("duty: {}; expected a share of 0 to 1", options.duty);
  }
  if (!(options.stop_rate >= 0) || !std::isfinite(options.stop_rate)) {
    return invalid("stop_rate: {}; expected 0 or more", options.stop_rate);
  }
  if (!(options.hard >= 0 && options.hard <= 1)) {
    return invalid("hard: {}; expected a share of 0 to 1", options.hard);
  }
  if (options.total_steps && *options.total_steps < 1) {
    return invalid("total_steps: {}; expected 1 or more", *options.total_steps);
  }
  return {};
}

Result<void> check_together(const SchedulerOptions& options) {
  const bool policy = std::holds_alternative<Policy>(options.every);
  if (!policy && (options.objective || options.budget)) {
    return invalid("every \"{}\": does not support objective and budget; expected auto",
                   to_string(options.every));
  }
  if (options.budget && (*options.budget < 1 || !options.total_steps)) {
    return invalid("budget: {} saves; expected 1 or more, and total_steps",
                   *options.budget);
  }
  const bool is_auto = policy && std::get<Policy>(options.every) == Policy::kAuto;
  if (options.budget && !is_auto) {
    return invalid("every \"{}\": does not support a budget; expected auto",
                   to_string(options.every));
  }
  return {};
}

FailureRate prior_of(const SchedulerOptions& options) {
  constexpr double kWorthOfStated = 4;
  if (!options.mtbf) return FailureRate::unknown(options.workers);
  return FailureRate(*options.mtbf * static_cast<double>(options.workers),
                     kWorthOfStated);
}

}  // namespace

Result<Scheduler> Scheduler::create(SchedulerOptions options) {
  HOLDFAST_TRY(check(options));
  HOLDFAST_TRY(check_together(options));
  return Scheduler(std::move(options));
}

Scheduler::Scheduler(SchedulerOptions options)
    : options_(std::move(options)), failures_(prior_of(options_)) {}

void Scheduler::start(int64_t step, Instant now, bool resumed, const Learned& learned) {
  // The deadline does not move when the job restarts.
  if (!running_) started_ = now;
  running_ = true;
  first_step_ = step;
  last_step_ = step - 1;
  last_ = anchor_time_ = now;
  anchor_ = work_;
  pending_stall_ = {};
  has_durable_ = resumed;
  in_flight_ = false;
  before_ = learned;
  if (failures_.exposure() == 0) {
    failures_.exposed(learned.worker_seconds);
    failures_.failed(std::max(0.0, learned.failures));
  }
  stale_ = true;
}

bool Scheduler::step(int64_t step, Instant now) {
  if (!running_) start(step, now);
  tick(step, now);
  if (stale_ || work_ >= next_update_) {
    update_interval();
    stale_ = false;
    const double rest = interval_ < 1e9 ? interval_ / 4 : 0;
    const bool waits = uses_curve() && highest_loss_step_ >= 0 && !fit_;
    next_update_ = work_ + (waits ? kLookSoon : std::max(kLookAgain, rest));
  }
  const bool save = due(step, now);
  last_step_ = step;
  if (save) begin_save(step, now);
  return save;
}

// Advances the work clock. A step that takes no time, or a clock that runs back, adds
// nothing.
void Scheduler::tick(int64_t step, Instant now) {
  const double took = seconds(now - last_ - pending_stall_);
  pending_stall_ = {};
  last_ = now;
  while (next_milestone_ < options_.milestones.size() &&
         step > options_.milestones[next_milestone_]) {
    losses_.milestone();
    ++next_milestone_;
  }
  if (!(took > 0)) return;
  work_ += took;
  steps_.add(took / static_cast<double>(std::max<int64_t>(step - last_step_, 1)),
             in_flight_);
  failures_.exposed(took * static_cast<double>(options_.workers));
}

double Scheduler::since(Instant now) const { return seconds(now - started_); }

bool Scheduler::due(int64_t step, Instant now) {
  obliged_ = due_by_obligation(step, now);
  return obliged_ || due_by_cadence(step, now);
}

bool Scheduler::due_by_cadence(int64_t step, Instant now) {
  if (std::holds_alternative<Never>(options_.every)) return false;
  if (const auto* every = std::get_if<EverySteps>(&options_.every)) {
    if ((step + 1) / every->steps <= (last_step_ + 1) / every->steps) return false;
    reason_ = fmt::format("step {}: every {}", step, to_string(options_.every));
    return true;
  }
  if (const auto* every = std::get_if<EveryTime>(&options_.every)) {
    if (now - anchor_time_ < every->time) return false;
    reason_ = fmt::format("step {}: every {}, {:.1f} s since the last", step,
                          to_string(options_.every), seconds(now - anchor_time_));
    return true;
  }
  if (!has_durable_ && saves_ == 0) {
    if (step - first_step_ + 1 < kFirstSave || work_ < not_before_) return false;
    reason_ =
        fmt::format("step {}: first save, to be safe and to learn its cost", step);
    return true;
  }
  if (work_ < not_before_) return false;
  // Only one save is in flight at a time, unless that one is so late that it may never
  // become durable.
  const double lost = std::max({kLost, 4 * interval_, 4 * persist()});
  // A save is made at the end of the step that is nearest to the chosen moment.
  const double now_or_then = work_ + steps_.step() / 2;
  if (now_or_then < next_ || (in_flight_ && work_ < anchor_ + lost)) return false;
  reason_ = fmt::format("step {}: {:.1f} s of work since the last save; {}", step,
                        work_ - anchor_, explain());
  return true;
}

// Whether a save is due that has to be durable in time, whatever the interval is: a
// durable step or the deadline.
bool Scheduler::due_by_obligation(int64_t step, Instant now) {
  const double lead = options_.durable_steps_hard ? stall() + persist() : 0;
  const double one = steps_.step();
  while (next_must_ < options_.durable_steps.size() &&
         options_.durable_steps[next_must_] < step) {
    ++next_must_;
  }
  if (next_must_ < options_.durable_steps.size()) {
    const int64_t must = options_.durable_steps[next_must_];
    if (static_cast<double>(must - step) * one <= lead) {
      ++next_must_;
      reason_ = fmt::format("step {}: step {} has to be durable", step, must);
      return true;
    }
  }
  if (!options_.deadline || deadline_met_) return false;
  const double left = *options_.deadline - since(now);
  if (left > stall() + persist() + 2 * one) return false;
  deadline_met_ = true;
  reason_ = fmt::format("step {}: the deadline is in {:.1f} s", step, left);
  return true;
}

void Scheduler::begin_save(int64_t step, Instant now) {
  anchor_time_ = now;
  saved_elsewhere(step);
}

void Scheduler::saved_elsewhere(int64_t) {
  ++saves_;
  in_flight_ = true;
  anchor_before_ = anchor_;
  anchor_ = work_;
  anchor_time_ = std::max(anchor_time_, last_);
  next_ = anchor_ + interval_;
  // COCI's interval depends on the loss at the last save, and the interval that protects
  // a job on the work until then.
  stale_ |= options_.every == Cadence(Policy::kCoci) || protects();
}

void Scheduler::loss(int64_t step, double loss) {
  // A step that is repeated after a restart counts only once.
  if (step <= highest_loss_step_) return;
  highest_loss_step_ = step;
  losses_.add(work_, loss);
}

void Scheduler::captured(int64_t, Duration stall) {
  if (stall < Duration::zero()) return;
  pending_stall_ += stall;
  stale_ |= !costs_.stall_known();
  costs_.stalled(seconds(stall));
}

void Scheduler::durable(int64_t, Duration persist, int64_t bytes) {
  costs_.persisted(seconds(persist));
  in_flight_ = false;
  has_durable_ = true;
  stale_ |= bytes > 0 && bytes_ == 0;
  if (bytes > 0) bytes_ = bytes;
  const auto moved = [](double from, double to) {
    return std::fabs(to - from) > from / 10;
  };
  stale_ |=
      moved(chosen_for_stall_, stall()) || moved(chosen_for_persist_, this->persist());
}

void Scheduler::dropped(int64_t) {
  in_flight_ = false;
  if (saves_ > 0) --saves_;
  anchor_ = anchor_before_;
  next_ = anchor_ + interval_;
  if (interval_ < 1e9) not_before_ = work_ + interval_ / kTriesAnInterval;
}

void Scheduler::failed(bool needed_checkpoint) {
  if (!needed_checkpoint) return;
  failures_.failed();
  stale_ = true;
}

void Scheduler::set_workers(int64_t workers) {
  options_.workers = std::max<int64_t>(workers, 1);
  stale_ = true;
}

Learned Scheduler::learned() const {
  return {failures_.failures(), failures_.exposure(), stall(), persist()};
}

}  // namespace holdfast
