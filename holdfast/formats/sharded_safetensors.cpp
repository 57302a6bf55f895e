#include "holdfast/formats/sharded_safetensors.h"

#include <set>

#include "holdfast/base/json_text.h"
#include "holdfast/contents/file_edit.h"
#include "holdfast/formats/safetensors.h"
#include "holdfast/formats/safetensors_internal.h"

namespace holdfast {
namespace {

using WeightMap = std::map<std::string, std::string>;

// Limits the size of an index. An index of a million tensors has about half of this.
constexpr int64_t kMaxIndexBytes = int64_t{256} << 20;

Result<std::string> find_one(const Path& folder, const std::vector<std::string>& names,
                             std::string_view suffix) {
  std::vector<std::string> found;
  for (const std::string& name : names) {
    if (name.ends_with(suffix)) found.push_back(name);
  }
  if (found.empty()) return not_found("{}: has no file *{}", folder.native(), suffix);
  if (found.size() > 1) {
    return invalid("{}: there are {} and {}; expected one, or the path of one",
                   folder.native(), shown(found[0]), shown(found[1]));
  }
  return std::move(found.front());
}

// Returns the index of a folder, or its only safetensors file if it has no index.
Result<Path> find_file(Env& env, const Path& path) {
  if (!HOLDFAST_TRY(env.info(path)).folder) return path;
  const std::vector<std::string> names = HOLDFAST_TRY(env.list(path));
  Result<std::string> found = find_one(path, names, kShardIndexSuffix);
  if (!found.ok() && found.error().code() == ErrorCode::kNotFound) {
    found = find_one(path, names, kSafetensorsSuffix);
  }
  return path / HOLDFAST_TRY(std::move(found));
}

// If a file that the index names is missing, the folder is damaged.
Result<std::unique_ptr<FileSource>> open_shard_file(Env& env, const Path& index,
                                                    const std::string& file) {
  auto source = FileSource::open(env, folder_of(index) / file);
  if (source.ok() || source.error().code() != ErrorCode::kNotFound) return source;
  return corrupt("{}: {} is missing, but the index names it", index.native(),
                 shown(file));
}

// Checks that the index maps every tensor of the file to this file. check_all_there()
// checks that no tensor is missing.
Result<void> check_file(const SafetensorsHeader& header, const WeightMap& map,
                        const std::string& file, const std::string& where) {
  for (const Tensor& tensor : header.tensors) {
    const auto found = map.find(tensor.name);
    if (found == map.end()) {
      return corrupt("{}: {} has the tensor {}, which the index does not name", where,
                     shown(file), shown(tensor.name));
    }
    if (found->second != file) {
      return corrupt("{}: {} has the tensor {}, which the index maps to {}", where,
                     shown(file), shown(tensor.name), shown(found->second));
    }
  }
  return {};
}

Result<void> check_all_there(const std::vector<SafetensorsHeader>& headers,
                             const WeightMap& map, const std::string& where) {
  std::set<std::string_view> there;
  for (const SafetensorsHeader& header : headers) {
    for (const Tensor& tensor : header.tensors) there.insert(tensor.name);
  }
  for (const auto& [name, file] : map) {
    if (there.contains(name)) continue;
    return corrupt("{}: {} has no tensor {}, but the index maps it to this file", where,
                   shown(file), shown(name));
  }
  return {};
}

// Distributes the tensors, in the order in which they are written, over shards of
// limited size.
std::vector<std::vector<TensorId>> cut_shards(const Collection& collection,
                                              int64_t shard_bytes) {
  std::vector<std::vector<TensorId>> shards(1);
  int64_t bytes = 0;
  for (const TensorId t : storage_order(collection)) {
    const int64_t more = collection.tensor(t).bytes();
    if (!shards.back().empty() && bytes + more > shard_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    shards.back().push_back(t);
    bytes += more;
  }
  return shards;
}

std::string index_json(const WeightMap& map, int64_t total) {
  std::string json = "{\"metadata\":{\"total_size\":";
  append_json_integer(json, total);
  json += "},\"weight_map\":{";
  const char* between = "\n";
  for (const auto& [name, file] : map) {
    json += between;
    append_json_string(json, name);
    json += ':';
    append_json_string(json, file);
    between = ",\n";
  }
  return json + "}}\n";
}

Result<void> create_model_folder(Env& env, const Path& folder,
                                 const Contents& contents) {
  if (contents.collection.tensors().empty()) {
    return unsupported(
        "{}: there are no tensors, and an index without tensors names no file",
        folder.native());
  }
  return env.create_folder(folder);
}

Result<void> write_shard(Env& env, const Path& path, const Contents& contents,
                         std::span<const TensorId> tensors, const Object& objects) {
  const auto sink = HOLDFAST_TRY(FileSink::create(env, path));
  HOLDFAST_TRY(write_tensors(*sink, contents, tensors, objects));
  return sink->finish();
}

// Writes the shards and their index.
Result<void> write_shard_files(Env& env, const Path& folder, const Contents& contents,
                               const std::vector<std::vector<TensorId>>& shards,
                               std::string_view stem) {
  WeightMap map;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string file = fmt::format("{}-{:05}-of-{:05}{}", stem, i + 1,
                                         shards.size(), kSafetensorsSuffix);
    HOLDFAST_TRY(write_shard(env, folder / file, contents, shards[i],
                             i == 0 ? contents.objects : Object()));
    for (const TensorId t : shards[i]) map[contents.collection.tensor(t).name] = file;
  }
  const std::string json = index_json(map, contents.collection.bytes());
  return env.write_file(folder / fmt::format("{}{}", stem, kShardIndexSuffix),
                        bytes_of(json));
}

}  // namespace

Result<Contents> open_sharded_safetensors(Env& env, const Path& path) {
  const Path index = HOLDFAST_TRY(find_file(env, path));
  if (!index.native().ends_with(kShardIndexSuffix)) {
    return open_safetensors(HOLDFAST_TRY(FileSource::open(env, index)));
  }
  const std::string& where = index.native();
  const std::string json = HOLDFAST_TRY(env.read_text(index, kMaxIndexBytes));
  const WeightMap map = HOLDFAST_TRY(decode_weight_map(json, where));
  std::set<std::string> files;
  for (const auto& [name, file] : map) files.insert(file);
  std::vector<std::shared_ptr<const Source>> sources;
  std::vector<SafetensorsHeader> headers;
  for (const std::string& file : files) {
    sources.push_back(HOLDFAST_TRY(open_shard_file(env, index, file)));
    headers.push_back(HOLDFAST_TRY(read_safetensors_header(*sources.back())));
    HOLDFAST_TRY(check_file(headers.back(), map, file, where));
  }
  HOLDFAST_TRY(check_all_there(headers, map, where));
  return contents_of(std::move(sources), std::move(headers));
}

Result<Patch> plan_sharded_safetensors_patch(Env& env, const Path& path,
                                             std::span<const Flip> flips, Checksums) {
  const Contents contents = HOLDFAST_TRY(open_sharded_safetensors(env, path));
  const bool folder = HOLDFAST_TRY(env.info(path)).folder;
  return plan_plain_patch(env, (folder ? path : folder_of(path)) / "", contents, flips);
}

Result<void> write_sharded_safetensors(Env& env, const Path& folder,
                                       const Contents& contents, int64_t shard_bytes) {
  HOLDFAST_TRY(create_model_folder(env, folder, contents));
  const auto shards = cut_shards(contents.collection, shard_bytes);
  HOLDFAST_TRY(write_shard_files(env, folder, contents, shards, "model"));
  return env.sync_names(folder);
}

Result<void> write_model_folder(Env& env, const Path& folder, const Contents& contents,
                                const ModelFolder& options) {
  HOLDFAST_TRY(create_model_folder(env, folder, contents));
  const auto shards = cut_shards(contents.collection, options.shard_bytes);
  if (shards.size() == 1) {
    const std::string file = fmt::format("{}{}", options.stem, kSafetensorsSuffix);
    HOLDFAST_TRY(
        write_shard(env, folder / file, contents, shards[0], contents.objects));
  } else {
    HOLDFAST_TRY(write_shard_files(env, folder, contents, shards, options.stem));
  }
  for (const auto& [name, text] : options.files) {
    HOLDFAST_TRY(env.write_file(folder / name, bytes_of(text)));
  }
  return env.sync_names(folder);
}

}  // namespace holdfast
