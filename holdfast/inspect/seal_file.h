// Seals that are kept beside a file of any format: FILE.seals.json. They say what the
// tensors of the file were when they were sealed, whatever happens to the file and its
// own checksums later.
//
//   {"holdfast":"seals","version":1,
//    "tensors":[["name","F32",[2,3],"<32 digits>"],...],
//    "digest":"<32 digits>"}
//
// The digits of a seal are its two lanes. The digest at the end covers all bytes before
// it, so that damage of this file is not taken for damage of the sealed one.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "holdfast/env/env.h"
#include "holdfast/state/seal.h"

namespace holdfast {

struct SealedTensor {
  std::string name{};
  Dtype dtype = Dtype::kF32;
  Shape shape{};
  Seal seal{};  // of the whole tensor
  friend bool operator==(const SealedTensor&, const SealedTensor&) = default;
};

// "model.pt.seals.json" for model.pt, "shards.seals.json" for the folder shards/.
Path seals_path(const Path& path);

// Names must be UTF-8.
Bytes encode_seals(std::span<const SealedTensor> tensors);
// Fails with kCorrupt, naming `where`, if the bytes are not as they were written, and
// with kUnsupported for a newer version.
Result<std::vector<SealedTensor>> decode_seals(ByteView json, const std::string& where);

// The seals beside this file or folder. Fails with kNotFound if there are none.
Result<std::vector<SealedTensor>> read_seals(Env& env, const Path& path);

}  // namespace holdfast
