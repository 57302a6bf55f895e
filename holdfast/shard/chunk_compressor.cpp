#include <algorithm>

#include "holdfast/base/crc32c.h"
#include "holdfast/shard/chunk_compressor_internal.h"

namespace holdfast {

Result<void> ChunkCompressor::open(Env& env, const Path& path) {
  sink_ = HOLDFAST_TRY(FileSink::create(env, path));
  return {};
}

Result<void> ChunkCompressor::add(ByteView bytes) {
  while (!bytes.empty()) {
    const auto whole = static_cast<size_t>(chunks_[packed_.size()].bytes);
    const ByteView part = bytes.first(std::min(bytes.size(), whole - open_.size()));
    open_.insert(open_.end(), part.begin(), part.end());
    bytes = bytes.subspan(part.size());
    if (open_.size() == whole) HOLDFAST_TRY(compress_chunk());
  }
  return {};
}

Result<void> ChunkCompressor::compress_chunk() {
  const Compressed packed =
      HOLDFAST_TRY(compress(open_, widths_[packed_.size()], level_));
  packed_.push_back({.offset = sink_->size(),
                     .bytes = static_cast<int64_t>(packed.bytes.size()),
                     .crc = crc32c(packed.bytes),
                     .width = packed.width});
  open_.clear();
  return sink_->append(packed.bytes);
}

Result<void> ChunkCompressor::finish() {
  HOLDFAST_CHECK(packed_.size() == chunks_.size(), "{} chunks of {}", packed_.size(),
                 chunks_.size());
  return sink_->finish();
}

}  // namespace holdfast
