// Plans which pieces of a state one rank writes, and where they lie in its shard.
//
// The plan depends on the collection alone, so it is made once and serves all saves of
// the same layout. Every rank computes the same assignment for itself, without
// messages. For each save the plan gives a ShardPlan: where the pieces are in memory
// now, and which of them need not be written because an older step has them (reuse.h).
#pragma once

#include <functional>

#include "holdfast/checkpoint/reuse.h"
#include "holdfast/memory/local_state.h"
#include "holdfast/shard/shard_index.h"
#include "holdfast/shard/shard_writer.h"

namespace holdfast {

// One save of one rank: the shard to write and the older shards to link. Once they are
// written it gives the index of all of them.
class ShardPlan {
 public:
  const ShardToWrite& shard() const { return shard_; }
  // The pieces of the shard, which the caller may make point to copies of their bytes.
  LocalPieces& pieces() { return shard_.pieces; }
  // The older shards that hold pieces of this save. Each is listed once.
  const std::vector<const ReusableFile*>& links() const { return links_; }
  // The bytes of the pieces that are linked instead of written.
  int64_t reused_bytes() const { return reused_bytes_; }

  // Copies the pieces in host memory that are marked at_once, and makes the shard's
  // pieces point to the copies. The returned bytes hold the copies and must live as
  // long as the shard is read.
  Bytes copy_at_once();
  // The names of the tensors of these pieces of the shard (given by number), and those
  // names of `more` of which the shard has a piece that is not marked at_once. Each
  // name is listed once.
  std::vector<std::string> names(std::span<const size_t> pieces,
                                 const std::vector<std::string>& more) const;

  ShardIndex index(const std::string& shard_name, const WrittenShard& written) const;

 private:
  friend class WritePlan;
  struct Entry {
    TensorId tensor;
    Box box;
    std::optional<Digest128> digest;        // set in incremental saves
    const ReusablePiece* reused = nullptr;  // null if the shard contains the piece
  };

  std::shared_ptr<const Collection> collection_;
  std::shared_ptr<const ReusableStep> base_;
  SharedList<Entry> entries_;
  ShardToWrite shard_;  // contains the entries that are not reused, in their order
  std::vector<const ReusableFile*> links_;
  int64_t reused_bytes_ = 0;
};

class WritePlan {
 public:
  // kNotFound, naming tensor and box, if a part of the state has no holder.
  static Result<WritePlan> create(std::shared_ptr<const Collection> collection,
                                  int rank, bool compressed = false);

  const std::shared_ptr<const Collection>& collection() const { return collection_; }
  const std::string& shard_name() const { return shard_name_; }
  const std::string& index_name() const { return index_name_; }
  // The size of this rank's shard if all pieces are written and none is compressed.
  int64_t shard_bytes() const { return shard_bytes_; }
  // About the size of the shards of all ranks together: the bytes of all tensors.
  int64_t total_bytes() const { return total_bytes_; }

  // A shard of all pieces, in the memory of `state`, which must have the plan's
  // collection.
  ShardPlan shard(const LocalState& state) const;
  // The same, but leaves out pieces that `base` has. Reads every byte of the state for
  // it. `base` may be null; then all pieces are written and get a digest for later
  // saves.
  Result<ShardPlan> shard(const LocalState& state,
                          std::shared_ptr<const ReusableStep> base) const;
  // A shard of all pieces, whose bytes are read when they are written: `read` gets a
  // tensor of the collection, a box of it and a window of the box's stream. It is called
  // by one thread at a time.
  using ReadBox = std::function<Result<void>(TensorId tensor, const Box& box,
                                             int64_t first, ByteSpan into)>;
  ShardPlan shard(const ReadBox& read) const;

 private:
  struct Piece {
    TensorId tensor;
    Box box;
    int64_t offset;  // in a shard that contains all pieces
  };
  struct Header {
    Bytes bytes;
    std::vector<int64_t> offsets;
    int64_t file_bytes = 0;
  };

  void take_pieces(const Collection& files, int rank);
  Result<Header> lay_out(std::span<const Piece> pieces) const;
  std::vector<LocalPiece> in_memory(const LocalState& state) const;
  ShardPlan shard_of(std::vector<LocalPiece> pieces) const;

  std::shared_ptr<const Collection> collection_;
  std::string shard_name_;
  std::string index_name_;
  SharedList<std::byte> header_;
  std::vector<Piece> pieces_;
  int64_t shard_bytes_ = 0;
  int64_t total_bytes_ = 0;
};

}  // namespace holdfast
