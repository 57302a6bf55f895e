// TensorFlow's checkpoints, which TensorFlow calls tensor bundles: an index
// (ck-12.index), which is a table of keys, and shards with the bytes of all tensors
// (ck-12.data-00000-of-00002). TensorFlow calls such a checkpoint by the prefix of these
// names.
//
// A partitioned variable is one tensor here, and its slices are boxes of it. String
// tensors are objects: contents.objects is a dict of them by their keys
// (bundle_strings.h), among them _CHECKPOINTABLE_OBJECT_GRAPH, by which TensorFlow finds
// the variables of a program. So it is still there when the tensors were converted to
// another format and back.
//
// What a checkpoint cannot hold is kept in string tensors holdfast.* (side_metadata.h).
// If holdfast.objects is there, it has all objects, and other string tensors repeat
// parts of it for TensorFlow.
//
// Every tensor has a CRC32C, which is checked when it is read. TensorFlow checks it too.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "holdfast/contents/contents.h"
#include "holdfast/contents/patch.h"
#include "holdfast/env/env.h"

namespace holdfast {

inline constexpr std::string_view kTensorBundleIndexSuffix = ".index";
// The file in a folder of checkpoints that names the newest.
inline constexpr std::string_view kTensorBundleStateFile = "checkpoint";

// Whether a file that ends with these 8 bytes is an index.
bool is_tensor_bundle_index(ByteView tail);
// Whether a folder with these names has a checkpoint: it has a file that names the newest,
// or only one checkpoint, or is a SavedModel, whose folder "variables" has one.
bool is_tensor_bundle_folder(std::span<const std::string> names);

// Opens a checkpoint by its prefix, its index, its folder or its SavedModel. In a folder
// it opens the checkpoint that the file "checkpoint" names. Reads the index and the strings. Fails
// with kCorrupt, naming file and tensor, if the index contradicts itself or the shards;
// with kUnsupported for compressed blocks, for tensors of types that state/tensor.h does
// not have (quantized numbers, variants), and for more than kMaxRank dimensions.
Result<Contents> open_tensor_bundle(Env& env, const Path& path);

// Writes a new folder with one checkpoint in it: ckpt.index, its shard, and the file
// "checkpoint", by which tf.train.latest_checkpoint() finds it. Syncs everything but the
// folder's own name. Fails with kConflict if the folder exists, and with kInvalid for
// names that an index cannot hold.
Result<void> write_tensor_bundle(Env& env, const Path& folder,
                                 const Contents& contents);

// Checks every checksum: those of the blocks of the index and those of all tensors and
// strings. Lists all damage. Fails only if it cannot be told whether something is
// damaged.
Result<FormatReport> verify_tensor_bundle(Env& env, const Path& path,
                                          const Progress& progress);

// Computes which bytes the flips change (Format::plan_patch). Consistent checksums are
// those of the tensors and those of the blocks of the index; a checksum that is 0 stays
// 0. Fails with kUnsupported for strings.
Result<Patch> plan_patch_tensor_bundle(Env& env, const Path& path,
                                       std::span<const Flip> flips,
                                       Checksums checksums);

}  // namespace holdfast
