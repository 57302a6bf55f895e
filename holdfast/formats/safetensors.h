// The safetensors format: 8 bytes of header length (little-endian), a JSON header of at
// most 100,000,000 bytes, then the tensors' bytes without holes or overlaps.
//
//   {"__metadata__": {"key": "text"},
//    "w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
//
// Values are little-endian and row-major, as in the memory of the machines that we
// support, so nothing is ever swapped. The header may be padded with spaces to align
// the data. The offset of a single tensor is only as aligned as the sizes before it, so
// writers put tensors with large elements first.
//
// What the format cannot express is kept as text in __metadata__, in the typed JSON of
// state/object_json.h, and read back from there:
//
//   holdfast.objects  Contents::objects
//   holdfast.ties     {"w": ["other name", …]}: the tensor is stored once, as "w"
//   holdfast.dtypes   {"z": "C128"}: "z" is stored as F64 with one dimension of 2 more
//
// Any other reader sees plain tensors. Files get "format": "pt" if their metadata has
// no format, because the loaders of Hugging Face require it. The role, `of` and
// pad_multiple of a tensor are not kept.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "holdfast/contents/contents.h"
#include "holdfast/contents/patch.h"
#include "holdfast/env/source_sink.h"

namespace holdfast {

inline constexpr int64_t kMaxSafetensorsHeader = 100'000'000;

// Reads only the header. Checks as much as the reference library: fails with kCorrupt
// if the header is cut off, too long or not JSON, if offsets leave holes, overlap or
// leave bytes after the last tensor, and if shapes disagree with offsets. In addition
// fails with kCorrupt if a name is there twice. Fails with kUnsupported, naming the
// tensor, for dtypes that state/tensor.h does not have (F4, F6) and for more than
// kMaxRank dimensions. Tensors are in the order of their bytes.
Result<Contents> open_safetensors(std::shared_ptr<const Source> source);

// Streams the file out with a few MiB of memory. Tensors with large elements come
// first; otherwise the order is that of the collection. Fails with kInvalid for names
// or objects that the format cannot express.
Result<void> write_safetensors(Sink& sink, const Contents& contents);

// Plans a patch of a safetensors file (Format::plan_patch). The format has no checksums.
Result<Patch> plan_safetensors_patch(Env& env, const Path& path,
                                     std::span<const Flip> flips, Checksums checksums);

// For writers that place the bytes and choose the metadata themselves.
struct SafetensorsEntry {
  std::string name{};
  Dtype dtype = Dtype::kF32;
  Shape shape{};
};

struct SafetensorsLayout {
  Bytes header;  // the length, the JSON and its padding
  // The offset of each entry's first byte in the file.
  std::vector<int64_t> offsets;
  int64_t file_bytes = 0;
};

// Lays out entries one after the other in the given order. Data begins at a multiple of
// `align_data_to`, which must itself be a multiple of 8. Failures:
//   kInvalid      a name is repeated, empty, "__metadata__" or not UTF-8 (the message
//                 names the entry), or metadata is not UTF-8 or uses the key
//                 holdfast.dtypes
//   kUnsupported  the header is longer than the limit, or a C128 has kMaxRank
//                 dimensions
Result<SafetensorsLayout> lay_out_safetensors(
    std::span<const SafetensorsEntry> entries,
    const std::map<std::string, std::string>& metadata, int64_t align_data_to = 8);

}  // namespace holdfast
