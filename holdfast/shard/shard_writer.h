// Writes one shard: memory -> ring -> digests -> disk.
//
// The two halves run on threads of their own, with the ring between them:
//
//   stage()   copies header and pieces into blocks of the ring, in file order. When it
//             has returned, the pieces' memory may change: the shard is *captured*.
//   write()   takes the blocks as they are filled, sums up their digests while they are
//             in the cache, and writes them past the system's cache, several in flight.
//             When it has returned, the contents are durable (not yet the name).
//
// Pieces may be in device memory: the device copies them into the blocks, several of them
// ahead, and stage() has returned when it is done. Before that, make_wait() lets a stream
// of the device wait for the copies that it must not overtake.
//
// A ring that holds the whole shard lets stage() finish before write() begins, so both
// may also run on one thread, one after the other. Either half's failure ends the other.
// The file is written once from front to back and never in place; after a failure it
// has any contents and its owner removes it.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "holdfast/base/mutex.h"
#include "holdfast/base/shared_list.h"
#include "holdfast/device/staging_ring.h"
#include "holdfast/env/env.h"
#include "holdfast/memory/local_piece.h"
#include "holdfast/shard/shard_index.h"

namespace holdfast {

class ChunkCompressor;

struct ShardToWrite {
  SharedList<std::byte> header;  // the file's first bytes
  LocalPieces pieces;            // they follow it, each where the one before ends
  SharedList<int64_t> offsets;   // where they begin in the file, one a piece

  int64_t bytes() const;
};

// Where the writing half's time went, in seconds; the rest is opening the file.
struct WriteTimes {
  double stage = 0;   // waiting for blocks to be filled
  double digest = 0;  // summing up
  double disk = 0;    // submitting, and waiting for room in flight
  double sync = 0;    // from the last block on
};

// What is known of a shard once it is written.
struct WrittenShard {
  int64_t bytes = 0;  // of the file
  std::vector<Chunk> chunks;
  std::vector<CompressedChunk> packed;  // if it is compressed
  std::vector<Seal> seals;              // one a piece
  WriteTimes times;
};

// The chunks of a shard (shard_index.h), without their digests.
std::vector<Chunk> cut_chunks(const ShardToWrite& shard);

struct WriteOptions {
  int in_flight = 16;  // blocks that the disk works on at once
  bool direct = true;  // past the system's cache, where the file system can
  // Of compression (zstd.h), 1 to 22 as zstd has them; 0: none. A compressed shard goes
  // through the system's cache.
  int pack_level = 0;
};

class ShardWriter {
 public:
  // Pieces that leave a hole or overlap are a bug and abort. Ring and shard must outlive
  // the writer.
  ShardWriter(StagingRing& ring, const ShardToWrite& shard);
  // Both halves must have returned.
  ~ShardWriter();
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  // Each is called once. With a ring smaller than the shard, on two threads. `observe` is
  // shown what was copied, in order of the file.
  using Observe = std::function<void(int64_t offset, ByteView bytes)>;
  Result<void> stage(const Observe& observe = {});
  Result<WrittenShard> write(Env& env, const Path& path,
                             const WriteOptions& options = {});

  // The stream, of the device that has the piece, goes on when the piece is copied. Waits
  // here until the copy is begun, and no longer; fails as stage() does. Nothing to do for
  // a piece of the host. From any thread, while stage() runs or after.
  Result<void> make_wait(CudaStream stream, size_t piece);
  // The same for all pieces of that device.
  Result<void> make_wait(CudaStream stream, const Device& device);

  // Ends both halves with this error as soon as they look; also instead of calling one.
  void cancel(Error error);

 private:
  struct Block {
    int64_t offset = 0;
    ByteSpan memory;  // a whole block of the ring
    size_t used = 0;
  };
  class Digester;
  class Filling;
  class Output;
  class Stopwatch;

  Result<void> stage_blocks(const Observe& observe);
  Result<void> fill(int64_t offset, ByteSpan into, std::vector<const Device*>& busy);
  Result<void> fill_piece(const LocalPiece& piece, int64_t first, ByteSpan into,
                          std::vector<const Device*>& busy);
  void note_begun(size_t pieces, const std::vector<DeviceMark>& marks);
  bool put(const Block& block);
  Result<std::optional<Block>> next(bool wait);
  Result<void> write_blocks(Output& output, Digester& digester, Stopwatch& watch,
                            WriteTimes& times);
  Result<WrittenShard> write_packed(Env& env, const Path& path, int level);
  Result<void> compress_blocks(Env& env, const Path& path, ChunkCompressor& packer,
                               Digester& digester);
  std::vector<int> widths_of(std::span<const Chunk> chunks) const;
  Result<void> failure();

  StagingRing& ring_;
  const ShardToWrite& shard_;
  const int64_t bytes_;
  size_t piece_ = 0;  // where stage() is

  Mutex mutex_;
  Condition changed_;
  std::deque<Block> staged_ HOLDFAST_GUARDED_BY(mutex_);
  bool all_staged_ HOLDFAST_GUARDED_BY(mutex_) = false;
  // By piece, the first ones: all copies of them are begun, up to this mark. None for those
  // of the host.
  std::vector<std::optional<DeviceMark>> begun_ HOLDFAST_GUARDED_BY(mutex_);
  std::optional<Error> error_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast
