// Finds what a path names although it may be damaged.
#include "holdfast/repair/repair.h"
#include "holdfast/formats/format.h"
#include "holdfast/shard/step_name.h"
#include "holdfast/store/run.h"

namespace holdfast {
namespace {

bool is_folder(Env& env, const Path& path) {
  const Result<FileInfo> info = env.info(path);
  return info.ok() && info->folder;
}

// The folder of a step whose manifest may be damaged: named itself, or as RUN@STEP.
std::optional<Path> find_step_folder(Env& env, const Path& path) {
  if (is_folder(env, path)) {
    const bool step = parse_step_name(path.filename().native()).has_value();
    return step ? std::optional(path) : std::nullopt;
  }
  const std::string& text = path.native();
  const size_t at = text.rfind('@');
  if (at == std::string::npos) return std::nullopt;
  const Path run = text.substr(0, at);
  std::string name = text.substr(at + 1);
  if (!name.empty() && name.size() < 18 &&
      name.find_first_not_of("0123456789") == std::string::npos) {
    name = StepName{.step = std::stoll(name)}.text();
  }
  const bool step = parse_step_name(name) && is_folder(env, run / name);
  return step ? std::optional(run / name) : std::nullopt;
}

}  // namespace

Result<Found> find_to_repair(Env& env, const Path& path) {
  Result<Found> found = find_any(env, path);
  if (found.ok()) return found;
  if (const auto folder = find_step_folder(env, path)) return Found{.path = *folder};
  // The header by which the format is recognised may be damaged: the name tells it.
  const Result<FileInfo> info = env.info(path);
  const Result<const Format*> format = format_for(path);
  const bool named = info.ok() && !info->folder && info->size > 0 && format.ok();
  if (!named) return found;
  return Found{.path = path, .format = *format};
}

}  // namespace holdfast
