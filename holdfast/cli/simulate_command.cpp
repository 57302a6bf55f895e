// `holdfast simulate`: simulates a job with failures and measures what schedules cost it.
#include <memory>

#include "holdfast/cli/command.h"
#include "holdfast/cli/json_report.h"
#include "holdfast/cli/schedule_report.h"
#include "holdfast/simulate/spec.h"

namespace holdfast {
namespace {

constexpr const char* kSimulateExample = R"(
Examples:
  holdfast simulate --length 3h --stall 5s --persist 15s --restart 1m --mtbf 2h
  holdfast simulate --stall 1s --mtbf 50d --workers 100000 --failures weibull:0.7,90d
  holdfast simulate runs/gpt          with the costs and failures that this run has seen
  holdfast simulate --stall 2s --mtbf 8h --failures trace:failures.txt --schedules young,10m

A schedule is given by the name of a policy (holdfast interval lists them), by a constant
interval, or by at:FILE with the seconds of work at which a run saved, one on each line. All
schedules meet the same failures. Differences to the first schedule are taken run by run,
with 95 % intervals. study/schedule.py compares policies for many jobs
(docs/studies/schedule.md).)";

struct SimulateArguments {
  ScheduleArguments job;
  std::string schedules = "young,optimal,even,daly,checkfreq";
  std::string failures = "exponential", stop_at;
  int64_t runs = 10000, seed = 1;
};

Result<FailureModel> read_failures(const Context& context, const std::string& text) {
  constexpr std::string_view kTrace = "trace:";
  if (!text.starts_with(kTrace)) return parse_failures(text);
  const std::string path = text.substr(kTrace.size());
  return parse_trace(HOLDFAST_TRY(read_named_file(context, path)), path);
}

Result<NamedSchedule> read_schedule(const Context& context, const Grid& grid,
                                    const std::string& name) {
  constexpr std::string_view kAt = "at:";
  if (name.starts_with(kAt)) {
    const std::string path = name.substr(kAt.size());
    const std::string text = HOLDFAST_TRY(read_named_file(context, path));
    return NamedSchedule{name, HOLDFAST_TRY(parse_schedule(text, path))};
  }
  const Result<const SchedulePolicy*> policy = find_policy(name);
  if (policy.ok()) return NamedSchedule{name, (*policy)->schedule(grid)};
  const Result<double> interval = parse_seconds(name, "--schedules");
  if (!interval.ok())
    return invalid(
        "--schedules: \"{}\"; expected an interval, at:FILE or a policy ({})", name,
        policy_names());
  if (!(*interval > 0))
    return invalid("--schedules: \"{}\"; expected an interval of more than 0 s", name);
  return NamedSchedule{name, every(*interval, grid.problem().length)};
}

Result<std::vector<NamedSchedule>> read_schedules(const Context& context,
                                                  const Grid& grid,
                                                  const std::string& names) {
  std::vector<NamedSchedule> out;
  for (size_t at = 0; at <= names.size();) {
    const size_t end = std::min(names.find(',', at), names.size());
    out.push_back(
        HOLDFAST_TRY(read_schedule(context, grid, names.substr(at, end - at))));
    at = end + 1;
  }
  return out;
}

Result<SimulationReport> make_simulation_report(const Context& context,
                                                const SimulateArguments& a) {
  SimulationReport report;
  report.read = HOLDFAST_TRY(read_problem(context, a.job));
  const Problem& problem = report.read.problem;
  report.failures = a.failures;
  report.options.runs = a.runs;
  report.options.seed = static_cast<uint64_t>(a.seed);
  report.options.failures = HOLDFAST_TRY(read_failures(context, a.failures));
  if (!a.stop_at.empty()) {
    report.options.stop_at = HOLDFAST_TRY(parse_seconds(a.stop_at, "--stop-at"));
  }
  const Grid grid = HOLDFAST_TRY(Grid::build(problem));
  const std::vector<NamedSchedule> schedules =
      HOLDFAST_TRY(read_schedules(context, grid, a.schedules));
  report.schedules = HOLDFAST_TRY(simulate(problem, schedules, report.options));
  for (const NamedSchedule& each : schedules) {
    const bool fits = report.options.failures.kind == FailureModel::Kind::kExponential;
    const auto expected = expected_time(problem, each.schedule);
    report.expected.push_back(
        fits && expected ? std::optional(*expected - problem.length) : std::nullopt);
  }
  return report;
}

}  // namespace

Verb simulate_verb() {
  auto arguments = std::make_shared<SimulateArguments>();
  SimulateArguments& a = *arguments;
  std::vector<Option> options = schedule_options(a.job);
  options.insert(
      options.end(),
      {{"--schedules",
        "Policies, intervals or at:FILE, separated by commas; differences are to the "
        "first",
        &a.schedules},
       {"--failures",
        "exponential, weibull[:SHAPE[,AGE]], trace:FILE, never, once[:SHARE], "
        "every:TIME[,PHASE]",
        &a.failures},
       {"--runs", "How many runs are simulated", &a.runs},
       {"--seed", "The seed; the same seed gives the same figures on any machine",
        &a.seed},
       {"--stop-at", "Stop every run at this time", &a.stop_at}});
  return {
      .name = "simulate",
      .summary = "Simulate what schedules cost a job under failures",
      .footer = kSimulateExample,
      .options = std::move(options),
      .run = [arguments](const Context& context) -> Result<ExitCode> {
        const SimulationReport report =
            HOLDFAST_TRY(make_simulation_report(context, *arguments));
        if (context.json) {
          print_json(context.out, report);
        } else {
          context.out << simulation_text(report);
        }
        return ExitCode::kDone;
      },
  };
}

}  // namespace holdfast
