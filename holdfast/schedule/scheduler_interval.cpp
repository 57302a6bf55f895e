// The part of the scheduler that chooses the interval.
#include <algorithm>
#include <cmath>

#include "holdfast/schedule/grid.h"
#include "holdfast/schedule/intervals.h"
#include "holdfast/schedule/policies.h"
#include "holdfast/schedule/recommend.h"
#include "holdfast/base/reproducible_math.h"
#include "holdfast/schedule/scheduler.h"

namespace holdfast {
namespace {

// What a save is assumed to cost until one was measured. The first save replaces this
// guess.
constexpr double kGuessedStall = 1, kGuessedPersist = 10;
// So many failures make a rate known: it is then wrong by less than a factor of two most
// of the time, and the interval, its square root, costs a few percent more than the
// best.
constexpr double kEnoughFailures = 3;
// These hold while no failure rate is known.
constexpr double kMostLost = 300;  // seconds of work
// The share of the time that protection may cost: how much more stalls take than at the
// interval that is best for the guessed rate.
constexpr double kPriceOfUnknown = 0.002;
constexpr double kEarly = 0.25;    // an early interval, as a share of the work so far
constexpr double kShortest = 10;   // the shortest early interval, in seconds
constexpr double kUsualBytes = 4e12;  // a day, which SSDs of some TB stand for years
constexpr std::string_view kUnknown = "auto: no failure rate is known: ";
// The interval is kept if the new one differs by less than this share. This costs less
// than 0.5 %.
constexpr double kHysteresis = 0.1;
// Once a schedule is uneven, it stays uneven for a smaller gain. An even interval that
// is chosen again and again for the rest of the job would always save too late.
constexpr double kKeepUneven = 0.005;
constexpr double kFarFromYoung = 4;  // COCI's interval is at most so many of Young's
constexpr double kFewestPositions = 256, kMostPositions = 4096;
constexpr double kFarthest = 100;  // how many intervals a schedule looks ahead

std::string duration_text(double seconds) {
  if (std::isinf(seconds)) return "never";
  if (seconds < 1) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds < 120) return fmt::format("{:.1f} s", seconds);
  if (seconds < 2 * 3600) return fmt::format("{:.1f} min", seconds / 60);
  if (seconds < 2 * kSecondsPerDay) return fmt::format("{:.1f} h", seconds / 3600);
  return fmt::format("{:.1f} d", seconds / kSecondsPerDay);
}

// The longest interval whose overhead stall/t + t/(2 mtbf) is at most `slack` above that
// of the interval `best`.
double longest_within(double best, double stall, double mtbf, double slack) {
  if (!(best > 0)) return 2 * mtbf * slack;
  const double bound = stall / best + best / (2 * mtbf) + slack;
  const double root = std::sqrt(std::max(0.0, bound * bound - 2 * stall / mtbf));
  return std::max(best, mtbf * (bound + root));
}

}  // namespace

double Scheduler::stall() const {
  const double known = costs_.stall_known() ? costs_.stall()
                       : before_.stall > 0  ? before_.stall
                                            : kGuessedStall;
  return known + steps_.slowdown() * persist();
}

double Scheduler::persist() const {
  if (costs_.persist_known()) return costs_.persist();
  return before_.stall > 0 ? before_.persist : kGuessedPersist;
}

double Scheduler::mtbf() const {
  return 1 / (failures_.rate() * static_cast<double>(options_.workers));
}

Objective Scheduler::objective() const {
  if (options_.objective) return *options_.objective;
  const bool may_stop =
      options_.deadline || options_.stop_rate > 0 || !options_.durable_steps.empty();
  return may_stop ? Objective::kExplore : Objective::kDelay;
}

bool Scheduler::uses_curve() const {
  if (options_.every == Cadence(Policy::kCoci)) return true;
  return options_.every == Cadence(Policy::kAuto) && objective() != Objective::kDelay;
}

bool Scheduler::knows_rate() const {
  return options_.mtbf || failures_.failures() >= kEnoughFailures;
}

