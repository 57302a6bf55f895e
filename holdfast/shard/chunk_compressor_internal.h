// Compresses the bytes of a shard, which arrive in order, chunk by chunk into a new
// file.
#pragma once

#include <memory>
#include <vector>

#include "holdfast/env/source_sink.h"
#include "holdfast/shard/shard_index.h"
#include "holdfast/shard/zstd.h"

namespace holdfast {

class ChunkCompressor {
 public:
  // `chunks` are all chunks of the shard. `widths` has the element size of each chunk.
  ChunkCompressor(std::vector<Chunk> chunks, std::vector<int> widths, int level)
      : chunks_(std::move(chunks)), widths_(std::move(widths)), level_(level) {}

  Result<void> open(Env& env, const Path& path);
  Result<void> add(ByteView bytes);
  // Makes the contents durable. All bytes must have been added before.
  Result<void> finish();

  int64_t file_bytes() const { return sink_->size(); }
  std::vector<CompressedChunk> release_chunks() && { return std::move(packed_); }

 private:
  Result<void> compress_chunk();

  const std::vector<Chunk> chunks_;
  const std::vector<int> widths_;
  const int level_;
  std::unique_ptr<FileSink> sink_;
  // The bytes of the chunk that is not complete yet.
  Bytes open_;
  std::vector<CompressedChunk> packed_;
};

}  // namespace holdfast
