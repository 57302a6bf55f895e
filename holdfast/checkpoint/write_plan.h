// What one rank writes of a state: the plan ranks -> files, as the shard of this rank.
//
// Depends on the collection alone, so it is made once and serves all saves of the same
// layout; every rank makes the same decisions for itself, without a word between them.
#pragma once

#include "holdfast/checkpoint/local_state.h"
#include "holdfast/store/shard_index.h"
#include "holdfast/store/shard_writer.h"

namespace holdfast {

class WritePlan {
 public:
  // kNotFound, naming tensor and box, if a part of the state has no holder.
  static Result<WritePlan> create(std::shared_ptr<const Collection> collection,
                                  int rank);

  const std::shared_ptr<const Collection>& collection() const { return collection_; }
  const std::string& shard_name() const { return shard_name_; }
  const std::string& index_name() const { return index_name_; }
  // Of this rank's shard, and about those of all ranks together.
  int64_t shard_bytes() const { return shard_bytes_; }
  int64_t total_bytes() const { return total_bytes_; }

  // The shard over the memory of `state`, whose collection is the plan's.
  ShardToWrite shard(const LocalState& state) const;
  ShardIndex index(const WrittenShard& written) const;

 private:
  struct Piece {
    TensorId tensor;
    Box box;
    int64_t offset;  // in the shard
  };

  void take_pieces(const Collection& files, int rank);
  Result<void> lay_out();

  std::shared_ptr<const Collection> collection_;
  std::string shard_name_;
  std::string index_name_;
  Bytes header_;
  std::vector<Piece> pieces_;
  int64_t shard_bytes_ = 0;
  int64_t total_bytes_ = 0;
};

// "rank-0003", and what is called after it.
std::string rank_name(int rank);

}  // namespace holdfast