// A budget says how many saves there are, so it leaves no room for protection.
bool Scheduler::protects() const {
  return options_.every == Cadence(Policy::kAuto) && !options_.budget && !knows_rate();
}

double Scheduler::danger() const {
  const double stops =
      objective() == Objective::kExplore ? options_.stop_rate * options_.hard : 0;
  return 1 / (1 / mtbf() + stops);
}

double Scheduler::remaining_work() const {
  if (!options_.total_steps) return std::max(work_, 20 * young(stall(), mtbf()));
  const auto steps = static_cast<double>(*options_.total_steps - last_step_ - 1);
  return std::max(steps, 1.0) * std::max(steps_.step(), 1e-6) + (work_ - anchor_);
}

void Scheduler::update_interval() {
  if (!std::holds_alternative<Policy>(options_.every)) {
    interval_ = std::numeric_limits<double>::infinity();
    if (const auto* time = std::get_if<EveryTime>(&options_.every)) {
      interval_ = std::chrono::duration<double>(time->time).count();
    }
    return;
  }
  if (uses_curve()) fit_ = losses_.fit();
  chosen_for_stall_ = stall();
  chosen_for_persist_ = persist();
  Choice choice = limit_interval(choose());
  if (protects()) choice.why += price_text(choice.interval);
  // COCI's interval grows a little with each save, and bounds are kept to the second.
  const bool moves = std::get<Policy>(options_.every) == Policy::kCoci || protects();
  const bool keeps = interval_ > 0 && !moves &&
                     std::fabs(choice.interval - interval_) <= kHysteresis * interval_;
  if (!keeps) interval_ = choice.interval;
  why_ = std::move(choice.why);
  next_ = anchor_ + interval_;
}

Scheduler::Choice Scheduler::choose() {
  switch (std::get<Policy>(options_.every)) {
    case Policy::kYoung: return {young(stall(), mtbf()), "young"};
    case Policy::kDaly: return {daly(stall(), mtbf()), "daly"};
    case Policy::kCheckfreq:
      return {checkfreq(stall(), persist(), steps_.step()), "checkfreq"};
    case Policy::kCoci: return choose_coci();
    case Policy::kAuto: return choose_auto();
  }
  return choose_auto();
}

// Makes the interval longer if the disk cannot keep up. A save must never begin before
// the previous one is durable.
Scheduler::Choice Scheduler::limit_interval(Choice choice) const {
  if (choice.interval < persist()) {
    choice.interval = persist();
    choice.why += ", as short as the time of a save allows";
  }
  const bool is_auto = std::get<Policy>(options_.every) == Policy::kAuto;
  return is_auto ? limit_writing(std::move(choice)) : choice;
}

// Auto's limits for what is written: bytes_a_day and duty. `longest` is how far an
// interval may be made longer for a limit that is not strict.
Scheduler::Choice Scheduler::limit_writing(Choice choice) const {
  const bool strict = protects() && failures_.failures() == 0;
  double longest = std::numeric_limits<double>::infinity();
  if (!strict) {
    longest = longest_within(choice.interval, stall(), danger(), options_.slack);
  }
  if (protects()) longest = std::min(longest, longest_safe().interval);
  const double daily = options_.bytes_a_day.value_or(kUsualBytes);
  const double seconds = static_cast<double>(bytes_) / daily * kSecondsPerDay;
  choice =
      lengthen(std::move(choice), at_least(seconds),
               options_.bytes_a_day ? std::numeric_limits<double>::infinity() : longest,
               fmt::format("at most {:g} GB are written a day", daily / 1e9));
  return lengthen(std::move(choice), at_least(persist() / options_.duty),
                  strict ? std::numeric_limits<double>::infinity() : longest,
                  fmt::format("a save is in flight at most {:g} % of the time",
                              options_.duty * 100));
}

