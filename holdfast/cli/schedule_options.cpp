// Reads the options of `interval` and `simulate` into a scheduling problem.
#include "holdfast/cli/schedule_options.h"

#include <cmath>

#include "holdfast/env/event_log.h"
#include "holdfast/inspect/list_runs.h"
#include "holdfast/inspect/open_any.h"
#include "holdfast/simulate/allocate.h"
#include "holdfast/schedule/learn.h"
#include "holdfast/schedule/loss_fit.h"
#include "holdfast/simulate/spec.h"
#include "holdfast/shard/step_name.h"

namespace holdfast {
namespace {

constexpr int64_t kFileLimit = 256 << 20;

// A file that was named in the call and is not found is a wrong call.
Error as_wrong_call(const Error& error) {
  return error.code() == ErrorCode::kNotFound ? error.as(ErrorCode::kInvalid) : error;
}

// Reads a file of losses. If a fitted curve explains the losses well, returns the fit,
// which removes their noise. Otherwise returns the losses themselves.
Result<Curve> read_losses(const Context& context, const std::string& path) {
  const std::string text = HOLDFAST_TRY(read_named_file(context, path));
  const Curve points = HOLDFAST_TRY(parse_curve_points(text, path));
  LossFit fit;
  for (const Curve::Piece& piece : points.pieces()) fit.add(piece.start, piece.first);
  if (const auto fitted = fit.fit(); fitted && fitted->confidence > 0.9) {
    return fitted->curve.from(0);
  }
  return points;
}

Result<Curve> read_curve(const Context& context, const std::string& text) {
  const bool spec = text.starts_with("exp:") || text.starts_with("power:") ||
                    text.starts_with("drops:");
  if (spec || !context.env.info(text).ok()) return parse_curve(text);
  return read_losses(context, text);
}

Result<void> read_time(const std::string& text, const char* name, double& into) {
  if (text.empty()) return {};
  into = HOLDFAST_TRY(parse_seconds(text, name));
  return {};
}

Result<void> read_times(const ScheduleArguments& a, Problem& p) {
  HOLDFAST_TRY(read_time(a.length, "--length", p.length));
  HOLDFAST_TRY(read_time(a.stall, "--stall", p.stall));
  HOLDFAST_TRY(read_time(a.persist, "--persist", p.persist));
  HOLDFAST_TRY(read_time(a.restart, "--restart", p.restart));
  HOLDFAST_TRY(read_time(a.step, "--step", p.step));
  HOLDFAST_TRY(read_time(a.mtbf, "--mtbf", p.mtbf));
  return read_time(a.price, "--price", p.price);
}

Result<void> read_stops(const ScheduleArguments& a, Problem& p) {
  if (!a.stop.empty()) {
    const double mean = HOLDFAST_TRY(parse_seconds(a.stop, "--stop"));
    if (!(mean > 0)) return invalid("--stop: {} s; expected more than 0", mean);
    p.stops.rate = 1 / mean;
  }
  if (!a.hard.empty()) p.stops.hard = HOLDFAST_TRY(parse_number(a.hard, "--hard"));
  if (a.graceful) p.stops.hard = 0;
  if (!a.rungs.empty()) p.stops.at = HOLDFAST_TRY(parse_stops(a.rungs, !a.graceful));
  if (a.deadline.empty()) return {};
  const double end = HOLDFAST_TRY(parse_seconds(a.deadline, "--deadline"));
  p.length = std::min(p.length, end);
  std::erase_if(p.stops.at, [&](const Stops::At& stop) { return stop.time >= end; });
  p.stops.at.push_back({end, 1, !a.graceful});
  return {};
}

bool may_stop(const Problem& p) { return p.stops.rate > 0 || !p.stops.at.empty(); }

Result<void> read_objective(const ScheduleArguments& a, ReadProblem& read) {
  Problem& p = read.problem;
  if (!a.objective.empty()) {
    p.objective = HOLDFAST_TRY(parse_objective(a.objective));
    read.why = "as asked";
    if (p.objective != Objective::kDelay && a.curves.empty()) {
      return invalid("objective {}: has no curve; expected --curve", a.objective);
    }
  } else if (may_stop(p) && !a.curves.empty()) {
    p.objective = Objective::kExplore;
    read.why = "because the job may be stopped";
  } else if (may_stop(p)) {
    return invalid(
        "--stop, --rungs and --deadline: have no curve, which says what is lost; "
        "expected --curve");
  } else {
    read.why = "because nothing stops the job early";
  }
  if (may_stop(p) && p.objective != Objective::kExplore) {
    return invalid(
        "objective {}: does not support --stop, --rungs and --deadline; expected "
        "explore",
        name_of(p.objective));
  }
  return {};
}

// The number of ranks that saved the newest step of the run. 1 if it has no step.
Result<int64_t> workers_of_run(const Context& context, const std::string& path) {
  const RunList list = HOLDFAST_TRY(list_runs(context.env, path));
  for (const RunView& run : list.runs) {
    for (const StepView& view : run.steps) return view.step.manifest.world;
  }
  return 1;
}

Result<void> read_curves(const Context& context, const ScheduleArguments& a,
                         Problem& p) {
  std::vector<Curve> curves;
  for (const std::string& text : a.curves) {
    curves.push_back(HOLDFAST_TRY(read_curve(context, text)));
  }
  if (!a.workers.empty()) {
    p.workers = HOLDFAST_TRY(parse_workers(a.workers));
  } else if (!a.run.empty() && !a.allocate) {
    const int64_t workers = HOLDFAST_TRY(workers_of_run(context, a.run));
    if (workers > 1) p.workers.phases = {{0, static_cast<double>(workers)}};
  }
  if (a.allocate) {
    if (!a.workers.empty())
      return invalid("--allocate and --workers: both are given; expected one of them");
    if (curves.empty())
      return invalid("--allocate: has no curves; expected the --curve of each job");
    AllocateOptions options;
    HOLDFAST_TRY(read_time(a.reallocate, "--reallocate", options.window));
    auto all = HOLDFAST_TRY(allocate_over(curves, *a.allocate, p.length, options));
    p.workers = std::move(all.front());
  } else if (curves.size() > 1) {
    return invalid("--curve: {} curves; expected one, or --allocate", curves.size());
  }
  if (!curves.empty()) {
    const bool one = p.workers.phases.empty() || p.steady();
    p.curve = one ? curves.front() : curves.front().paced(p.workers, 0.9);
  }
  return {};
}

// The event logs that the arguments name. Rank 0 schedules the saves of a run, so its
// log has all that is needed.
Result<std::vector<std::string>> event_files(const Context& context,
                                             const ScheduleArguments& a) {
  std::vector<std::string> out = a.events;
  if (a.run.empty()) return out;
  if (!is_run(context.env, a.run)) {
    return invalid("{}: is not a run directory; expected one with holdfast.json",
                   a.run);
  }
  out.push_back((Path(a.run) / event_log_name(0)).native());
  return out;
}

Result<void> read_event_files(const Context& context, const ScheduleArguments& a,
                              ReadProblem& read) {
  for (const std::string& path : HOLDFAST_TRY(event_files(context, a))) {
    const Result<EventLog> log = read_events(context.env, path);
    if (!log.ok()) return as_wrong_call(log.error());
    const Learned learned = learn(log->events);
    read.learned.failures += learned.failures;
    read.learned.recovered += learned.recovered;
    read.learned.worker_seconds += learned.worker_seconds;
    read.learned.stall = std::max(read.learned.stall, learned.stall);
    read.learned.persist = std::max(read.learned.persist, learned.persist);
  }
  return {};
}

}  // namespace

Result<std::string> read_named_file(const Context& context, const std::string& path) {
  Result<std::string> text = context.env.read_text(path, kFileLimit);
  if (!text.ok()) return as_wrong_call(text.error());
  return text;
}

Result<ReadProblem> read_problem(const Context& context, const ScheduleArguments& a) {
  ReadProblem read;
  Problem& p = read.problem;
  HOLDFAST_TRY(read_event_files(context, a, read));
  p.stall = read.learned.stall;
  p.persist = read.learned.persist;
  HOLDFAST_TRY(read_times(a, p));
  if (a.stall.empty() && read.learned.stall <= 0) {
    if (!a.run.empty()) {
      return invalid("{}: its events measure no save; expected --stall", a.run);
    }
    return invalid(
        "--stall: it is not known how long a save stops the job; expected --stall, "
        "--events or a run directory");
  }
  HOLDFAST_TRY(read_stops(a, p));
  HOLDFAST_TRY(check(Problem{.length = p.length, .mtbf = p.mtbf}));
  HOLDFAST_TRY(read_curves(context, a, p));
  const double workers = p.workers.at(0);
  read.mtbf_known = !a.mtbf.empty();
  FailureRate rate = read.mtbf_known
                         ? FailureRate(p.mtbf, 4)
                         : FailureRate::unknown(static_cast<int64_t>(workers));
  rate.exposed(read.learned.worker_seconds * workers);
  rate.failed(read.learned.failures);
  if (!(std::isinf(p.mtbf) && read.mtbf_known)) p.mtbf = 1 / rate.rate();
  if (!a.second.empty()) p.second = HOLDFAST_TRY(parse_number(a.second, "--second"));
  p.budget = a.budget;
  p.positions = a.positions.value_or(0);
  HOLDFAST_TRY(read_objective(a, read));
  HOLDFAST_TRY(check(p));
  return read;
}

std::vector<Option> schedule_options(ScheduleArguments& a) {
  return {
      {"RUN",
       "A run directory: its events give the stall, the persist time and the "
       "failures, its newest step the number of workers",
       &a.run},
      {"--length", "How much time the work of the job takes, such as 3h", &a.length},
      {"--stall", "How long a save stops the job, such as 200ms", &a.stall},
      {"--persist", "How long it takes after the stall until a save is durable",
       &a.persist},
      {"--restart", "How long the job takes to continue after a failure", &a.restart},
      {"--step", "How long a training step takes", &a.step},
      {"--mtbf",
       "Mean time between failures of one worker that need the checkpoint; without it "
       "a prior, corrected by --events",
       &a.mtbf},
      {"--workers", "The number of workers, or phases such as 8,30m:4,1h:1",
       &a.workers},
      {"--curve",
       "The loss over the work: exp:FIRST,TIME[,FLOOR], "
       "power:FIRST,TIME,EXPONENT[,FLOOR], drops:FIRST,START/FLOOR/TIME,... or a file "
       "of seconds and losses",
       &a.curves},
      {"--allocate",
       "Divide this many workers among the jobs of all --curve by what each gains, and "
       "schedule the first job",
       &a.allocate},
      {"--reallocate",
       "The time after which --allocate divides the workers again; by default 1m",
       &a.reallocate},
      {"--objective",
       "delay, progress, explore or priced",
       &a.objective,
       false,
       {"delay", "progress", "explore", "priced"}},
      {"--stop", "Mean time until the job is stopped early", &a.stop},
      {"--hard", "The share of these stops that come without notice; by default 1",
       &a.hard},
      {"--deadline", "The time at which the job is stopped", &a.deadline},
      {"--rungs", "The stops of a tuner: TIME/SHARE,...", &a.rungs},
      {"--graceful", "Stops leave time to save", &a.graceful},
      {"--price",
       "For the objective priced: what a save costs besides its stall, as a time",
       &a.price},
      {"--second",
       "For the objective explore: what a second of delay costs, in units of the loss; "
       "by default how much the loss falls in an average second",
       &a.second},
      {"--budget", "Make exactly this many saves", &a.budget},
      {"--events", "Event files of earlier runs, to learn costs and failures from",
       &a.events},
      {"--positions",
       "At how many points of the work a save may be made; by default as many as "
       "needed",
       &a.positions}};
}

}  // namespace holdfast
