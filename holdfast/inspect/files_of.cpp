#include "holdfast/inspect/files_of.h"

#include <optional>

#include "holdfast/formats/format.h"

namespace holdfast {
namespace {

constexpr std::string_view kBundleIndex = ".index";

// The prefix of a TensorFlow checkpoint that is named by its index; nullopt for anything
// else.
std::optional<std::string> bundle_prefix(const Found& found) {
  const std::string name = found.path.native();
  const bool index = !found.step() && found.format->name == "tensorflow" &&
                     name.ends_with(kBundleIndex);
  if (!index) return std::nullopt;
  return name.substr(0, name.size() - kBundleIndex.size());
}

Result<std::vector<NamedFile>> files_with_prefix(Env& env, const Path& folder,
                                                 const std::string& prefix) {
  std::vector<NamedFile> files;
  const std::vector<std::string> names = HOLDFAST_TRY(env.list(folder));
  for (const std::string& name : names) {
    // Attempts and journals are hidden, but so is the index of a DCP folder.
    const bool hidden = prefix.empty() && name.starts_with('.') &&
                        (name.ends_with(".tmp") || name.ends_with(".holdfast-patch"));
    if (!name.starts_with(prefix) || hidden) continue;
    const std::string rest = name.substr(prefix.size());
    const bool part =
        prefix.empty() || rest == kBundleIndex || rest.starts_with(".data-");
    if (part && !HOLDFAST_TRY(env.info(folder / name)).folder) {
      files.push_back({rest, folder / name});
    }
  }
  return files;
}

}  // namespace

Result<std::vector<NamedFile>> files_of(Env& env, const Found& found) {
  if (const auto prefix = bundle_prefix(found)) {
    return files_with_prefix(env, folder_of(found.path),
                             Path(*prefix).filename().native());
  }
  if (HOLDFAST_TRY(env.info(found.path)).folder) {
    return files_with_prefix(env, found.path, "");
  }
  std::vector<Path> paths{found.path};
  if (!found.step() && found.format->list_files != nullptr) {
    paths = HOLDFAST_TRY(found.format->list_files(env, found.path));
  }
  std::vector<NamedFile> files;
  for (const Path& path : paths) files.push_back({path.filename().native(), path});
  return files;
}

Result<void> lock_files_of(Env& env, const Found& found, LockKind kind,
                           FileLocks& locks) {
  const std::vector<NamedFile> files = HOLDFAST_TRY(files_of(env, found));
  for (const NamedFile& file : files) {
    const Result<void> locked = locks.add(env, file.path, kind);
    // A folder may have files of others, such as links that lead nowhere. apply_patch()
    // fails if it cannot lock what it changes.
    const bool other = files.size() > 1 && !locked.ok() &&
                       locked.error().code() != ErrorCode::kConflict;
    if (!other) HOLDFAST_TRY(locked);
  }
  return {};
}

}  // namespace holdfast
