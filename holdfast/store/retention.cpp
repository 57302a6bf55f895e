#include "holdfast/store/retention.h"

#include <algorithm>
#include <cmath>

#include "holdfast/store/events.h"

namespace holdfast {
namespace {

using Steps = std::vector<const KeptStep*>;

Steps newest_first(std::span<const KeptStep> steps) {
  Steps sorted;
  for (const KeptStep& step : steps) sorted.push_back(&step);
  std::sort(sorted.begin(), sorted.end(), [](const KeptStep* a, const KeptStep* b) {
    return std::pair(a->age, a->name) >
           std::pair(b->age, b->name);  // age counts commits
  });
  return sorted;
}

// Keeps the newest `last` whole steps, one at least, and all steps that are newer than
// the oldest of these, whether they are whole or not.
void keep_last(const Steps& steps, const Keep& keep, std::set<StepName>& kept) {
  int64_t open = std::max<int64_t>(keep.last, 1);
  for (const KeptStep* step : steps) {
    if (open == 0) return;
    kept.insert(step->name);
    open -= step->whole ? 1 : 0;
  }
}

void keep_every(const Steps& steps, const Keep& keep, std::set<StepName>& kept) {
  if (keep.every <= 0) return;
  std::set<int64_t> seen;
  for (const KeptStep* step : steps) {
    if (!step->whole || step->name.step % keep.every != 0) continue;
    if (seen.insert(step->name.step).second) kept.insert(step->name);
  }
}

// Keeps the steps with the best metric. Steps whose metric is NaN are left out.
void keep_best(const Steps& steps, const Keep& keep, std::set<StepName>& kept) {
  std::vector<std::pair<double, const KeptStep*>> ranked;
  for (const KeptStep* step : steps) {
    const auto metric = step->metrics.find(keep.metric);
    if (!step->whole || metric == step->metrics.end() || std::isnan(metric->second)) {
      continue;
    }
    ranked.emplace_back(keep.order == Best::kMin ? metric->second : -metric->second,
                        step);
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (size_t i = 0; i < ranked.size() && static_cast<int64_t>(i) < keep.best; ++i) {
    kept.insert(ranked[i].second->name);
  }
}

// Keeps the newest steps that do not have the metric, as many as `best` says. So a
// misspelt metric, or a metric that only later saves have, does not remove all other
// steps.
void keep_unmeasured(const Steps& steps, const Keep& keep, std::set<StepName>& kept) {
  int64_t open = keep.best;
  for (const KeptStep* step : steps) {
    if (open <= 0) return;
    if (!step->whole || step->metrics.contains(keep.metric)) continue;
    kept.insert(step->name);
    --open;
  }
}

}  // namespace

std::vector<StepName> what_to_remove(std::span<const KeptStep> steps,
                                     const Keep& keep) {
  const Steps sorted = newest_first(steps);
  std::set<StepName> kept;
  keep_last(sorted, keep, kept);
  keep_every(sorted, keep, kept);
  keep_best(sorted, keep, kept);
  keep_unmeasured(sorted, keep, kept);
  std::vector<StepName> removed;
  for (auto step = sorted.rbegin(); step != sorted.rend(); ++step) {
    const bool protects = keep.only_temporary && !(*step)->temporary;
    const bool stays = (*step)->pinned || protects || kept.contains((*step)->name);
    if (!stays) removed.push_back((*step)->name);
  }
  return removed;
}

Result<void> pin(const Run& run, const StepName& step) {
  const Path mark = run.path() / pin_name(step);
  HOLDFAST_TRY(run.env().write_file(mark, {}));
  HOLDFAST_TRY(run.names().sync());
  // Looks for the step after the mark is durable. Retention looks for the mark last, so
  // a step that is still there now is safe.
  const Result<FileInfo> there = run.env().info(run.path() / step.text());
  if (there.ok()) return {};
  (void)run.env().remove_file(mark);
  return there.error();
}

Result<void> unpin(const Run& run, const StepName& step) {
  const Result<void> removed = run.env().remove_file(run.path() / pin_name(step));
  if (!removed.ok() && !is_missing(removed.error())) return removed;
  return run.names().sync();
}

Result<std::set<StepName>> pinned_steps(const Run& run) {
  constexpr std::string_view kEnd = ".pin";
  std::set<StepName> pinned;
  const std::vector<std::string> names = HOLDFAST_TRY(run.env().list(run.path()));
  for (const std::string_view name : names) {
    if (!name.ends_with(kEnd)) continue;
    const auto step = parse_step_name(name.substr(0, name.size() - kEnd.size()));
    if (step) pinned.insert(*step);
  }
  return pinned;
}

namespace {

// Looks at the files of the step now, without remembering the result.
// Fails if it cannot be told whether the step is whole: then nothing may be removed,
// because another rule could then take the place of the one that keeps this step.
Result<bool> is_whole_now(const Run& run, const StepName& step) {
  const Result<StepReport> report =
      check_step(run.env(), run.path() / step.text(), Depth::kFast);
  if (!report.ok() && cannot_tell(report.error())) return report.error();
  return report.ok() && report->whole();
}

// Returns the steps to remove. Assumes first that all steps are whole, checks each step
// that would stay, marks the damaged ones, and decides anew until no new damage is found.
// Damaged steps may still stay: those that are pinned, and those that are newer than the
// whole ones. Returns nothing if no whole step would stay.
Result<std::vector<StepName>> plan_with(
    const Run& run, const Keep& keep,
    const std::function<Result<bool>(const StepName&)>& is_whole) {
  const StepList list = HOLDFAST_TRY(run.steps());
  const std::set<StepName> pinned = HOLDFAST_TRY(pinned_steps(run));
  std::vector<KeptStep> steps;
  for (const Step& step : list.steps) {
    steps.push_back({.name = step.name,
                     .age = age_of(step.manifest),
                     .pinned = pinned.contains(step.name),
                     .temporary = step.manifest.temporary,
                     .metrics = step.manifest.metrics});
  }
  while (true) {
    const std::vector<StepName> removed = what_to_remove(steps, keep);
    if (removed.empty()) return removed;
    const std::set<StepName> gone(removed.begin(), removed.end());
    bool changed = false;
    for (KeptStep& step : steps) {
      if (!step.whole || gone.contains(step.name)) continue;
      if (HOLDFAST_TRY(is_whole(step.name))) continue;
      step.whole = false;
      changed = true;
    }
    if (!changed) {
      const bool one_stays =
          std::any_of(steps.begin(), steps.end(),
                      [&](const auto& s) { return s.whole && !gone.contains(s.name); });
      return one_stays ? removed : std::vector<StepName>();
    }
  }
}

}  // namespace

Result<std::vector<StepName>> plan_retention(const Run& run, const Keep& keep) {
  return plan_with(run, keep,
                   [&](const StepName& step) { return is_whole_now(run, step); });
}

Result<bool> Retention::is_whole(const StepName& step) {
  const auto known = whole_.find(step);
  if (known != whole_.end()) return known->second;
  const bool whole = HOLDFAST_TRY(is_whole_now(run_, step));
  // Remembers only steps that are whole: one that could not be read now may be readable
  // next time.
  if (whole) whole_.emplace(step, true);
  return whole;
}

void Retention::tell_failure(const StepName& step, const Error& error) {
  if (events_ == nullptr) return;
  emit(*events_, run_.env(),
       RemovalFailed{.folder = step.text(), .reason = error.message()});
}

bool Retention::has_no_pin(const StepName& step) {
  const Result<FileInfo> mark = run_.env().info(run_.path() / pin_name(step));
  if (mark.ok()) return false;
  if (is_missing(mark.error())) return true;
  tell_failure(step, mark.error());
  return false;
}

bool Retention::move_to_trash(const StepName& step, Path& trash) {
  if (!has_no_pin(step)) return false;
  Env& env = run_.env();
  const Path folder = run_.path() / step.text();
  trash = run_.path() / trash_name(step, env.random64());
  const Result<void> moved = env.rename_new(folder, trash);
  if (!moved.ok()) {
    tell_failure(step, moved.error());
    return false;
  }
  // Looks again: whoever pinned the step since the first look still saw it there and
  // was told that pinning succeeded.
  if (has_no_pin(step)) return true;
  const Result<void> back = env.rename_new(trash, folder);
  if (!back.ok()) tell_failure(step, back.error());
  return false;
}

Result<std::vector<StepName>> Retention::run(const std::set<StepName>& busy) {
  return remove_unkept(keep_, busy);
}

Result<std::vector<StepName>> Retention::run_ahead(const std::set<StepName>& busy) {
  Keep ahead = keep_;
  // The step that will be saved next counts as one of the `last` steps.
  ahead.last = std::max<int64_t>(ahead.last - 1, 1);
  return remove_unkept(ahead, busy);
}

Result<std::vector<StepName>> Retention::remove_unkept(const Keep& keep,
                                                       const std::set<StepName>& busy) {
  const std::vector<StepName> planned = HOLDFAST_TRY(
      plan_with(run_, keep, [this](const StepName& step) { return is_whole(step); }));
  if (planned.empty()) return planned;
  // The steps that stay must be durable before any other step is removed.
  HOLDFAST_TRY(run_.names().sync());
  HOLDFAST_TRY(owner_.check());
  std::vector<std::pair<StepName, Path>> moved;
  for (const StepName& step : planned) {
    Path trash;
    if (!busy.contains(step) && move_to_trash(step, trash))
      moved.emplace_back(step, trash);
  }
  // Makes the new names durable before the files are removed. Otherwise a power failure
  // could bring back the old name of a step of which half the files are gone.
  HOLDFAST_TRY(run_.names().sync());
  std::vector<StepName> removed;
  for (const auto& [step, trash] : moved) {
    whole_.erase(step);
    removed.push_back(step);
    const Result<void> gone = run_.env().remove_all(trash);
    if (!gone.ok()) {
      tell_failure(step, gone.error());
    } else if (events_ != nullptr) {
      emit(*events_, run_.env(), StepRemoved{.folder = step.text()});
    }
  }
  return removed;
}

}  // namespace holdfast
