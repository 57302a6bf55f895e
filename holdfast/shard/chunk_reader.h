// Reads chunks of a shard at the disk's speed and checks them on the way: large aligned
// reads past the system's cache, several in flight, each chunk's digest summed up while
// it is in the CPU's cache.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "holdfast/base/crc32c.h"
#include "holdfast/env/env.h"
#include "holdfast/shard/shard_index.h"

namespace holdfast {

struct ReadOptions {
  int threads = 1;                   // each reads a part of its own
  int in_flight = 8;                 // reads of a thread
  int64_t block = int64_t{8} << 20;  // bytes of a read; a longer chunk is read at once
  bool direct = true;                // where the file system can
};

// A chunk as it was found, unpacked: `bytes` is shorter than the chunk where the file ends
// early or does not unpack, and `crc` is that of the bytes.
struct FoundChunk {
  size_t number = 0;  // in ShardFile::chunks
  ByteView bytes;
  Crc32c crc = 0;
};

// Where the chunk lies in the file.
struct ByteExtent {
  int64_t offset = 0;
  int64_t bytes = 0;
};
ByteExtent place_of(const ShardFile& file, size_t chunk);

// The chunk that bytes of the file, as many as place_of says, hold. `unpacked` is where
// it is put if it is compressed; then kCorrupt if it does not unpack.
Result<ByteView> open_chunk(const ShardFile& file, size_t chunk, ByteView stored,
                            Bytes& unpacked);

// The sentence for a chunk that is not as its index says; nothing if it is.
Result<void> check_chunk(const Path& path, const ShardFile& file,
                         const FoundChunk& found);

// A shard opened for read_chunks beforehand: what is removed then can still be read.
struct OpenShard {
  std::vector<std::unique_ptr<File>> files{};  // one a thread
};
Result<OpenShard> open_shard(Env& env, const Path& path, const ReadOptions& options);

// Calls `visit` once for each wanted chunk (ascending numbers), intact or not; from
// several threads at once if there are several. The first failure of reading or of a
// visit ends it. `opened` is of the same file and options, or empty.
using VisitChunk = std::function<Result<void>(const FoundChunk&)>;
Result<void> read_chunks(Env& env, const Path& path, const ShardFile& file,
                         std::span<const size_t> wanted, const VisitChunk& visit,
                         const ReadOptions& options = {}, OpenShard opened = {});

// The same for all of them.
Result<void> read_all_chunks(Env& env, const Path& path, const ShardFile& file,
                             const VisitChunk& visit, const ReadOptions& options = {});

// Numbers of the chunks that the bytes [first, last) of the file touch.
struct ChunkRange {
  size_t first = 0;
  size_t last = 0;  // one past the end
};
ChunkRange chunks_of(const ShardFile& file, int64_t first, int64_t last);

}  // namespace holdfast
