// What a step should be made of: its manifest and its indexes, with the digests of every
// byte. Unlike a reader of steps, code that repairs one goes on when some of it is
// damaged.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "holdfast/shard/shard_index.h"
#include "holdfast/store/records.h"

namespace holdfast {

struct StepParts {
  Path folder{};
  Manifest manifest{};
  // All indexes that can be read and are as the manifest says.
  std::vector<ShardIndex> indexes{};

  // What an index says of this shard; null if none does.
  const ShardFile* find_shard(const std::string& name) const;
};

// A piece of a tensor that has bytes in a range of a shard.
struct PieceInShard {
  const Tensor* tensor = nullptr;
  const StoredPiece* piece = nullptr;

  int64_t bytes() const { return piece->box.elements() * bytes_of(tensor->dtype); }
  bool sealed() const { return piece->seal.bytes == static_cast<uint64_t>(bytes()); }
};

// The pieces with bytes in [offset, offset + bytes) of a shard's contents, in order of
// offset. A piece that several indexes name is there once.
std::vector<PieceInShard> pieces_in(const StepParts& step, const std::string& shard,
                                  int64_t offset, int64_t bytes);
// The names of their tensors, each once.
std::vector<std::string> tensors_in(const StepParts& step, const std::string& shard,
                                    int64_t offset, int64_t bytes);

// The parts of another step, as far as they can be read. Returns nullopt if the manifest
// cannot.
std::optional<StepParts> read_parts(Env& env, const Path& folder);

}  // namespace holdfast
