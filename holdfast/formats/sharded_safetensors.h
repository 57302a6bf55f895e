// Folders of safetensors files, as the tools of Hugging Face write large models. The
// files are called model-00001-of-00003.safetensors, and model.safetensors.index.json
// maps every tensor to its file:
//
//   {"metadata": {"total_size": 24},
//    "weight_map": {"w": "model-00001-of-00001.safetensors"}}
//
// A tensor that the index names must be in its file. If a file has a tensor that the
// index does not name or maps to another file, the folder is refused, because leaving
// out the tensor would lose it. Files that the index does not name are ignored. Small
// models have one file and no index: a folder with a single safetensors file is read as
// that file.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "holdfast/contents/contents.h"
#include "holdfast/contents/patch.h"
#include "holdfast/env/env.h"

namespace holdfast {

inline constexpr std::string_view kShardIndexSuffix = ".safetensors.index.json";
inline constexpr std::string_view kSafetensorsSuffix = ".safetensors";
// The default size of a shard in the tools of Hugging Face.
inline constexpr int64_t kShardBytes = 5'000'000'000;

// `path` is the folder or its index. Fails with kCorrupt, naming the file or tensor, if
// index and files disagree, if a file that the index names is missing, and if a file
// name has a path in it; fails with kInvalid for a folder with several indexes. If
// several shards have the same metadata key, the first one counts. The files must not
// change while the contents are in use, and the Env must outlive the contents.
Result<Contents> open_sharded_safetensors(Env& env, const Path& path);

// Plans a patch of the shards (Format::plan_patch). Its journal lies in the folder.
Result<Patch> plan_sharded_safetensors_patch(Env& env, const Path& path,
                                             std::span<const Flip> flips,
                                             Checksums checksums);

// Writes a new folder with shards of at most `shard_bytes` of data each; a larger
// tensor gets a shard of its own. Everything is durable afterwards except for the
// folder's own name. Fails with kConflict if the folder exists, and with kUnsupported
// for contents without tensors, because no file would hold their metadata. After a
// failure the folder holds some of the files.
Result<void> write_sharded_safetensors(Env& env, const Path& folder,
                                       const Contents& contents,
                                       int64_t shard_bytes = kShardBytes);

struct ModelFolder {
  std::string_view stem = "model";  // what the names of files begin with
  int64_t shard_bytes = kShardBytes;
  std::map<std::string, std::string> files{};  // further files, by name
};

// The same, as save_pretrained() writes a model: if one shard is enough, it is called
// "model.safetensors" and there is no index.
Result<void> write_model_folder(Env& env, const Path& folder, const Contents& contents,
                                const ModelFolder& options);

}  // namespace holdfast
