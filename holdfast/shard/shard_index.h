// The index of one shard: which boxes of which tensors its file holds, where, and the
// digests of every byte of it. One JSON file beside each shard.
//
// Chunks tile the shard file without holes: chunk 0 is the header with its padding, then
// chunks of at most kChunkBytes that restart at every piece of kChunkBytes or more, while
// smaller pieces lie together in one. The digest of the shard is its chunks' CRC32Cs
// combined, so no byte is read twice to know it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "holdfast/base/bytes.h"
#include "holdfast/base/xxh3.h"
#include "holdfast/state/seal.h"
#include "holdfast/state/tensor.h"

namespace holdfast {

inline constexpr int64_t kChunkBytes = int64_t{1} << 20;

// Bytes [offset, offset + bytes) of the shard file.
struct Chunk {
  int64_t offset = 0;
  int64_t bytes = 0;
  uint32_t crc = 0;  // CRC32C
  friend bool operator==(const Chunk&, const Chunk&) = default;
};

// One box of a tensor, row-major and without gaps.
struct StoredPiece {
  uint32_t tensor = 0;  // index into ShardIndex::tensors
  Box box{};
  uint32_t file = 0;   // index into ShardIndex::files; 0 is the shard itself
  int64_t offset = 0;  // of its first byte in that file
  Seal seal{};         // the part of the tensor's seal that the box makes
  std::optional<Digest128> xxh3{};  // where unchanged pieces are looked for
  friend bool operator==(const StoredPiece&, const StoredPiece&) = default;
};

// Where a chunk of a compressed file lies: these bytes of it become the chunk (zstd.h).
struct CompressedChunk {
  int64_t offset = 0;
  int64_t bytes = 0;
  uint32_t crc = 0;  // CRC32C, as they are in the file
  int width = 0;     // of the planes that the bytes were sorted into
  friend bool operator==(const CompressedChunk&, const CompressedChunk&) = default;
};

// A file that holds pieces: the shard itself, then older shards linked into the step.
// The file of a compressed shard is its packed chunks, one after the other; offsets of
// chunks and pieces are then those before compression.
struct ShardFile {
  std::string name{};
  int64_t bytes = 0;  // on disk
  std::vector<Chunk> chunks{};
  std::vector<CompressedChunk> packed{};  // one a chunk; none if it is not compressed

  // Of all chunks together: those of the file, unless it is compressed.
  int64_t content_bytes() const {
    return chunks.empty() ? 0 : chunks.back().offset + chunks.back().bytes;
  }
  friend bool operator==(const ShardFile&, const ShardFile&) = default;
};

struct ShardIndex {
  std::vector<ShardFile> files;
  std::vector<Tensor> tensors;  // whole tensors that the pieces are cut from
  std::vector<StoredPiece> pieces;
  friend bool operator==(const ShardIndex&, const ShardIndex&) = default;
};

// CRC32C of the whole file as it is on disk, from its chunks.
uint32_t combined_crc(const ShardFile& file);

// JSON, written by hand: a shard may have 100,000 pieces. Names must be UTF-8, chunks
// must tile their files, and a seal is that of its whole piece or Seal(), which says
// that the piece was not sealed: anything else aborts.
Bytes encode_shard_index(const ShardIndex& index);

// kUnsupported for a newer version. kCorrupt, naming `where`, unless chunks tile their
// file, pieces lie behind the header of their file and inside their tensors, and every
// name, number and dtype makes sense.
Result<ShardIndex> decode_shard_index(ByteView json, const std::string& where);

}  // namespace holdfast
