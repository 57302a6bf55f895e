// The safetensors format: 8 bytes of header length (little-endian), a JSON header of at
// most 100,000,000 bytes, then the tensors' bytes without holes or overlaps.
//
//   {"__metadata__": {"key": "text"},
//    "w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
//
// Values are little-endian and row-major, as in memory of the machines we run on; nothing
// is ever swapped. The header may be padded with spaces, which is how data begins at an
// aligned offset; a tensor's own offset is aligned only as far as the sizes before it
// allow, so writers put large elements first.
//
// What safetensors does not know is kept in __metadata__, as text in the typed JSON of
// state/object_json.h, and read back from there:
//
//   holdfast.objects  Contents::objects
//   holdfast.ties     {"w": ["other name", …]}: the tensor is stored once, as "w"
//   holdfast.dtypes   {"z": "C128"}: "z" is stored as F64 with one dimension of 2 more
//
// Any other reader sees plain tensors. Files get "format": "pt" if their metadata has no
// format, because Hugging Face's loaders want one. A tensor's role, of and pad_multiple are not kept.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "holdfast/env/source_sink.h"
#include "holdfast/formats/contents.h"

namespace holdfast {

inline constexpr int64_t kMaxSafetensorsHeader = 100'000'000;

// Reads the header only. As strict as the reference library: kCorrupt for a header that is
// cut, too long or no JSON, for offsets with holes, overlaps or bytes behind the last, and
// for shapes that disagree with them; stricter for names that are there twice. kUnsupported,
// naming the tensor, for dtypes that state/dtype.h does not have (F4, F6) and for more than
// kMaxRank dimensions. Tensors come in the order of their bytes.
Result<Contents> open_safetensors(std::shared_ptr<const Source> source);

// Streams the file out, with memory of a few MiB. Large elements first, else in the order
// of the collection. kInvalid for names or objects that the format cannot keep.
Result<void> write_safetensors(Sink& sink, const Contents& contents);

// For writers that place the bytes themselves, and choose the metadata.
struct SafetensorsEntry {
  std::string name{};
  Dtype dtype = Dtype::kF32;
  Shape shape{};
};

struct SafetensorsLayout {
  Bytes header;                  // the length, the JSON and its padding
  std::vector<int64_t> offsets;  // of each entry's first byte in the file
  int64_t file_bytes = 0;
};

// Entries lie one after the other in the order given, and data begins at a multiple of
// `align_data_to`, itself a multiple of 8. kInvalid, naming the entry, for a name that is
// repeated, empty, "__metadata__" or not UTF-8, and for metadata that is not UTF-8 or uses
// the key holdfast.dtypes; kUnsupported for a header beyond the limit and for a C128 of
// kMaxRank dimensions.
Result<SafetensorsLayout> lay_out_safetensors(
    std::span<const SafetensorsEntry> entries,
    const std::map<std::string, std::string>& metadata, int64_t align_data_to = 8);

}  // namespace holdfast
