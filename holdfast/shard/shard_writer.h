// Writes one shard: bytes go from memory into the staging ring, are digested there and
// are written to disk.
//
// The two halves run on threads of their own, with the ring between them:
//
//   stage()   copies header and pieces into blocks of the ring, in file order. When it
//             has returned, the memory of the pieces may change: the shard is
//             *captured*.
//   write()   takes the blocks as they are filled, computes their digests while they
//             are in the cache, and writes them past the system's cache, several in
//             flight. When it has returned, the contents of the file are durable, but
//             its name is not.
//
// Pieces may lie in device memory. Then the device copies them into the blocks, several
// blocks ahead, and stage() returns when the copies are complete. Before that,
// make_wait() makes a stream of the device wait for the copies, so that it cannot
// change a piece too early.
//
// The seals of the pieces (seal.h) are computed from the blocks, beside the digests, or
// from the memory of the pieces (SealAt): by stage(), or by the device that has them, before
// it copies them. In the latter case a bit that flips in the ring is seen when the shard is
// restored: the digest is that of the damaged bytes, but the seal is that of the piece.
//
// If the ring has room for the whole shard, stage() can finish before write() begins.
// Then both may run on one thread, one after the other. A failure of one half ends the
// other half. The file is written once from front to back and never in place. After a
// failure its contents are undefined, and whoever asked for the file must remove it.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "holdfast/base/mutex.h"
#include "holdfast/base/shared_list.h"
#include "holdfast/device/device.h"
#include "holdfast/device/staging_ring.h"
#include "holdfast/env/env.h"
#include "holdfast/memory/local_state.h"
#include "holdfast/memory/seals_on_devices.h"
#include "holdfast/shard/shard_index.h"

namespace holdfast {

class ChunkCompressor;

struct ShardToWrite {
  SharedList<std::byte> header;  // the first bytes of the file
  // The pieces follow the header. Each begins where the one before it ends.
  LocalPieces pieces;
  SharedList<int64_t> offsets;  // where each piece begins in the file
  // If it is set, the pieces have no memory: this reads the bytes [first, first +
  // into.size()) of the stream of a piece, which is given by its number.
  std::function<Result<void>(size_t piece, int64_t first, ByteSpan into)> read{};

  int64_t bytes() const;
};

// How long the writing half took for what, in seconds. Opening the file is not counted.
struct WriteTimes {
  double stage = 0;   // waiting for blocks to be filled
  double digest = 0;  // computing digests
  double disk = 0;    // submitting writes and waiting for them
  double sync = 0;    // everything after the last block
};

// What is known of a shard after it was written.
struct WrittenShard {
  // The size of the file.
  int64_t bytes = 0;
  std::vector<Chunk> chunks;
  std::vector<CompressedChunk> packed;  // empty if the shard is not compressed
  std::vector<Seal> seals;              // one for each piece
  WriteTimes times;
};

// Divides a shard into chunks (shard_index.h). Their digests are not set.
std::vector<Chunk> cut_chunks(const ShardToWrite& shard);

// For tests: may change the staged bytes at this offset of the contents before they are
// digested and written, as a fault of the memory does. Is not called for compressed
// shards.
using Strike = std::function<void(int64_t offset, ByteSpan bytes)>;

struct WriteOptions {
  int in_flight = 16;  // number of blocks that the disk works on at once
  bool direct = true;  // write past the system's cache, if the file system can
  // The compression level of zstd, 1 to 22; 0 turns compression off. A compressed shard
  // is written through the system's cache.
  int pack_level = 0;
  Strike strike{};
  // Gets all bytes of a shard that is not compressed, in their order, on the thread that
  // writes. A failure ends the write.
  std::function<Result<void>(ByteView bytes)> observe{};
};

class ShardWriter {
 public:
  // Aborts if the pieces leave a hole or overlap, because that is a bug. Ring and shard
  // must outlive the writer.
  ShardWriter(StagingRing& ring, const ShardToWrite& shard,
              SealAt seal_at = SealAt::kDevices);
  ShardWriter(StagingRing& ring, ShardToWrite&& shard,
              SealAt seal_at = SealAt::kDevices) = delete;
  // stage() and write() must have returned before.
  ~ShardWriter();
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  // Both are called once. If the ring is smaller than the shard, they must run on two
  // threads. `observe` gets all copied bytes in file order.
  using Observe = std::function<void(int64_t offset, ByteView bytes)>;
  Result<void> stage(const Observe& observe = {});
  Result<WrittenShard> write(Env& env, const Path& path,
                             const WriteOptions& options = {});

  // Makes the stream, which must belong to the device of the piece, wait until the
  // piece is copied. The call itself returns as soon as the copy is begun. Fails as
  // stage() does. Does nothing for a piece in host memory. May be called from any
  // thread, while stage() runs or after it.
  Result<void> make_wait(CudaStream stream, size_t piece);
  // The same for all pieces on that device.
  Result<void> make_wait(CudaStream stream, const Device& device);

  // Ends both halves with this error at their next check. May be called instead of one
  // of the halves, too.
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
  void begin_seals();
  Result<void> finish_seals();
  void copy_and_seal(const LocalPiece& piece, int64_t first, ByteSpan into);
  void note_begun(size_t pieces, const std::vector<DeviceMark>& marks);
  bool put(const Block& block);
  Result<std::optional<Block>> next(bool wait);
  Result<void> write_blocks(const WriteOptions& options, Output& output,
                            Digester& digester, Stopwatch& watch, WriteTimes& times);
  Result<WrittenShard> write_packed(Env& env, const Path& path, int level);
  Result<void> compress_blocks(Env& env, const Path& path, ChunkCompressor& packer,
                               Digester& digester);
  std::vector<int> widths_of(std::span<const Chunk> chunks) const;
  Result<void> failure();

  StagingRing& ring_;
  const ShardToWrite& shard_;
  const int64_t bytes_;
  const SealAt seal_at_;
  // Whether stage() computes the seal of a piece. It is decided before the first block is
  // staged.
  std::vector<bool> sealed_at_source_;
  // The seals that stage() has computed, one for each piece. write() reads them when
  // all blocks are staged.
  std::vector<Seal> source_seals_;
  std::optional<SealsOnDevices> by_devices_;
  // The first piece that stage() has not copied completely.
  size_t piece_ = 0;

  Mutex mutex_;
  Condition changed_;
  std::deque<Block> staged_ HOLDFAST_GUARDED_BY(mutex_);
  bool all_staged_ HOLDFAST_GUARDED_BY(mutex_) = false;
  // Has an entry for each piece whose copies are all begun, in the order of the pieces.
  // The copies are complete when the mark is reached. nullopt for pieces in host
  // memory.
  std::vector<std::optional<DeviceMark>> begun_ HOLDFAST_GUARDED_BY(mutex_);
  std::optional<Error> error_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast
