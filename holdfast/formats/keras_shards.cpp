#include "holdfast/formats/keras_shards.h"

#include <algorithm>
#include <map>
#include <set>

#include "holdfast/base/json_text.h"
#include "holdfast/contents/file_edit.h"
#include "holdfast/formats/joined_contents.h"
#include "holdfast/formats/safetensors_internal.h"
#include "holdfast/hdf5/hdf5.h"

namespace holdfast {
namespace {

constexpr int64_t kMaxKerasIndex = int64_t{64} << 20;

// The groups of each file, without the slash in front.
using GroupsOfFiles = std::map<std::string, std::set<std::string>>;

Result<GroupsOfFiles> read_keras_index(Env& env, const Path& path) {
  const std::string& where = path.native();
  const std::string text = HOLDFAST_TRY(env.read_text(path, kMaxKerasIndex));
  GroupsOfFiles groups;
  HOLDFAST_TRY(read_weight_map(
      text, where, true, [&](const std::string& group, const std::string& file) {
        groups[file].insert(group.substr(group.starts_with('/') ? 1 : 0));
      }));
  return groups;
}

Result<std::shared_ptr<const Source>> open_keras_file(Env& env, const Path& index,
                                                      const std::string& file) {
  auto source = FileSource::open(env, folder_of(index) / file);
  if (!source.ok() && is_missing(source.error())) {
    return corrupt("{}: {} is missing, but the index names it", index.native(),
                   shown(file));
  }
  return std::shared_ptr<const Source>(HOLDFAST_TRY(std::move(source)));
}

// Checks that the file has a tensor in each of its groups.
Result<void> check_groups(const Contents& file, const std::set<std::string>& groups) {
  const std::string& where = file.sources.at(0)->name();
  for (const std::string& group : groups) {
    const auto tensors = file.collection.tensors();
    const bool there = std::ranges::any_of(tensors, [&](const Tensor& tensor) {
      return tensor.name.starts_with(group + "/");
    });
    if (there) continue;
    return corrupt("{}: has no tensor in {}, but the index maps it to this file",
                   where, shown(group));
  }
  return {};
}

}  // namespace

Result<std::vector<Path>> list_keras_shards(Env& env, const Path& path) {
  std::vector<Path> files{path};
  const GroupsOfFiles groups = HOLDFAST_TRY(read_keras_index(env, path));
  for (const auto& [file, names] : groups) files.push_back(folder_of(path) / file);
  return files;
}

Result<Contents> open_keras_shards(Env& env, const Path& path) {
  JoinedContents shards;
  for (const auto& [file, groups] : HOLDFAST_TRY(read_keras_index(env, path))) {
    Contents contents =
        HOLDFAST_TRY(open_hdf5(HOLDFAST_TRY(open_keras_file(env, path, file))));
    HOLDFAST_TRY(check_groups(contents, groups));
    HOLDFAST_TRY(shards.add(std::move(contents)));
  }
  return std::move(shards).take(path.native());
}

Result<Patch> plan_keras_shards_patch(Env& env, const Path& path,
                                      std::span<const Flip> flips,
                                      Checksums checksums) {
  const Contents contents = HOLDFAST_TRY(open_keras_shards(env, path));
  // The flips of each file, found by the holder of their tensor.
  std::map<HolderId, std::vector<Flip>> by_holder;
  HOLDFAST_TRY(place_flips(contents, flips, [&](const PlacedFlip& at) -> Result<void> {
    by_holder[at.holder].push_back(*at.flip);
    return {};
  }));
  PatchPlan plan(env, folder_of(path) / "");
  for (const auto& [holder, part] : by_holder) {
    const Path file = contents.sources[holder]->name();
    FileEdit* edit = HOLDFAST_TRY(plan.edit(file));
    HOLDFAST_TRY(edit_hdf5({.file = edit}, HOLDFAST_TRY(FileSource::open(env, file)),
                           part, checksums));
  }
  return std::move(plan).finish();
}

Result<FormatReport> verify_keras_shards(Env& env, const Path& path,
                                         const Progress& progress) {
  FormatReport report{.checked = true};
  for (const auto& [file, groups] : HOLDFAST_TRY(read_keras_index(env, path))) {
    const Result<std::shared_ptr<const Source>> source =
        open_keras_file(env, path, file);
    HOLDFAST_TRY(report.add(
        file, source.ok() ? verify_hdf5(*source, file, progress) : source.error()));
  }
  return report;
}

}  // namespace holdfast
