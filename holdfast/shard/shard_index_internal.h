// The JSON document of a shard index, for the code that writes it (shard_index.cpp) and
// reads it (shard_index_reader.cpp). It is compact because it has many entries:
//
//   {"holdfast":"shard index","version":1,
//    "files":[["rank-0000.safetensors",bytes,[[bytes,"crc32c"],...],packed],...],
//    "tensors":[["name","F32",[shape],"role","of",["alias",...],pad_multiple],...],
//    "pieces":[[tensor,file,offset,[lo,hi,...],"seal" or null,"xxh3" or null],...]}
//
// `packed` is there only if the file is compressed: [[bytes,"crc32c",width],...]. The
// offset of a chunk is the sum of the sizes before it. A seal is written as its two
// lanes, 16 digits each, and always covers the whole piece.
#pragma once

#include <string_view>

#include "holdfast/shard/shard_index.h"

namespace holdfast {

inline constexpr std::string_view kShardIndexKind = "shard index";
inline constexpr int64_t kShardIndexVersion = 1;

inline int64_t bytes_of_piece(const ShardIndex& index, const StoredPiece& piece) {
  return piece.box.elements() * bytes_of(index.tensors[piece.tensor].dtype);
}

}  // namespace holdfast
