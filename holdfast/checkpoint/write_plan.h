// What one rank writes of a state: the plan ranks -> files, as the shard of this rank.
//
// The plan depends on the collection alone, so it is made once and serves all saves of
// the same layout; every rank makes the same decisions for itself, without a word between
// them. A save then is a ShardPlan: where the pieces are in memory now, and which of them
// need not be written because an older step has them (reuse.h).
#pragma once

#include "holdfast/checkpoint/reuse.h"
#include "holdfast/memory/local_state.h"
#include "holdfast/shard/shard_index.h"
#include "holdfast/shard/shard_writer.h"

namespace holdfast {

// One save of one rank: the shard to write, the older shards to link, and the index of
// all once that is done.
class ShardPlan {
 public:
  const ShardToWrite& shard() const { return shard_; }
  // To let pieces point to copies of them.
  LocalPieces& pieces() { return shard_.pieces; }
  // Older shards that hold pieces of this save, each once.
  const std::vector<const ReusableFile*>& links() const { return links_; }
  // Bytes of pieces that are not written again.
  int64_t reused_bytes() const { return reused_bytes_; }

  // Copies the pieces of the host that are to be copied at once, and writes the copies
  // instead; they must live as long as the shard is read.
  Bytes copy_at_once();
  // Names of the tensors of these pieces of the shard, and those of `more` that it has
  // parts of which are not copied at once.
  std::vector<std::string> names(std::span<const size_t> pieces,
                                 const std::vector<std::string>& more) const;

  ShardIndex index(const std::string& shard_name, const WrittenShard& written) const;

 private:
  friend class WritePlan;
  struct Entry {
    TensorId tensor;
    Box box;
    std::optional<Digest128> digest;        // where pieces are reused
    const ReusablePiece* reused = nullptr;  // null if it is in the shard
  };

  std::shared_ptr<const Collection> collection_;
  std::shared_ptr<const ReusableStep> base_;
  SharedList<Entry> entries_;
  ShardToWrite shard_;  // its pieces are the entries that are not reused, in order
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
  // Of this rank's shard, and about those of all ranks together.
  int64_t shard_bytes() const { return shard_bytes_; }
  int64_t total_bytes() const { return total_bytes_; }

  // The whole shard over the memory of `state`, whose collection is the plan's.
  ShardPlan shard(const LocalState& state) const;
  // With a look at every byte, so that pieces that are as in `base` are left out; `base`
  // may have none.
  Result<ShardPlan> shard(const LocalState& state,
                          std::shared_ptr<const ReusableStep> base) const;

 private:
  struct Piece {
    TensorId tensor;
    Box box;
    int64_t offset;  // in a shard of all pieces
  };
  struct Header {
    Bytes bytes;
    std::vector<int64_t> offsets;
    int64_t file_bytes = 0;
  };

  void take_pieces(const Collection& files, int rank);
  Result<Header> lay_out(std::span<const Piece> pieces) const;
  std::vector<LocalPiece> in_memory(const LocalState& state) const;

  std::shared_ptr<const Collection> collection_;
  std::string shard_name_;
  std::string index_name_;
  SharedList<std::byte> header_;
  std::vector<Piece> pieces_;
  int64_t shard_bytes_ = 0;
  int64_t total_bytes_ = 0;
};

// "rank-0003", and what is called after it.
std::string rank_name(int rank);

}  // namespace holdfast