// Makes the interval as long as `least`, but at most `longest`, so that `limit` holds.
Scheduler::Choice Scheduler::lengthen(Choice choice, double least, double longest,
                                      const std::string& limit) const {
  if (choice.interval >= std::min(least, longest)) return choice;
  choice.interval = std::min(least, longest);
  if (protects() && least <= longest) {
    choice.why = fmt::format("{}as often as can be if {}", kUnknown, limit);
  } else if (protects() && longest >= longest_safe().interval) {
    choice.why = longest_safe().why;
  } else if (least <= longest) {
    choice.why += ", made longer so that " + limit;
  } else {
    choice.why += fmt::format(
        ", made longer so that less is written, which costs {:g} "
        "% of wall time",
        options_.slack * 100);
  }
  return choice;
}

// The interval of least cost, but while no failure rate is known at most the one that
// bounds what can be lost.
Scheduler::Choice Scheduler::choose_auto() {
  if (options_.budget && !fit_) {
    const auto left =
        static_cast<double>(std::max<int64_t>(*options_.budget - saves_, 0));
    if (left == 0) {
      return {std::numeric_limits<double>::infinity(),
              fmt::format("auto: all {} saves are made", *options_.budget)};
    }
    return {remaining_work() / (left + 1),
            fmt::format("auto: {} of {} saves left", left, *options_.budget)};
  }
  Choice best = choose_best();
  if (!protects()) return best;
  Choice safe = choose_safe();
  return safe.interval < best.interval ? safe : best;
}

Scheduler::Choice Scheduler::choose_best() {
  const Objective aim = objective();
  if (aim == Objective::kDelay) return choose_delay("", mtbf());
  if (fit_) {
    if (auto choice = choose_by_curve(aim)) return *std::move(choice);
  }
  // Until a curve is known, every second has the same value, and a hard stop counts as
  // a failure.
  return choose_delay(
      fmt::format("delay, because {} has no falling curve yet, ", name_of(aim)),
      danger());
}

Scheduler::Choice Scheduler::choose_delay(std::string_view why, double danger) const {
  const std::string_view known = knows_rate() ? "auto: " : kUnknown;
  return {daly_exact(stall(), danger),
          fmt::format("{}{}the best for {}one failure in {}", known, why,
                      knows_rate() ? "" : "a guess of ", duration_text(danger))};
}

// The longest interval while no failure rate is known. What is lost in a failure is at
// most an interval, a step because saves are made at the end of a step, and the time
// until the save is durable.
Scheduler::Choice Scheduler::longest_safe() const {
  const double most = kMostLost - persist() - steps_.step();
  if (shortest_affordable().interval >= most) return shortest_affordable();
  return {most, fmt::format("{}at most {:g} min of work can be lost", kUnknown,
                            kMostLost / 60)};
}

// The shortest interval that protection may ask for while no failure rate is known. Time
// without failures makes the guessed failures rarer, and so this interval longer.
Scheduler::Choice Scheduler::shortest_affordable() const {
  const double best = daly_exact(stall(), danger());
  const double share = best > 0 ? stall() / best : 0;
  return {at_least(stall() / (share + kPriceOfUnknown)),
          fmt::format("{}stalls of {} are too long to save more often", kUnknown,
                      duration_text(stall()))};
}

// How much more stalls take at this interval than at the best one for the guessed rate.
std::string Scheduler::price_text(double interval) const {
  const double best = daly_exact(stall(), danger());
  if (!(best > 0) || !(interval > 0)) return "";
  const double price = stall() / interval - stall() / best;
  if (!(price > 1e-6)) return "";
  return fmt::format(", at a price of {:.2g} % of the time", 100 * price);
}

// Bounds what can be lost while no failure rate is known. Early in training the loss
// falls fast, so saves are denser then.
Scheduler::Choice Scheduler::choose_safe() const {
  const double done =
      failures_.exposure() / static_cast<double>(options_.workers) - (work_ - anchor_);
  const double early = std::max(kEarly * done, kShortest);
  if (early >= longest_safe().interval) return longest_safe();
  if (shortest_affordable().interval >= early) return shortest_affordable();
  return {early,
          fmt::format("{}early in training, at most a quarter of the work so far, "
                      "or {:g} s",
                      kUnknown, kShortest)};
}

