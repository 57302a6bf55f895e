#include "holdfast/checkpoint/open_any.h"

#include <charconv>

#include "holdfast/checkpoint/step_files.h"
#include "holdfast/store/place.h"

namespace holdfast {
namespace {

// A trailing slash is no part of the name.
Path plain(const Path& path) {
  return path.has_filename() || !path.has_parent_path() ? path : path.parent_path();
}

std::optional<int64_t> number_in(std::string_view text) {
  int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end || number < 0) return std::nullopt;
  return number;
}

Result<Step> last_saved(const Run& run, int64_t number) {
  StepList list = HOLDFAST_TRY(run.steps());
  for (Step& step : list.steps) {
    if (step.name.step == number) return std::move(step);
  }
  for (const SkippedStep& skipped : list.skipped) {
    const auto name = parse_step_name(skipped.folder);
    if (name && name->step == number) return skipped.error;
  }
  return not_found("{}: no step {}", run.path().native(), number);
}

Result<Found> newest_of(const Run& run) {
  NewestWhole newest = HOLDFAST_TRY(run.newest_whole(Depth::kFast));
  return Found{.path = newest.step.folder, .skipped = std::move(newest.skipped)};
}

// Nullopt unless the path has an '@' behind a run.
std::optional<std::pair<Path, std::string>> split_at(Env& env, const Path& path) {
  const std::string text = plain(path).native();
  const size_t at = text.rfind('@');
  if (at == text.npos || at == 0 || !is_run(env, text.substr(0, at))) {
    return std::nullopt;
  }
  return std::pair(Path(text.substr(0, at)), text.substr(at + 1));
}

}  // namespace

bool is_run(Env& env, const Path& path) { return env.info(path / kRunFile).ok(); }

bool is_step(Env& env, const Path& path) {
  const Result<FileInfo> info = env.info(path);
  if (!info.ok() || !info->folder) return false;
  return parse_step_name(plain(path).filename().native()).has_value() ||
         env.info(path / kManifestName).ok();
}

Result<Step> find_step(const Run& run, std::string_view text) {
  if (const auto number = number_in(text)) return last_saved(run, *number);
  const auto name = parse_step_name(text);
  if (!name) {
    return invalid("{}: step \"{}\", want a number such as 400 or a folder's name",
                   run.path().native(), text);
  }
  return run.step(*name);
}

Result<Found> find_any(Env& env, const Path& path) {
  HOLDFAST_TRY(check_place(path));
  const Result<FileInfo> info = env.info(path);
  if (!info.ok()) {
    const auto parts = split_at(env, path);
    if (!parts) return info.error();
    const Run run = HOLDFAST_TRY(Run::open(env, parts->first));
    return Found{.path = HOLDFAST_TRY(find_step(run, parts->second)).folder};
  }
  if (is_run(env, path)) return newest_of(HOLDFAST_TRY(Run::open(env, path)));
  if (is_step(env, path)) return Found{.path = plain(path)};
  const Format* format = HOLDFAST_TRY(format_of(env, path));
  return Found{.path = path, .format = format};
}

Result<Contents> open_found(Env& env, const Found& found) {
  return found.step() ? open_step_contents(env, found.path)
                      : found.format->open(env, found.path);
}

Result<Contents> open_any(Env& env, const Path& path) {
  return open_found(env, HOLDFAST_TRY(find_any(env, path)));
}

}  // namespace holdfast
