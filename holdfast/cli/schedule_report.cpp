#include "holdfast/cli/schedule_report.h"

#include <algorithm>
#include <cmath>

#include "holdfast/cli/text.h"

namespace holdfast {
namespace {

constexpr double kBarWidth = 40;

// The cost is a time if the objective is delay, and a loss otherwise.
std::string cost_text(const Problem& problem, double cost) {
  if (problem.objective == Objective::kDelay) return human_seconds(cost);
  return human_figure(cost);
}

// "+3.1 %".
std::string signed_percent(double share) { return signed_tenths(100 * share) + " %"; }

std::string workers_text(const Workers& workers) {
  if (workers.phases.empty()) return "";
  std::string out = fmt::format("; workers {:g}", workers.at(0));
  const size_t shown = std::min<size_t>(workers.phases.size(), 6);
  for (size_t i = 1; i < shown; ++i) {
    out += fmt::format(", {:g} from {}", workers.phases[i].count,
                       human_seconds(workers.phases[i].start));
  }
  return workers.phases.size() > shown ? out + ", ..." : out;
}

// What the failure rate is known from, if not from --mtbf alone.
std::string prior_text(const ReadProblem& read) {
  const Learned& seen = read.learned;
  if (seen.worker_seconds > 0) {
    const std::string more =
        seen.recovered > 0 ? fmt::format("; {:g} more without one", seen.recovered)
                           : "";
    return fmt::format(" ({}, corrected by {:g} {} in {} that the events show{})",
                       read.mtbf_known ? "--mtbf" : "a prior", seen.failures,
                       seen.failures == 1 ? "failure" : "failures",
                       human_seconds(seen.worker_seconds), more);
  }
  return read.mtbf_known ? "" : " (a prior: --mtbf, --events or a run know better)";
}

std::string job_text(const ReadProblem& read) {
  const Problem& p = read.problem;
  return fmt::format(
      "job: {} of work; a save stalls it {} and is durable {} later; restart {}{}\n"
      "failures that need the checkpoint: one in {}{}\n"
      "objective: {}, {}\n",
      human_seconds(p.length), human_seconds(p.stall), human_seconds(p.persist),
      human_seconds(p.restart), workers_text(p.workers),
      human_seconds(1 / p.mean_failure_rate()), prior_text(read), name_of(p.objective),
      read.why);
}

std::string gap_text(const Problem& problem, const Schedule& schedule, bool last) {
  const auto& t = schedule.times;
  if (t.empty()) return "-";
  if (!last) return human_seconds(t.front());
  return human_seconds(problem.length - t.back());
}

// Says which rule has chosen the recommended schedule, and what the schedule costs.
std::string rule_text(const IntervalReport& report) {
  const Recommendation& best = report.best;
  const Problem& p = report.read.problem;
  const std::string costs =
      fmt::format("; it costs {}, the least is {}", cost_text(p, best.cost),
                  cost_text(p, best.optimum));
  if (best.allowed == 0 || best.even > best.optimum + best.allowed) {
    return "the best of all even intervals" + costs;
  }
  const bool time = p.objective == Objective::kDelay;
  const double whole = time ? p.length : p.curve.drop(0, p.length);
  return fmt::format(
      "the {} that costs at most\n{:g} % of the {} ({}) more than the least{}",
      best.schedule.times.empty() ? "only choice without saves"
                                  : "longest even interval",
      100 * best.allowed / whole, time ? "work" : "fall of the loss",
      cost_text(p, best.allowed), costs);
}

// The times of an uneven schedule, in lines of at most 80 characters.
std::string times_text(const Schedule& schedule) {
  constexpr size_t kMost = 200, kWidth = 80;
  const auto& t = schedule.times;
  double shortest = t.front();
  for (size_t k = 1; k < t.size(); ++k) shortest = std::min(shortest, t[k] - t[k - 1]);
  std::string out = "save after this much work (h:mm:ss):\n", line = " ";
  for (size_t k = 0; k < std::min(t.size(), kMost); ++k) {
    const std::string text = " " + human_work_clock(t[k], shortest < 20);
    if (line.size() + text.size() > kWidth) out += line + "\n", line = " ";
    line += text;
  }
  out += line + "\n";
  if (t.size() <= kMost) return out;
  return out + fmt::format("  and {} more: --json lists all\n",
                           human_count(static_cast<int64_t>(t.size() - kMost)));
}

std::string answer_text(const IntervalReport& report) {
  const Recommendation& best = report.best;
  const Problem& p = report.read.problem;
  if (best.schedule.times.empty()) {
    return fmt::format("do not save: {}\n", rule_text(report));
  }
  const size_t count = best.schedule.times.size();
  if (!best.uneven) {
    return fmt::format("save every {} ({} times): {}\n", human_seconds(best.interval),
                       count, rule_text(report));
  }
  return fmt::format(
      "save {} times, the first after {}: costs {}, which is {:.1f} % less than the "
      "best "
      "even schedule{}\n{}",
      count, human_seconds(best.interval), cost_text(p, best.cost),
      100 * std::max(best.gain(), 0.0),
      p.budget ? " with as many saves" : "", times_text(best.schedule));
}

void add_row(const IntervalReport& report, std::string_view name,
             const Schedule& schedule, double cost, Table& table) {
  const Problem& p = report.read.problem;
  const double least = report.best.optimum;
  table.add({std::string(name),
             human_count(static_cast<int64_t>(schedule.times.size())),
             gap_text(p, schedule, false), gap_text(p, schedule, true),
             cost_text(p, cost), least > 0 ? signed_percent(cost / least - 1) : "-"});
}

std::string policies_text(const IntervalReport& report) {
  const Problem& p = report.read.problem;
  Table table;
  table.add({"policy", "saves", "first gap", "last gap", "cost", "above the best"});
  add_row(report, "recommended", report.best.schedule, report.best.cost, table);
  const bool falls = p.curve.drop(0, p.length) > 0;
  for (const Comparison::Row& row : report.all.rows) {
    const std::string_view name = row.policy->name();
    const bool by_loss = name.starts_with("coci") || name == "equal-progress";
    if (!by_loss || falls) add_row(report, name, row.schedule, row.cost, table);
  }
  return table.text();
}

// How exact the costs are. First-order costs count each failure as if it were the only
// one near it.
std::string exactness_text(const IntervalReport& report) {
  if (report.exact)
    return "costs are the exact expectation for any number of failures\n";
  const Problem& p = report.read.problem;
  const double mtbf = 1 / p.mean_failure_rate();
  std::string out = "costs are exact to the first order in the failure rate";
  if (has_few_stalls(p)) {
    out += fmt::format(
        ". A failure comes every {:.0f} stalls:\nbelow {:g} stalls a schedule with "
        "more saves, "
        "such as daly-exact, can cost less than this optimum",
        mtbf / p.stall, kManyStalls);
  }
  return out + "\n";
}

// Both costs are compared with the least cost at that failure rate, so they can be
// compared with each other.
std::string sensitivity_text(const IntervalReport& report) {
  const Problem& p = report.read.problem;
  Table table;
  table.add({"failures", report.best.uneven ? "first gap" : "interval", "saves", "cost",
             "above best", "this schedule", "above best"});
  for (const auto& [factor, best, kept] : report.sensitivity) {
    const auto above = [&, least = best.optimum](double cost) {
      return least > 0 ? signed_percent(cost / least - 1) : "-";
    };
    table.add({factor == 1  ? "as given"
               : factor < 1 ? fmt::format("{:g} x as frequent", 1 / factor)
                            : fmt::format("{:g} x as rare", factor),
               best.schedule.times.empty() ? "-" : human_seconds(best.interval),
               human_count(static_cast<int64_t>(best.schedule.times.size())),
               cost_text(p, best.cost), above(best.cost), cost_text(p, kept),
               above(kept)});
  }
  return "what the same rule recommends at other failure rates, and what this\n"
         "schedule costs there\n" +
         table.text();
}

std::string chart_text(const IntervalReport& report) {
  Table table("rrl");
  double most = 0;
  for (const auto& [interval, cost] : report.curve) most = std::max(most, cost);
  table.add({"even interval", "cost", ""});
  for (const auto& [interval, cost] : report.curve) {
    table.add({human_seconds(interval), cost_text(report.read.problem, cost),
               bar(most > 0 ? cost / most : 0)});
  }
  return table.text();
}

void put_problem(FieldWriter& field, const ReadProblem& read) {
  const Problem& p = read.problem;
  field.object("job", [&](FieldWriter& job) {
    job("length", p.length);
    job("stall", p.stall);
    job("persist", p.persist);
    job("restart", p.restart);
    job("mtbf", 1 / p.mean_failure_rate());
    job("mtbf_is_prior", !read.mtbf_known);
    job.list("workers", p.workers.phases,
             [](FieldWriter& each, const Workers::Phase& phase) {
               each("start", phase.start);
               each("count", phase.count);
             });
    job("objective", name_of(p.objective));
    job("why", read.why);
  });
}

void put_summary(FieldWriter& field, const std::string& key, const Summary& summary) {
  field.object(key, [&](FieldWriter& each) {
    each("mean", summary.mean);
    each("ci95", summary.half);
    each("median", summary.median);
  });
}

std::string with_interval(double mean, double half) {
  if (half < 10) return fmt::format("{} +- {:.2g}", human_figure(mean), half);
  return fmt::format("{} +- {}", human_figure(mean), human_count(std::llround(half)));
}

// The mean difference to the first schedule, in percent of the first schedule's mean.
std::string against(const SimulatedSchedule& schedule, const SimulatedSchedule& first,
                    Metric metric) {
  const double base = first.at(metric).mean;
  if (!(base > 0) || &schedule == &first) return "-";
  const Summary& d = schedule.difference(metric);
  return fmt::format("{} +- {:.1f} %", signed_tenths(100 * d.mean / base),
                     100 * d.half / base);
}

std::vector<Metric> shown_metrics(const SimulationReport& report) {
  const Problem& p = report.read.problem;
  std::vector<Metric> out{Metric::kTime};
  if (!p.steady()) out.push_back(Metric::kWorkerSeconds);
  if (p.curve.drop(0, p.length) > 0) out.push_back(Metric::kProgress);
  if (p.objective == Objective::kPriced) out.push_back(Metric::kPriced);
  if (p.curve.drop(0, p.length) > 0 && (report.options.stop_at || p.stops.rate > 0)) {
    out.insert(out.end(),
               {Metric::kProgressUntilStop, Metric::kInHand, Metric::kDurable});
  }
  return out;
}

const char* metric_title(Metric metric) {
  switch (metric) {
    case Metric::kTime: return "overhead, s";
    case Metric::kWorkerSeconds: return "overhead, worker-s";
    case Metric::kProgress: return "fall of the loss that stalls and rollbacks cost";
    case Metric::kPriced:
      return "fall of the loss that rollbacks cost, and the price of saves";
    case Metric::kProgressUntilStop:
      return "fall of the loss that stalls and rollbacks cost until the stop";
    case Metric::kInHand:
      return "fall of the loss that is missing in memory at the stop";
    case Metric::kDurable:
      return "fall of the loss that is missing in the durable state at the stop";
  }
  return "";
}

std::string metric_text(const SimulationReport& report, Metric metric) {
  Table table("lrrrrl");
  const std::string first = "against " + report.schedules.front().name;
  table.add({"schedule", "saves", "mean", "median", first, ""});
  double most = 0;
  for (const SimulatedSchedule& schedule : report.schedules)
    most = std::max(most, schedule.at(metric).mean);
  for (const SimulatedSchedule& schedule : report.schedules) {
    const Summary& s = schedule.at(metric);
    table.add({printable(schedule.name), human_count(schedule.scheduled_saves),
               with_interval(s.mean, s.half), human_figure(s.median),
               against(schedule, report.schedules.front(), metric),
               bar(most > 0 ? s.mean / most : 0)});
  }
  return fmt::format("{}\n{}", metric_title(metric), table.text());
}

std::string check_text(const SimulationReport& report) {
  std::string out;
  for (size_t i = 0; i < report.schedules.size(); ++i) {
    if (!report.expected[i]) continue;
    const Summary& s = report.schedules[i].at(Metric::kTime);
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", report.schedules[i].name,
                       human_figure(*report.expected[i]));
    if (std::fabs(s.mean - *report.expected[i]) > 2.2 * s.half) out += " (outside)";
  }
  return out.empty() ? "" : "expected overhead by the closed form, s: " + out + "\n";
}

}  // namespace

