#include "holdfast/cli/study_cells.h"

#include <algorithm>
#include <cmath>

#include "holdfast/schedule/allocate.h"
#include "holdfast/schedule/intervals.h"
#include "holdfast/schedule/reproducible_math.h"

namespace holdfast {
namespace {

using Kind = FailureModel::Kind;

constexpr double kMinute = 60, kHour = 3600;
constexpr std::array<double, 5> kStalls{0.13, 0.3, 0.6, 1.0, 1.6};
constexpr std::array<double, 4> kRates{0.00024, 0.00104, 0.00208, 0.00417};
constexpr std::array<double, 5> kThetas{-0.01, -0.02, -0.05, -0.1, -0.2};
constexpr double kInjection = 5.103 * kMinute;
constexpr std::array<const char*, 7> kPlans{
    "young", "coci", "checkfreq", "daly-exact", "even", "equal-progress", "optimal"};

Problem hour(double stall, double rate, double theta1) {
  Problem p{.length = 60 * kMinute, .stall = stall, .step = 0.25};
  p.mtbf = kMinute / rate;
  p.curve = Curve::exponential(1, -theta1 / kMinute).value();
  p.objective = Objective::kProgress;
  return p;
}

SimulateOptions options_of(Scenario scenario) {
  SimulateOptions out{.runs = 400, .seed = 20231};
  switch (scenario) {
    case Scenario::kPoisson: out.runs = 20000; break;
    case Scenario::kNone:
      out.runs = 1;
      out.failures.kind = Kind::kNever;
      break;
    case Scenario::kOnce: out.failures.kind = Kind::kOnce; break;
    case Scenario::kFirst10: out.failures = {.kind = Kind::kOnce, .share = 0.1}; break;
    case Scenario::kFirst25: out.failures = {.kind = Kind::kOnce, .share = 0.25}; break;
    case Scenario::kInjected:
      out.failures = {.kind = Kind::kEvery, .period = kInjection};
      out.runs = 200;
      break;
    case Scenario::kStop25:
      out.runs = 20000;
      out.stop_at = 15 * kMinute;
      break;
  }
  return out;
}

Result<std::vector<Contestant>> plans_of(const Grid& grid) {
  std::vector<Contestant> out;
  for (const char* name : kPlans) {
    const Planner* planner = HOLDFAST_TRY(find_planner(name));
    out.push_back({name, planner->plan(grid)});
  }
  return out;
}

Result<StudyCell> measure(double stall, double rate, double theta1) {
  const Problem problem = hour(stall, rate, theta1);
  const Grid grid = HOLDFAST_TRY(Grid::build(problem));
  StudyCell cell{stall, rate, theta1, HOLDFAST_TRY(plans_of(grid)), {}, {}};
  for (const Contestant& plan : cell.plans) {
    cell.expected.push_back(grid.cost(plan.schedule));
  }
  for (size_t s = 0; s < kScenarios; ++s) {
    cell.seen[s] = HOLDFAST_TRY(
        simulate(problem, cell.plans, options_of(static_cast<Scenario>(s))));
  }
  return cell;
}

// By how many standard deviations a normal value exceeds its mean, on either side, with
// the probability 0.05 / comparisons. Computed from the leading terms of the inverse
// tail.
double corrected_deviations(int64_t comparisons) {
  using reproducible::log;
  const double log_odds = 2 * log(2 * static_cast<double>(comparisons) / 0.05);
  return std::sqrt(log_odds - log(log_odds) - log(2 * M_PI) + 0.5);
}

struct Own {
  Objective objective;
  Metric metric;
  const char* measured;
};

Problem own_problem(const Own& own, double stall, double rate, double theta1) {
  Problem p = hour(stall, rate, theta1);
  p.objective = own.objective;
  if (own.objective == Objective::kPriced) p.price = 5;
  if (own.objective == Objective::kExplore) {
    p.stops.rate = 1 / (30 * kMinute);
    p.second = 0;
  }
  return p;
}

void judge(const std::vector<Simulated>& seen, const Own& own, double deviations,
           OwnObjective& out) {
  const Simulated& best = seen.front();
  const double base = best.at(own.metric).mean;
  for (size_t i = 1; i < seen.size(); ++i) {
    ++out.comparisons;
    const Summary& difference = seen[i].difference(own.metric);
    const double excess = -difference.mean / base;
    const double corrected = difference.half / 1.96 * deviations / base;
    if (excess > std::max(0.005, corrected)) ++out.beaten;
    if (excess > out.worst) out.worst = excess, out.worst_ci = corrected;
  }
}

constexpr std::array<Own, 4> kOwn{
    {{Objective::kDelay, Metric::kTime, "wall time beyond the work"},
     {Objective::kProgress, Metric::kProgress, "loss not taken off"},
     {Objective::kExplore, Metric::kDurable,
      "loss missing from what is durable at a stop (30 min in the mean, none "
      "graceful)"},
     {Objective::kPriced, Metric::kPriced,
      "loss of rollbacks, and of saves at 5 s each besides their stall"}}};

Result<OwnObjective> own_objective(const Own& own, double deviations) {
  OwnObjective out{.objective = std::string(name_of(own.objective)),
                   .measured = own.measured};
  for (const double stall : kStalls) {
    for (const double rate : {kRates[0], kRates[3]}) {
      for (const double theta1 : {kThetas[0], kThetas[2], kThetas[4]}) {
        const Problem problem = own_problem(own, stall, rate, theta1);
        const Grid grid = HOLDFAST_TRY(Grid::build(problem));
        std::vector<Contestant> plans = HOLDFAST_TRY(plans_of(grid));
        std::rotate(plans.begin(), plans.end() - 1,
                    plans.end());  // the optimal plan comes first
        judge(HOLDFAST_TRY(simulate(problem, plans, {.runs = 30000, .seed = 5})), own,
              deviations, out);
      }
    }
  }
  return out;
}

std::string phases_text(const Workers& workers) {
  std::string out;
  for (const Workers::Phase& phase : workers.phases) {
    if (out.size() > 24)
      return out + "-...-" + fmt::format("{:g}", workers.phases.back().count);
    out += fmt::format("{}{:g}", out.empty() ? "" : "-", phase.count);
  }
  return out;
}

Workers halving(double workers, int64_t phases, double length) {
  Workers out;
  for (int64_t i = 0; i < phases; ++i, workers /= 2) {
    const double start = length * static_cast<double>(i) / static_cast<double>(phases);
    out.phases.push_back({start, workers});
  }
  return out;
}

// Simulates a job whose number of workers shrinks. The same interval rules are given
// the failure rate of one worker, of the most workers and of the mean number of
// workers.
Result<ShrinkingJob> shrinking(const Workers& workers, double mtbf, double stall) {
  Problem p{.length = 2 * kHour, .stall = stall, .mtbf = mtbf, .workers = workers};
  const Grid grid = HOLDFAST_TRY(Grid::build(p));
  const double mean = workers.until(p.length) / p.length;
  const auto constant = [&](double count) {
    return every(young(stall, mtbf / count), p.length);
  };
  const std::vector<Contestant> plans{
      {"young, one worker's MTBF", constant(1)},
      {"young, most workers", constant(workers.at(0))},
      {"young, mean workers", constant(mean)},
      {"checkfreq", every(checkfreq(stall, 3 * stall, 0.25), p.length)},
      {"even", best_even(grid)},
      {"optimal", HOLDFAST_TRY(find_planner("optimal"))->plan(grid)}};
  return ShrinkingJob{
      phases_text(workers),
      fmt::format("MTBF {:g} h a worker, stall {:g} s", mtbf / kHour, stall),
      HOLDFAST_TRY(simulate(p, plans, {.runs = 1500, .seed = 3}))};
}

}  // namespace

const Simulated& StudyCell::at(Scenario scenario, std::string_view plan) const {
  const auto& all = seen[static_cast<size_t>(scenario)];
  const auto found = std::ranges::find_if(
      all, [&](const Simulated& each) { return each.name == plan; });
  HOLDFAST_CHECK(found != all.end(), "no plan {}", plan);
  return *found;
}

double StudyCell::expected_change(std::string_view plan, std::string_view other) const {
  const auto cost = [&](std::string_view name) {
    const auto found = std::ranges::find(plans, name, &Contestant::name);
    return expected[static_cast<size_t>(found - plans.begin())];
  };
  return cost(plan) / cost(other) - 1;
}

double StudyCell::change(Scenario scenario, std::string_view plan,
                         std::string_view other, Metric metric) const {
  if (metric == Metric::kProgress) metric = progress_of(scenario);
  return at(scenario, plan).at(metric).mean / at(scenario, other).at(metric).mean - 1;
}

Metric progress_of(Scenario scenario) {
  return scenario == Scenario::kStop25 ? Metric::kProgressUntilStop : Metric::kProgress;
}

Result<std::vector<StudyCell>> study_cells() {
  std::vector<StudyCell> out;
  for (const double stall : kStalls) {
    for (const double rate : kRates) {
      for (const double theta1 : kThetas) {
        out.push_back(HOLDFAST_TRY(measure(stall, rate, theta1)));
      }
    }
  }
  return out;
}

Result<std::vector<OwnObjective>> study_own_objectives() {
  const int64_t comparisons = std::ssize(kOwn) * 5 * 2 * 3 * (std::ssize(kPlans) - 1);
  std::vector<OwnObjective> out;
  for (const Own& own : kOwn) {
    out.push_back(HOLDFAST_TRY(own_objective(own, corrected_deviations(comparisons))));
  }
  return out;
}

Result<std::vector<double>> study_phases() {
  constexpr int kPhases = 102;
  Problem p{.length = 30 * kMinute, .stall = 0.09};
  p.mtbf = kMinute / 0.0042;
  p.curve = Curve::exponential(reproducible::exp(0.787), 0.078 / kMinute).value();
  p.objective = Objective::kProgress;
  const Grid grid = HOLDFAST_TRY(Grid::build(p));
  const std::vector<Contestant> plans{
      {"young", HOLDFAST_TRY(find_planner("young"))->plan(grid)},
      {"coci", HOLDFAST_TRY(find_planner("coci"))->plan(grid)}};
  std::vector<double> out;
  for (int phase = 0; phase < kPhases; ++phase) {
    SimulateOptions options{.runs = 1};
    options.failures = {.kind = Kind::kEvery, .period = kInjection};
    options.failures.phase = (phase + 0.5) / kPhases;
    const auto seen = HOLDFAST_TRY(simulate(p, plans, options));
    out.push_back(
        seen[1].at(Metric::kProgress).mean / seen[0].at(Metric::kProgress).mean - 1);
  }
  std::ranges::sort(out);
  return out;
}

Result<std::vector<ShrinkingJob>> study_parallel() {
  std::vector<ShrinkingJob> out;
  for (const auto& [most, phases] : {std::pair(8.0, 4), {16.0, 5}, {32.0, 6}}) {
    for (const auto& [mtbf, stall] : {std::pair(8.0, 1.0), {24.0, 5.0}, {48.0, 30.0}}) {
      out.push_back(HOLDFAST_TRY(
          shrinking(halving(most, phases, 2 * kHour), mtbf * kHour, stall)));
    }
  }
  // A young job beside three jobs that have converged further.
  const Curve base = Curve::exponential(1, 1 / (2 * kHour)).value();
  const std::vector<Curve> jobs{base, base.from(2 * kHour), base.from(4 * kHour),
                                base.from(5 * kHour)};
  const auto workers =
      HOLDFAST_TRY(allocate_over(jobs, 32, 2 * kHour, {.window = 5 * kMinute}));
  out.push_back(HOLDFAST_TRY(shrinking(workers.front(), 24 * kHour, 5)));
  return out;
}

}  // namespace holdfast
