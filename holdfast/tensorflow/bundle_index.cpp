#include "holdfast/tensorflow/bundle_index.h"

#include <algorithm>

#include "holdfast/base/json_text.h"
#include "holdfast/env/source_sink.h"

namespace holdfast::bundle {
namespace {

// The file "checkpoint" is text and holds a few paths.
constexpr int64_t kMaxStateBytes = int64_t{16} << 20;
constexpr std::string_view kStateKey = "model_checkpoint_path: \"";

// Reads the name of the newest checkpoint. TensorFlow escapes quotes and backslashes in
// this text; a name that needs that is refused.
Result<std::string> newest_in(Env& env, const Path& state) {
  const std::string text = HOLDFAST_TRY(env.read_text(state, kMaxStateBytes));
  const size_t key = text.starts_with(kStateKey) ? 0 : text.npos;
  const size_t begin = kStateKey.size();
  const size_t end = key == text.npos ? text.npos : text.find('"', begin);
  if (end == text.npos) {
    return corrupt("{}: does not begin with {}...\"; expected the newest checkpoint",
                   state.native(), kStateKey);
  }
  const std::string name = text.substr(begin, end - begin);
  if (name.empty() || name.find_first_of("\\\n") != name.npos) {
    return unsupported("{}: names {}; expected a name without escapes", state.native(),
                       shown(name));
  }
  return name;
}

// A SavedModel is a folder with a program and a folder with a checkpoint.
constexpr std::string_view kSavedModelFile = "saved_model.pb";
constexpr std::string_view kSavedModelVariables = "variables";

Result<Path> find_in_folder(Env& env, const Path& folder) {
  const std::vector<std::string> names = HOLDFAST_TRY(env.list(folder));
  if (std::ranges::find(names, kTensorBundleStateFile) != names.end()) {
    const std::string newest =
        HOLDFAST_TRY(newest_in(env, folder / kTensorBundleStateFile));
    // A folder that was moved still names its old place, so only the last name counts.
    const Path index = folder / (Path(newest).filename().native() +
                                 std::string(kTensorBundleIndexSuffix));
    if (env.info(index).ok()) return index;
    return corrupt("{}: {} is missing, but the file {} names it", folder.native(),
                   shown(index.filename().native()), kTensorBundleStateFile);
  }
  std::vector<std::string> found;
  for (const std::string& name : names) {
    if (name.ends_with(kTensorBundleIndexSuffix)) found.push_back(name);
  }
  if (found.size() == 1) return folder / found[0];
  return invalid("{}: has {} files *{}; expected one, or the path of one",
                 folder.native(), found.size(), kTensorBundleIndexSuffix);
}

Result<void> decode_entries(BundleIndex& index) {
  const std::vector<TableEntry>& entries = index.table->entries();
  size_t slices = 0;
  index.entries.reserve(entries.size());
  for (const TableEntry& at : entries) {
    if (at.key.empty()) continue;
    Result<BundleEntry> entry = decode_entry(at.value).within(shown(at.key));
    if (!entry.ok()) return entry.error();
    slices += entry->slices.size();
    // Each slice has an entry of its own.
    if (slices > entries.size()) {
      return corrupt("{}: names more slices than the index has", shown(at.key));
    }
    index.entries.push_back({&at, *std::move(entry)});
  }
  for (size_t i = 0; i < index.entries.size(); ++i) {
    index.by_key.emplace(index.entries[i].key(), i);
  }
  return {};
}

Result<void> decode_index(BundleIndex& index, bool skipped) {
  const std::vector<TableEntry>& entries = index.table->entries();
  if (!entries.empty() && entries.front().key.empty()) {
    index.header = HOLDFAST_TRY(decode_header(entries.front().value));
  } else if (!skipped) {
    return corrupt("has no header; expected one under the empty key");
  }
  return decode_entries(index);
}

// The box of a slice.
Result<Box> box_of(const Shape& shape, std::span<const SliceExtent> slice) {
  if (std::ssize(slice) != shape.rank()) {
    return corrupt("has a slice of {} dimensions; expected {}", slice.size(),
                   shape.rank());
  }
  std::vector<Extent> extents;
  for (int k = 0; k < shape.rank(); ++k) {
    const auto& [start, length] = slice[static_cast<size_t>(k)];
    const bool whole = length == SliceExtent::kWhole;
    if (start > shape[k] || (!whole && length > shape[k] - start) ||
        (whole && start != 0)) {
      return corrupt("has a slice of {} from {}; expected one inside the shape {}",
                     length, start, to_string(shape));
    }
    extents.push_back({start, whole ? shape[k] : start + length});
  }
  return Box::create(extents);
}

Result<StoredBox> find_slice(const BundleIndex& index, const IndexedEntry& tensor,
                             std::span<const SliceExtent> slice) {
  const Box box = HOLDFAST_TRY(box_of(tensor.entry.shape, slice));
  const IndexedEntry* found = index.find(slice_key(tensor.key(), slice));
  if (found == nullptr) {
    return corrupt("the slice {} is missing; expected an entry for it", to_string(box));
  }
  const BundleEntry& entry = found->entry;
  if (entry.type != tensor.entry.type || entry.shape != box.shape() ||
      !entry.slices.empty()) {
    return corrupt("the slice {} has another dtype or shape than the tensor",
                   to_string(box));
  }
  return StoredBox{found, box};
}

}  // namespace

Path BundleIndex::shard_path(int64_t shard) const {
  std::string name = path.native();
  name.resize(name.size() - kTensorBundleIndexSuffix.size());
  return name + fmt::format(".data-{:05}-of-{:05}", shard, header.shards);
}

const IndexedEntry* BundleIndex::find(std::string_view key) const {
  const auto found = by_key.find(key);
  return found == by_key.end() ? nullptr : &entries[found->second];
}

Result<std::vector<StoredBox>> boxes_of(const BundleIndex& index,
                                        const IndexedEntry& tensor) {
  if (tensor.entry.slices.empty()) {
    return std::vector{StoredBox{&tensor, Box::whole(tensor.entry.shape)}};
  }
  std::vector<StoredBox> boxes;
  for (const auto& slice : tensor.entry.slices) {
    boxes.push_back(
        HOLDFAST_TRY(find_slice(index, tensor, slice).within(shown(tensor.key()))));
  }
  return boxes;
}

Result<Path> find_index(Env& env, const Path& path) {
  const Result<FileInfo> info = env.info(path);
  if (info.ok() && info->folder) {
    const bool saved_model = env.info(path / kSavedModelFile).ok();
    return find_in_folder(env, saved_model ? path / kSavedModelVariables : path);
  }
  if (path.native().ends_with(kTensorBundleIndexSuffix)) return path;
  return Path(path.native() + std::string(kTensorBundleIndexSuffix));
}

Result<BundleIndex> read_index(Env& env, const Path& index,
                               std::vector<BadBlock>* bad) {
  const auto source = HOLDFAST_TRY(FileSource::open(env, index));
  BundleIndex decoded{.path = index};
  decoded.table =
      std::make_shared<const Table>(HOLDFAST_TRY(Table::open(*source, bad)));
  HOLDFAST_TRY(
      decode_index(decoded, bad != nullptr && !bad->empty()).within(index.native()));
  return decoded;
}

Result<void> check_shard_range(const BundleIndex& index, const IndexedEntry& entry,
                               const Source& shard) {
  const auto& [offset, size] = std::pair(entry.entry.offset, entry.entry.size);
  if (offset <= shard.size() && size <= shard.size() - offset) return {};
  return corrupt("{}: {} has {} bytes at {} of {}, which has {} bytes",
                 index.path.native(), shown(entry.key()), size, offset, shard.name(),
                 shard.size());
}

}  // namespace holdfast::bundle

namespace holdfast {

bool is_tensor_bundle_folder(std::span<const std::string> names) {
  const auto has = [&](std::string_view name) {
    return std::ranges::find(names, name) != names.end();
  };
  const auto indexes = std::ranges::count_if(names, [](const std::string& name) {
    return name.ends_with(kTensorBundleIndexSuffix);
  });
  return indexes == 1 || (indexes > 1 && has(kTensorBundleStateFile)) ||
         (has(bundle::kSavedModelFile) && has(bundle::kSavedModelVariables));
}

}  // namespace holdfast