std::string bar(double share) {
  const double width = std::clamp(share, 0.0, 1.0) * kBarWidth;
  return std::string(static_cast<size_t>(std::lround(width)), '#');
}

std::string interval_text(const IntervalReport& report) {
  std::string out =
      job_text(report.read) + "\n" + answer_text(report) + "\n" + policies_text(report);
  out += fmt::format(
      "the optimal schedule costs {:.2f} % less than the best even "
      "schedule\n{}\n",
      100 * std::max(report.best.gain(), 0.0), exactness_text(report));
  if (!report.sensitivity.empty()) out += sensitivity_text(report) + "\n";
  return report.curve.empty() ? out : out + chart_text(report);
}

void put_members(FieldWriter& field, const IntervalReport& report) {
  put_problem(field, report.read);
  field("interval", report.best.interval);
  field("uneven", report.best.uneven);
  field("times", report.best.schedule.times);
  field("cost", report.best.cost);
  field("slack", report.best.allowed);
  field("optimum", report.best.optimum);
  field("exact", report.exact);
  field("best_even", report.best.even);
  field("gain", report.best.gain());
  field.list("policies", report.all.rows,
             [](FieldWriter& each, const Comparison::Row& row) {
               each("policy", row.policy->name());
               each("about", row.policy->about());
               each("cost", row.cost);
               each("times", row.schedule.times);
             });
  field.list("sensitivity", report.sensitivity,
             [](FieldWriter& each, const IntervalReport::Sensitive& one) {
               const Recommendation& best = one.best;
               each("mtbf_factor", one.factor);
               each("interval", best.interval);
               each("saves", best.schedule.times.size());
               each("cost", best.cost);
               each("optimum", best.optimum);
               each("kept", one.kept);
               each("loss", best.optimum > 0 ? one.kept / best.optimum - 1 : 0);
             });
}

