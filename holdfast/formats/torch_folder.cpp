#include "holdfast/formats/torch_folder.h"

#include <algorithm>
#include <map>
#include <set>

#include "holdfast/base/json_text.h"
#include "holdfast/formats/joined_contents.h"
#include "holdfast/formats/safetensors_internal.h"
#include "holdfast/formats/torch_zip.h"
#include "holdfast/formats/torch_zip_internal.h"

namespace holdfast {
namespace {

using TensorFiles = std::map<std::string, std::string>;  // the file of each tensor

// pytorch_model.bin, adapter_model.bin, diffusion_pytorch_model.bin. Other files *.bin in
// such a folder (training_args.bin, optimizer.bin) are no models.
constexpr std::string_view kModelSuffix = "_model.bin";
constexpr int64_t kMaxTorchIndex = int64_t{256} << 20;

std::vector<std::string> names_with(std::span<const std::string> names,
                                    std::string_view suffix) {
  std::vector<std::string> found;
  for (const std::string& name : names) {
    if (name.ends_with(suffix)) found.push_back(name);
  }
  return found;
}

// The files of a folder. The index is empty if the only file has none.
struct TorchFiles {
  Path folder{};
  TensorFiles index{};
  std::set<std::string> files{};
};

Result<TorchFiles> find_files(Env& env, const Path& path) {
  Path index = path;
  if (HOLDFAST_TRY(env.info(path)).folder) {
    const auto names = HOLDFAST_TRY(env.list(path));
    const auto indexes = names_with(names, kTorchIndexSuffix);
    if (indexes.size() > 1) {
      return invalid("{}: there are {} and {}; expected one, or the path of one",
                     path.native(), shown(indexes[0]), shown(indexes[1]));
    }
    if (indexes.empty()) {
      const auto files = names_with(names, kModelSuffix);
      return TorchFiles{.folder = path, .files = {files.begin(), files.end()}};
    }
    index = path / indexes[0];
  }
  const std::string json = HOLDFAST_TRY(env.read_text(index, kMaxTorchIndex));
  TorchFiles found{.folder = folder_of(index)};
  found.index = HOLDFAST_TRY(decode_weight_map(json, index.native()));
  for (const auto& [name, file] : found.index) found.files.insert(file);
  return found;
}

Result<std::shared_ptr<const Source>> open_model_file(Env& env, const Path& folder,
                                                      const std::string& file) {
  auto source = FileSource::open(env, folder / file);
  if (!source.ok() && is_missing(source.error())) {
    return corrupt("{}: {} is missing, but the index names it", folder.native(),
                   shown(file));
  }
  return std::shared_ptr<const Source>(HOLDFAST_TRY(std::move(source)));
}

Result<void> check_file_of(const TorchFiles& all, const std::string& file,
                           const std::string& name) {
  const auto found = all.index.find(name);
  if (found != all.index.end() && found->second == file) return {};
  return corrupt("{}: {} has the tensor {}, which the index does not map to this file",
                 all.folder.native(), shown(file), shown(name));
}

// Checks that index and file name the same tensors.
Result<void> check_index(const TorchFiles& all, const std::string& file,
                         const Contents& contents) {
  if (all.index.empty()) return {};
  for (const Tensor& tensor : contents.collection.tensors()) {
    HOLDFAST_TRY(check_file_of(all, file, tensor.name));
    for (const std::string& alias : tensor.aliases) {
      HOLDFAST_TRY(check_file_of(all, file, alias));
    }
  }
  for (const auto& [name, of] : all.index) {
    if (of != file || contents.collection.find(name) || find_left_out(contents, name)) {
      continue;
    }
    return corrupt("{}: {} has no tensor {}, but the index maps it to this file",
                   all.folder.native(), shown(file), shown(name));
  }
  return {};
}

}  // namespace

bool is_torch_folder(std::span<const std::string> names) {
  return !names_with(names, kTorchIndexSuffix).empty() ||
         names_with(names, kModelSuffix).size() == 1;
}

Result<Contents> open_torch_folder(Env& env, const Path& path) {
  const TorchFiles all = HOLDFAST_TRY(find_files(env, path));
  JoinedContents joined;
  for (const std::string& file : all.files) {
    Contents contents = HOLDFAST_TRY(
        open_torch(HOLDFAST_TRY(open_model_file(env, all.folder, file))));
    HOLDFAST_TRY(check_index(all, file, contents));
    HOLDFAST_TRY(joined.add(std::move(contents)));
  }
  return std::move(joined).take(path.native());
}

Result<Patch> plan_torch_folder_patch(Env& env, const Path& path,
                                      std::span<const Flip> flips,
                                      Checksums checksums) {
  const TorchFiles all = HOLDFAST_TRY(find_files(env, path));
  const Contents joined = HOLDFAST_TRY(open_torch_folder(env, path));
  // Fails for a flip of no tensor, which no single file can tell.
  HOLDFAST_TRY(place_flips(joined, flips, [](const PlacedFlip&) -> Result<void> {
    return {};
  }));
  PatchPlan plan(env, all.folder / "");
  for (const std::string& file : all.files) {
    const auto source = HOLDFAST_TRY(open_model_file(env, all.folder, file));
    const Contents contents = HOLDFAST_TRY(open_torch(source));
    std::vector<Flip> own;
    std::ranges::copy_if(flips, std::back_inserter(own), [&](const Flip& flip) {
      return contents.collection.find(flip.tensor).has_value();
    });
    if (own.empty()) continue;
    FileEdit* edit = HOLDFAST_TRY(plan.edit(all.folder / file));
    HOLDFAST_TRY(torch_zip::edit_torch(*edit, source, contents, own, checksums));
  }
  return std::move(plan).finish();
}

Result<FormatReport> verify_torch_folder(Env& env, const Path& path,
                                         const Progress& progress) {
  const TorchFiles all = HOLDFAST_TRY(find_files(env, path));
  FormatReport report{.checked = true};
  for (const std::string& file : all.files) {
    const auto source = open_model_file(env, all.folder, file);
    HOLDFAST_TRY(report.add(
        file, source.ok() ? verify_torch(*source, progress) : source.error()));
  }
  return report;
}

}  // namespace holdfast
