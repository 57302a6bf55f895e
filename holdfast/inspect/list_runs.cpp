#include "holdfast/inspect/list_runs.h"

#include "holdfast/inspect/open_any.h"
#include "holdfast/store/location.h"
#include "holdfast/store/retention.h"

namespace holdfast {

std::optional<OwnerView> view_owner(Env& env, const Path& run) {
  const Result<std::optional<OwnerRecord>> owner = read_owner(env, run);
  if (!owner.ok() || !owner->has_value()) return std::nullopt;
  OwnerView view{.record = **owner};
  const Result<Identity> self = this_process(env);
  if (self.ok()) {
    view.dead = why_dead(view.record, *self, env.wall_now(),
                         [&env](int64_t pid) { return start_of_process(env, pid); });
  }
  if (view.record.released) view.dead = "it has ended and closed the run";
  return view;
}

namespace {

StepView view_step(Env& env, Step step, const std::set<StepName>& pinned) {
  StepView view{.step = std::move(step)};
  view.pinned = pinned.contains(view.step.name);
  for (const ManifestFile& file : view.step.manifest.files) view.bytes += file.bytes;
  const Result<StepReport> report = check_step(env, view.step.folder, Depth::kFast);
  if (!report.ok()) view.why_not = report.error();
  if (report.ok() && !report->whole()) view.why_not = report->error();
  return view;
}

}  // namespace

Result<RunView> view_run(Env& env, const Path& path) {
  const Run run = HOLDFAST_TRY(Run::open(env, path));
  StepList list = HOLDFAST_TRY(run.steps());
  const std::set<StepName> pinned = HOLDFAST_TRY(pinned_steps(run));
  RunView view{.path = path,
               .id = run.id(),
               .owner = view_owner(env, path),
               .skipped = std::move(list.skipped)};
  bool found = false;
  for (Step& step : list.steps) {
    view.steps.push_back(view_step(env, std::move(step), pinned));
    view.steps.back().newest = !found && !view.steps.back().why_not;
    found = found || view.steps.back().newest;
  }
  const std::vector<std::string> names = HOLDFAST_TRY(env.list(path));
  for (const std::string& name : names) {
    if (parse_attempt_name(name)) view.attempts.push_back(name);
  }
  return view;
}

Result<RunList> list_runs(Env& env, const Path& path) {
  HOLDFAST_TRY(check_place(path));
  RunList all;
  if (is_run(env, path)) {
    all.runs.push_back(HOLDFAST_TRY(view_run(env, path)));
    return all;
  }
  const std::vector<std::string> names = HOLDFAST_TRY(env.list(path));
  for (const std::string& name : names) {
    if (!is_run(env, path / name)) continue;
    Result<RunView> run = view_run(env, path / name);
    if (run.ok()) {
      all.runs.push_back(*std::move(run));
    } else {
      all.skipped.push_back({name, run.error()});
    }
  }
  if (all.runs.empty() && all.skipped.empty()) {
    return not_found("{}: no run directory, and none in it; expected at least one",
                     path.native());
  }
  return all;
}

}  // namespace holdfast