std::string simulation_text(const SimulationReport& report) {
  std::string out = job_text(report.read);
  out += fmt::format("{} runs, failures {}, seed {}; {:.2f} failures a run\n\n",
                     human_count(report.options.runs), report.failures,
                     report.options.seed, report.schedules.front().failures);
  for (const Metric metric : shown_metrics(report)) {
    out += metric_text(report, metric) + "\n";
  }
  out += check_text(report);
  for (const SimulatedSchedule& schedule : report.schedules) {
    if (schedule.unfinished == 0) continue;
    out += fmt::format("{}: {} runs were given up after 10,000 failures\n",
                       schedule.name, schedule.unfinished);
  }
  return out;
}

void put_members(FieldWriter& field, const SimulationReport& report) {
  put_problem(field, report.read);
  field("runs", report.options.runs);
  field("seed", report.options.seed);
  field("failure_model", report.failures);
  size_t i = 0;
  field.list("schedules", report.schedules,
             [&](FieldWriter& each, const SimulatedSchedule& schedule) {
               each("schedule", schedule.name);
               each("scheduled_saves", schedule.scheduled_saves);
               each("saves", schedule.saves);
               each("failures", schedule.failures);
               each("stalled", schedule.stalled);
               each("redone", schedule.redone);
               each("unfinished", schedule.unfinished);
               for (const Metric metric : shown_metrics(report)) {
                 const std::string name(name_of(metric));
                 put_summary(each, name, schedule.at(metric));
                 put_summary(each, name + "_against_first", schedule.difference(metric));
               }
               const std::optional<double>& expected = report.expected[i++];
               if (expected) each("expected_time", *expected);
             });
}

}  // namespace holdfast
