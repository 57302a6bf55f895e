#include "holdfast/inspect/open_any.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "holdfast/base/number_text.h"
#include "holdfast/checkpoint/step_files.h"
#include "holdfast/env/patient_env.h"
#include "holdfast/formats/format.h"
#include "holdfast/store/location.h"
#include "holdfast/store/run.h"

namespace holdfast {
namespace {

// How often the steps of a run are listed, if steps are removed meanwhile.
constexpr int kMostLooks = 20;

// The path without a trailing slash.
Path without_slash(const Path& path) {
  return path.has_filename() || !path.has_parent_path() ? path : path.parent_path();
}

// "expected one of: 100, 200, 300": the steps of the run that are nearest to the number.
std::string name_near_steps(StepList list, int64_t number) {
  constexpr size_t kNamed = 6;
  std::set<int64_t> all;
  for (const Step& step : list.steps) all.insert(step.name.step);
  if (all.empty()) return "it has no steps";
  std::vector<int64_t> near(all.begin(), all.end());
  const auto distance = [&](int64_t step) {
    return step > number ? step - number : number - step;
  };
  std::ranges::stable_sort(near, {}, distance);
  if (near.size() > kNamed) near.resize(kNamed);
  std::ranges::sort(near);
  return fmt::format("expected {}: {}",
                     near.size() < all.size()
                         ? fmt::format("one of its {} steps, such as", all.size())
                         : "one of its steps",
                     fmt::join(near, ", "));
}

// The newest step with this number.
Result<Step> find_last_saved(const Run& run, int64_t number) {
  StepList list = HOLDFAST_TRY(run.steps());
  for (Step& step : list.steps) {
    if (step.name.step == number) return std::move(step);
  }
  for (const SkippedStep& skipped : list.skipped) {
    const auto name = parse_step_name(skipped.folder);
    if (name && name->step == number) return skipped.error;
  }
  return not_found("{}: has no step {}; {}", run.path().native(), number,
                   name_near_steps(std::move(list), number));
}

bool is_gone(Env& env, const Path& folder) {
  const Result<FileInfo> info = env.info(folder);
  return !info.ok() && is_missing(info.error());
}

Result<void> use_step(Env& env, const Found& found, const Use& use) {
  const StepReport report = HOLDFAST_TRY(check_step(env, found.path, Depth::kFast));
  return report.whole() ? use(found) : report.error();
}

// Finds the newest step that is whole and that `use` can use. Returns nullopt if a step
// was removed meanwhile.
Result<std::optional<Found>> walk_back(const Run& run, const Use& use) {
  StepList list = HOLDFAST_TRY(run.steps());
  std::vector<SkippedStep> skipped = std::move(list.skipped);
  for (const SkippedStep& one : skipped) {
    if (cannot_tell(one.error)) return one.error;
  }
  for (const Step& step : list.steps) {
    Found found{.path = step.folder, .skipped = skipped};
    const Result<void> used = use_step(run.env(), found, use);
    if (used.ok()) return std::optional(std::move(found));
    if (is_gone(run.env(), step.folder)) return std::optional<Found>();
    if (used.error().code() != ErrorCode::kCorrupt) return used.error();
    skipped.push_back({step.name.text(), used.error()});
  }
  if (skipped.empty()) return not_found("{}: has no steps", run.path().native());
  return corrupt("{}: none of {} steps is whole; the newest, {}: {}",
                 run.path().native(), skipped.size(), skipped.front().folder,
                 skipped.front().error.message());
}

Result<Found> use_newest(const Run& run, const Use& use) {
  for (int look = 0; look < kMostLooks; ++look) {
    std::optional<Found> found = HOLDFAST_TRY(walk_back(run, use));
    if (found) return *std::move(found);
  }
  return unavailable(
      "{}: steps are removed faster than they are read; expected a longer keep",
      run.path().native());
}

// Splits "RUN@STEP" at the last '@'. Returns nullopt unless a run stands before it.
std::optional<std::pair<Path, std::string>> split_at(Env& env, const Path& path) {
  const std::string text = without_slash(path).native();
  const size_t at = text.rfind('@');
  if (at == text.npos || at == 0 || !is_run(env, text.substr(0, at))) {
    return std::nullopt;
  }
  return std::pair(Path(text.substr(0, at)), text.substr(at + 1));
}

}  // namespace

std::string_view Found::kind() const { return step() ? "step" : format->name; }

bool is_run(Env& env, const Path& path) { return env.info(path / kRunFile).ok(); }

bool is_step(Env& env, const Path& path) {
  const Result<FileInfo> info = env.info(path);
  if (!info.ok() || !info->folder) return false;
  return parse_step_name(without_slash(path).filename().native()).has_value() ||
         env.info(path / kManifestName).ok();
}

Result<Step> find_step(const Run& run, std::string_view text) {
  if (const auto number = count_in(text)) return find_last_saved(run, *number);
  const auto name = parse_step_name(text);
  if (!name) {
    return invalid(
        "{}: step \"{}\"; expected a number such as 400 or the name of a folder",
        run.path().native(), text);
  }
  return run.step(*name);
}

Result<Found> use_any(Env& env, const Path& named, const Use& use) {
  HOLDFAST_TRY(check_place(named));
  PatientEnv patient(env);
  const Result<Path> file = find_named(patient, named);
  const Path& path = file.ok() ? *file : named;
  const auto once = [&](Found found) -> Result<Found> {
    HOLDFAST_TRY(use(found));
    return found;
  };
  const Result<FileInfo> info = patient.info(path);
  if (!info.ok()) {
    const auto parts = split_at(patient, path);
    if (!parts) return info.error();
    const Run run = HOLDFAST_TRY(Run::open(patient, parts->first));
    return once({.path = HOLDFAST_TRY(find_step(run, parts->second)).folder});
  }
  if (is_run(patient, path)) {
    return use_newest(HOLDFAST_TRY(Run::open(patient, path)), use);
  }
  if (is_step(patient, path)) return once({.path = without_slash(path)});
  const Format* format = HOLDFAST_TRY(format_of(patient, path));
  return once({.path = path, .format = format});
}

Result<Found> find_any(Env& env, const Path& path) {
  return use_any(env, path, [](const Found&) { return Result<void>(); });
}

Result<Contents> open_found(Env& env, const Found& found) {
  PatientEnv patient(env);
  return found.step() ? open_step_contents(patient, found.path)
                      : found.format->open(patient, found.path);
}

Result<OpenedAny> open_any(Env& env, const Path& path) {
  std::optional<Contents> contents;
  Found found = HOLDFAST_TRY(use_any(env, path, [&](const Found& one) -> Result<void> {
    contents = HOLDFAST_TRY(open_found(env, one));
    return {};
  }));
  return OpenedAny{.found = std::move(found), .contents = *std::move(contents)};
}

}  // namespace holdfast
