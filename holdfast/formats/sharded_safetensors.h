// Folders of safetensors files as Hugging Face's tools write large models: shards called
// model-00001-of-00003.safetensors, and model.safetensors.index.json, which maps every
// tensor to its file:
//
//   {"metadata": {"total_size": 24}, "weight_map": {"w": "model-00001-of-00001.safetensors"}}
//
// The index is the truth: a tensor that it names must be in its file, and one that it does
// not name, or maps to another file, is refused, because leaving it out would lose it.
// Files of the folder that the index does not name are not looked at. Small models have one
// file and no index: a folder with a single safetensors file is that file.
#pragma once

#include <cstdint>
#include <string_view>

#include "holdfast/env/env.h"
#include "holdfast/formats/contents.h"

namespace holdfast {

inline constexpr std::string_view kShardIndexSuffix = ".safetensors.index.json";
inline constexpr std::string_view kSafetensorsSuffix = ".safetensors";
// The size of a shard that Hugging Face's tools take if nobody says otherwise.
inline constexpr int64_t kShardBytes = 5'000'000'000;

// `path` is the folder or its index. kCorrupt, naming file or tensor, where index and files
// disagree, for a file that the index names and that is missing, and for file names with a
// path in them; kInvalid for a folder with several indexes. Metadata that shards repeat is taken from the first that has it. Files must not
// change while the contents are in use, and the Env must outlive them.
Result<Contents> open_sharded_safetensors(Env& env, const Path& path);

// A new folder with shards of at most `shard_bytes` of data each (a larger tensor has one
// of its own); durable on return, all but the folder's own name. kConflict if it exists,
// kUnsupported for contents without tensors, whose metadata no file would hold. After a failure it holds some of the files.
Result<void> write_sharded_safetensors(Env& env, const Path& folder,
                                       const Contents& contents,
                                       int64_t shard_bytes = kShardBytes);

}  // namespace holdfast
