// `holdfast interval`: how often to save, and why.
#include <fmt/ostream.h>

#include <cmath>
#include <memory>

#include "holdfast/cli/command.h"
#include "holdfast/cli/json_report.h"
#include "holdfast/cli/log_report.h"
#include "holdfast/cli/schedule_report.h"
#include "holdfast/cli/text.h"
#include "holdfast/simulate/spec.h"

namespace holdfast {
namespace {

constexpr const char* kIntervalExample = R"(
Examples:
  holdfast interval --stall 200ms --persist 5s --mtbf 8h
  holdfast interval --stall 5s --length 3h --mtbf 2h --curve power:2.3,3m,0.8,0.02 --stop 90m
  holdfast interval --tier memory,50ms,1s,6h disk,1s,10s,2d remote,4s,5m,60d
  holdfast interval runs/gpt          with the costs and failures that this run has seen
  holdfast interval runs/gpt --mtbf 30d --length 10d
  holdfast interval runs/gpt --log-budget 40GiB     which messages of pipeline stages to log

Objectives: delay counts the time until the job is finished. explore counts the progress
that is lost if the job is stopped early. progress counts the loss reduction that stalls
and rollbacks cost. priced adds a price for each save.)";

struct IntervalArguments {
  ScheduleArguments job;
  std::vector<std::string> tiers;
  std::string slack = "0";
  LogArguments log;
};

// What the same rule recommends for another failure rate. The recommendation is even if
// that of the report is even, so that the intervals can be compared.
Result<IntervalReport::Sensitive> recommend_for_other_mtbf(const IntervalReport& report,
                                                           double slack,
                                                           double factor) {
  constexpr double kAlways = -1, kNever = 2;
  Problem other = report.read.problem;
  other.mtbf *= factor;
  const Grid grid = HOLDFAST_TRY(Grid::build(other));
  return IntervalReport::Sensitive{
      factor, recommend(grid, slack, report.best.uneven ? kAlways : kNever),
      grid.cost(report.best.schedule)};
}

// Adds the costs of even intervals around the best one, for the chart.
void add_curve(const Grid& grid, IntervalReport& report) {
  const double middle = report.best.interval;
  double interval = middle / 8 / 1.5;
  for (int i = 0; i < 11; ++i) {
    interval *= 1.5;
    if (interval < grid.cell() * 4 || interval > grid.problem().length) continue;
    report.curve.emplace_back(interval,
                              grid.cost(every(interval, grid.problem().length)));
  }
}

Result<IntervalReport> make_interval_report(const Context& context,
                                            const IntervalArguments& arguments) {
  IntervalReport report;
  report.read = HOLDFAST_TRY(read_problem(context, arguments.job));
  const double slack = HOLDFAST_TRY(parse_number(arguments.slack, "--slack"));
  if (!(slack >= 0 && slack <= 1)) {
    return invalid("--slack: {}; expected a share of 0 to 1", slack);
  }
  const Grid grid = HOLDFAST_TRY(Grid::build(report.read.problem));
  report.exact = grid.exact();
  report.best = recommend(grid, slack);
  report.all = compare(grid);
  if (std::isfinite(report.read.problem.mtbf) && !report.best.schedule.times.empty()) {
    for (const double factor : {0.25, 0.5, 1.0, 2.0, 4.0}) {
      report.sensitivity.push_back(
          HOLDFAST_TRY(recommend_for_other_mtbf(report, slack, factor)));
    }
    add_curve(grid, report);
  }
  return report;
}

// Reports the interval of each storage tier, from the nearest tier to the farthest.
Result<void> report_tiers(const Context& context, const IntervalArguments& arguments) {
  std::vector<TierCost> tiers;
  for (const std::string& text : arguments.tiers) {
    tiers.push_back(HOLDFAST_TRY(parse_tier(text)));
  }
  const auto intervals = HOLDFAST_TRY(tier_intervals(tiers));
  if (context.json) {
    size_t i = 0;
    print_json(context.out, [&](FieldWriter& field) {
      field.list("tiers", intervals, [&](FieldWriter& each, const auto& interval) {
        each("tier", tiers[i++].name);
        each("interval", interval.interval);
        each("each", interval.each);
        each("overhead", interval.overhead);
      });
    });
    return {};
  }
  Table table;
  table.add({"tier", "interval", "every n-th save", "overhead"});
  for (size_t i = 0; i < tiers.size(); ++i) {
    table.add({printable(tiers[i].name), human_seconds(intervals[i].interval),
               human_count(intervals[i].each),
               fmt::format("{:.3f} %", 100 * intervals[i].overhead)});
  }
  context.out << table.text();
  return {};
}

// Prints what was asked for: borders to log, intervals of tiers, or one interval.
Result<ExitCode> interval(const Context& context, const IntervalArguments& arguments) {
  if (!arguments.log.budget.empty()) {
    HOLDFAST_TRY(report_log(context, arguments.job.run, arguments.log));
  } else if (!arguments.tiers.empty()) {
    HOLDFAST_TRY(report_tiers(context, arguments));
  } else {
    const IntervalReport report = HOLDFAST_TRY(make_interval_report(context, arguments));
    if (context.json) {
      print_json(context.out, report);
    } else {
      context.out << interval_text(report);
    }
  }
  return ExitCode::kDone;
}

}  // namespace

Verb interval_verb() {
  auto arguments = std::make_shared<IntervalArguments>();
  std::vector<Option> options = schedule_options(arguments->job);
  options.push_back(
      {"--slack",
       "For fewer saves: the longest even interval that costs at most this share of "
       "the work (of the fall of the loss, if the objective is a loss) more than the "
       "least cost",
       &arguments->slack});
  options.push_back(
      {"--tier",
       "NAME,STALL,PERSIST,MTBF of each storage tier, nearest first: prints an "
       "interval for each tier instead",
       &arguments->tiers});
  options.push_back(
      {"--log-budget",
       "Bytes for the messages that ranks of `holdfast launch` keep between two saves: "
       "prints which borders between pipeline stages to log, and what a loss costs, by "
       "the events of the run",
       &arguments->log.budget});
  options.push_back({"--log-limit", "With --log-budget: bytes that one rank may keep",
                     &arguments->log.host_limit});
  options.push_back(
      {"--log-steps", "With --log-budget: steps between two saves", &arguments->log.steps});
  options.push_back({"--log-bandwidth",
                     "With --log-budget: bytes a second between two ranks (1250MB)",
                     &arguments->log.bandwidth});
  return {
      .name = "interval",
      .summary = "Recommend how often to save, and explain why",
      .footer = kIntervalExample,
      .options = std::move(options),
      .run = [arguments](const Context& c) { return interval(c, *arguments); },
  };
}

}  // namespace holdfast
