// The index of one shard: which boxes of which tensors the shard's file holds, where
// they lie, and digests that cover every byte. It is one JSON file beside each shard.
//
// Chunks cover the shard file without holes. Chunk 0 is the header with its padding.
// All other chunks have at most kChunkBytes. A piece of kChunkBytes or more begins a
// new chunk, and smaller pieces share a chunk. The digest of the shard is combined from
// the CRC32Cs of its chunks, so that no byte is read twice for it.
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

// The bytes [offset, offset + bytes) of the shard's contents.
struct Chunk {
  int64_t offset = 0;
  int64_t bytes = 0;
  uint32_t crc = 0;  // CRC32C
  friend bool operator==(const Chunk&, const Chunk&) = default;
};

// One box of a tensor in a file, in row-major order and without gaps.
struct StoredPiece {
  uint32_t tensor = 0;  // index into ShardIndex::tensors
  Box box{};
  uint32_t file = 0;   // index into ShardIndex::files; 0 is the shard itself
  int64_t offset = 0;  // of the first byte in that file, before compression
  Seal seal{};         // the part of the tensor's seal that comes from this box
  // Set only in runs that link unchanged pieces instead of writing them again.
  std::optional<Digest128> xxh3{};
  friend bool operator==(const StoredPiece&, const StoredPiece&) = default;
};

// Where a chunk lies in a compressed file. The bytes there decompress to the chunk
// (zstd.h).
struct CompressedChunk {
  int64_t offset = 0;
  int64_t bytes = 0;
  uint32_t crc = 0;  // CRC32C of the compressed bytes
  int width = 0;     // element size used for compression; 0: stored as it is (zstd.h)
  friend bool operator==(const CompressedChunk&, const CompressedChunk&) = default;
};

// A file that holds pieces. The first file of an index is the shard itself; the others
// are older shards that are linked into the step. A compressed file consists of its
// compressed chunks, one after the other; the offsets of chunks and pieces are then
// those before compression.
struct ShardFile {
  std::string name{};
  // The size of the file on disk.
  int64_t bytes = 0;
  std::vector<Chunk> chunks{};
  // One entry for each chunk. Empty if the file is not compressed.
  std::vector<CompressedChunk> packed{};

  // The size of all chunks together. It is the size of the file unless the file is
  // compressed.
  int64_t content_bytes() const {
    return chunks.empty() ? 0 : chunks.back().offset + chunks.back().bytes;
  }
  friend bool operator==(const ShardFile&, const ShardFile&) = default;
};

struct ShardIndex {
  std::vector<ShardFile> files;
  // The whole tensors that the pieces are boxes of.
  std::vector<Tensor> tensors;
  std::vector<StoredPiece> pieces;
  friend bool operator==(const ShardIndex&, const ShardIndex&) = default;
};

// The CRC32C of the whole file as it is on disk, combined from its chunks.
uint32_t combined_crc(const ShardFile& file);

// Encodes the index as JSON, without a JSON library, because a shard may have 100,000
// pieces. Names must be UTF-8. Aborts if chunks do not cover their file without holes,
// or if a seal is neither that of the whole piece nor Seal(), which means that the
// piece was not sealed.
Bytes encode_shard_index(const ShardIndex& index);

// Fails with kUnsupported for a newer version. Fails with kCorrupt, naming `where`,
// unless chunks cover their file without holes, pieces lie behind the header of their
// file and inside their tensors, and every name, number and dtype is valid.
Result<ShardIndex> decode_shard_index(ByteView json, const std::string& where);

}  // namespace holdfast
