// Reads chunks of a shard at the speed of the disk and computes their digests on the
// way. It makes large aligned reads past the system's cache, with several in flight,
// and computes the digest of each chunk while the chunk is in the CPU's cache.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "holdfast/base/crc32c.h"
#include "holdfast/env/env.h"
#include "holdfast/env/file.h"
#include "holdfast/shard/shard_index.h"

namespace holdfast {

struct ReadOptions {
  int threads = 1;    // each thread reads a part of its own
  int in_flight = 8;  // number of reads that each thread has in flight
  // Size of a read in bytes. A chunk that is longer is read with one larger read.
  int64_t block = int64_t{8} << 20;
  bool direct = true;  // read past the system's cache, if the file system can
};

// A chunk as it was found in the file, decompressed. `bytes` is shorter than the chunk
// if the file ends early, and empty if the chunk cannot be decompressed. `crc` is the
// CRC32C of `bytes`.
struct FoundChunk {
  size_t number = 0;  // in ShardFile::chunks
  ByteView bytes;
  Crc32c crc = 0;
};

// Where the stored bytes of a chunk lie in the file.
struct ByteExtent {
  int64_t offset = 0;
  int64_t bytes = 0;
};
ByteExtent place_of(const ShardFile& file, size_t chunk);

// Returns the contents of a chunk. `stored` are the bytes of the file at place_of(). If
// the chunk is compressed, its contents are put into `unpacked`; fails with kCorrupt if
// it cannot be decompressed.
Result<ByteView> open_chunk(const ShardFile& file, size_t chunk, ByteView stored,
                            Bytes& unpacked);

// Fails with kCorrupt, saying what is wrong, if the chunk is not as the index says.
Result<void> check_chunk(const Path& path, const ShardFile& file,
                         const FoundChunk& found);

// A shard that was opened for read_chunks() beforehand. It can still be read after its
// file was removed.
struct OpenShard {
  // One file for each thread.
  std::vector<std::unique_ptr<File>> files{};
};
Result<OpenShard> open_shard(Env& env, const Path& path, const ReadOptions& options);

// Calls `visit` once for each chunk in `wanted`, whether the chunk is intact or not.
// The numbers in `wanted` must ascend. With several threads, `visit` is called from
// several threads at once. Stops at the first failure of a read or of `visit` and
// returns it. `opened` is from open_shard() with the same file and options, or empty.
using VisitChunk = std::function<Result<void>(const FoundChunk&)>;
Result<void> read_chunks(Env& env, const Path& path, const ShardFile& file,
                         std::span<const size_t> wanted, const VisitChunk& visit,
                         const ReadOptions& options = {}, OpenShard opened = {});

// The same for all chunks of the file.
Result<void> read_all_chunks(Env& env, const Path& path, const ShardFile& file,
                             const VisitChunk& visit, const ReadOptions& options = {});

// Finds the chunks that overlap the bytes [first, last) of the file.
struct ChunkRange {
  size_t first = 0;
  size_t last = 0;  // one past the end
};
ChunkRange chunks_of(const ShardFile& file, int64_t first, int64_t last);

}  // namespace holdfast