Problem Scheduler::problem(const FittedCurve& fit, Objective aim) const {
  Problem p{.length = remaining_work(), .stall = stall(), .persist = persist()};
  p.step = steps_.step();
  p.mtbf = mtbf();
  p.objective = aim;
  p.curve = fit.curve.from(anchor_);
  // The price of a second is that of the whole run, so that it does not fall near the
  // end.
  const double end = anchor_ + p.length;
  p.second = std::max(losses_.first_loss() - fit.curve.loss(end), 0.0) / end;
  p.stops.rate = options_.stop_rate;
  p.stops.hard = options_.hard;
  if (options_.deadline) {
    const double left = *options_.deadline - since(anchor_time_);
    if (left > 0 && left < p.length) p.length = left;
    if (left > 0 && left <= p.length) p.stops.at = {{left, 1, options_.hard > 0}};
  }
  if (options_.budget) p.budget = std::max<int64_t>(*options_.budget - saves_, 0);
  const double danger = 1 / p.mtbf + p.stops.rate * p.stops.hard;
  const double usual = young(p.stall, 1 / danger);
  if (!p.budget && p.length > kFarthest * usual) {
    // After that, a second has the same value as at the end.
    p.length = kFarthest * usual;
    std::erase_if(p.stops.at, [&](const auto& stop) { return stop.time > p.length; });
  }
  const double intervals = p.length / usual;
  p.positions = static_cast<int64_t>(
      std::clamp(40 * intervals, kFewestPositions, kMostPositions));
  return p;
}

std::optional<Scheduler::Choice> Scheduler::choose_by_curve(Objective aim) {
  const Result<Grid> grid = Grid::build(problem(*fit_, aim));
  if (!grid.ok()) return std::nullopt;
  const Recommendation best =
      recommend_at_positions(*grid, 0, uneven_ ? kKeepUneven : kWorthUneven);
  uneven_ = best.uneven;
  if (best.schedule.times.empty()) {
    return Choice{best.interval, "auto: no further save pays"};
  }
  const std::string how =
      best.uneven ? fmt::format("{:.0f} % better than even saves", 100 * best.gain())
                  : "even saves";
  return Choice{best.interval, fmt::format("auto: {} on a {} curve, {}", name_of(aim),
                                           fit_->family, how)};
}

// The formula as published, with the curve that the losses so far give. It can ask for
// no further save at all. A job would then be unprotected, so the interval is at most
// kFarFromYoung times Young's, and the reason says so.
Scheduler::Choice Scheduler::choose_coci() {
  const double usual = young(stall(), mtbf());
  const auto fit = fit_ ? losses_.fit_decay() : std::nullopt;
  if (!fit)
    return {usual, "coci: Young's interval, because there is no falling curve yet"};
  const auto workers = static_cast<double>(options_.workers);
  const double step =
      coci_loss_step(-fit->rate * 60, 60 / mtbf(), stall() / 60, workers);
  const double loss = fit->loss(anchor_), longest = kFarFromYoung * usual;
  const double interval = step < loss ? -reproducible::log1p(-step / loss) / fit->rate
                                      : std::numeric_limits<double>::infinity();
  std::string why =
      fmt::format("coci: the loss falls by {:.3g} from {:.3g}", step, loss);
  if (workers > 1) why += fmt::format(", {} workers", options_.workers);
  if (interval <= longest) return {interval, std::move(why)};
  why += fmt::format(", which wants {}; held to {:g} times Young's interval",
                     std::isinf(interval) ? "no further save"
                                          : "a save after " + duration_text(interval),
                     kFarFromYoung);
  return {longest, std::move(why)};
}

std::string Scheduler::explain() const {
  if (!std::holds_alternative<Policy>(options_.every)) {
    return "every " + to_string(options_.every);
  }
  return fmt::format(
      "interval {} ({}; stall {}{}, durable after {}, MTBF {} from {:g} failures in "
      "{})",
      duration_text(interval_), why_, duration_text(stall()),
      costs_.stall_known() || before_.stall > 0 ? "" : " guessed",
      duration_text(persist()), duration_text(mtbf()), failures_.failures(),
      duration_text(failures_.exposure() / static_cast<double>(options_.workers)));
}

}  // namespace holdfast
