// Weights that Keras has saved in several files (Model.save_weights with max_shard_size).
// The index maps each group of variables to the HDF5 file, or the files, that have it:
//
//   model.weights.json: {"metadata": {"total_size": 164},
//                        "weight_map": {"/layers/dense/vars": "model_00000.weights.h5",
//                                       "/layers/norm/vars": ["model_00000.weights.h5",
//                                                             "model_00001.weights.h5"]}}
//
// All files together are one collection of tensors. They can be patched, but not written.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "holdfast/contents/contents.h"
#include "holdfast/contents/patch.h"
#include "holdfast/env/env.h"

namespace holdfast {

inline constexpr std::string_view kKerasIndexSuffix = ".weights.json";

// `path` is the index. The objects of all files (hdf5/hdf5.h) are merged. Fails with
// kCorrupt, naming the file, if a file is missing or has no tensor of a group that the
// index maps to it, if two files have a tensor of the same name or different values of the
// same attribute, and if a file name has a path in it.
Result<Contents> open_keras_shards(Env& env, const Path& path);

// The index, then the files that it names (Format::list_files).
Result<std::vector<Path>> list_keras_shards(Env& env, const Path& path);

// Plans a patch (Format::plan_patch). Its journal lies in the folder.
Result<Patch> plan_keras_shards_patch(Env& env, const Path& path,
                                      std::span<const Flip> flips, Checksums checksums);

// Finds all damage (Format::verify).
Result<FormatReport> verify_keras_shards(Env& env, const Path& path,
                                         const Progress& progress);

}  // namespace holdfast
