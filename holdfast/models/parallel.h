// A parallel configuration: how many ways a job is cut in each direction, and by which
// rules. Written as "tp=4,pp=2,dp=1,zero=1".
//
// Position (the rank in the framework's order) = tp + T * (dp + D * pp). Experts have
// coordinates of their own inside a stage: with l = tp + T * dp, etp = l % ETP,
// ep = l / ETP % EP, and what remains, l / (ETP * EP), counts the experts' replicas.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/state/box.h"

namespace holdfast {

// How a rank lays out a fused QKV projection (a group is a KV head with its queries).
enum class QkvLayout : uint8_t {
  // Megatron from 2.0 on: rows ordered by group, then queries, key, value. Ranks cut the
  // rows evenly, and so may cut a group where T does not divide the groups.
  kInterleaved,
  // [Q; K; V] on each rank, heads whole. With fewer KV heads than ranks, a rank holds the
  // KV heads of its query heads, so that they are replicated.
  kBlocked,
  kMegatron0,  // [3, heads, head] on each rank; for multi-head attention only
  kMegatron1,  // [heads, head, 3] on each rank; for multi-head attention only
};

// Where dimension n is cut in T parts.
enum class SplitRule : uint8_t {
  kEven,   // at floor(n * t / T)
  kChunk,  // blocks of ceil(n / T), as torch.chunk does: the last may be short or empty
};

// What ZeRO divides over the replicas: flat parts of ceil(size / D) elements of ...
enum class ShardUnit : uint8_t {
  kTensor,  // each tensor (as the rank holds it)
  kLayer,   // a layer's tensors one after the other (FSDP's flat parameter)
  kStage,   // all of the stage's tensors one after the other (DeepSpeed's flat group)
  kRows,    // ... of each tensor, rounded to rows (FSDP2: dimension 0 by torch.chunk)
};

struct Parallel {
  int64_t tp = 1;
  int64_t pp = 1;
  int64_t dp = 1;
  int64_t ep = 1;
  int64_t etp = 0;   // expert tensor parallelism; 0 means tp
  int64_t zero = 0;  // 1, 2: optimizer state is sharded; 3: parameters too
  int64_t vpp = 1;   // interleaved chunks a stage
  ShardUnit shard = ShardUnit::kTensor;
  QkvLayout qkv = QkvLayout::kInterleaved;
  SplitRule split = SplitRule::kEven;  // of tensor-parallel cuts; experts go evenly
  // At most one of the two; without either, layers are divided evenly. Counts are of
  // the pp * vpp chunks in order, lists are of the pp stages.
  std::vector<int64_t> layer_counts{};
  std::vector<std::vector<int64_t>> stage_layers{};
  std::optional<int64_t> world{};  // stated by the caller; must be positions()

  int64_t positions() const { return tp * pp * dp; }
  int64_t expert_tp() const { return etp > 0 ? etp : tp; }
  friend bool operator==(const Parallel&, const Parallel&) = default;
};

inline constexpr int64_t kMaxPositions = int64_t{1} << 20;

// Reads key=value pairs separated by commas. Keys: tp pp dp ep etp zero vpp world;
// shard (tensor, layer, stage, rows), qkv (interleaved, blocked, megatron0, megatron1),
// split (even, chunk); layers=8/8/7/7 (layer_counts), stages=0-3+8/4-7 (stage_layers).
// Fails, naming the key, on one that is unknown or repeated and on a value out of
// range, and on whatever check() refuses.
Result<Parallel> parse_parallel(std::string_view text);
// What parse_parallel reads back to the same: tp, pp, dp, then what is not the default.
std::string to_string(const Parallel& parallel);
// Fails, naming the field, if the numbers are out of range or contradict each other. A
// configuration that passes has at most kMaxPositions positions.
Result<void> check(const Parallel& parallel);

struct Coordinates {
  int64_t tp = 0;
  int64_t dp = 0;
  int64_t pp = 0;
  friend bool operator==(const Coordinates&, const Coordinates&) = default;
};
Coordinates coordinates_of(const Parallel& parallel, int64_t position);

// Part t of n elements in `parts` parts; t < parts.
Extent split(int64_t n, int64_t t, int64_t parts, SplitRule rule);

// The stage of each of `layers` layers. Chunk c of an interleaved pipeline is on stage
// c % pp. Fails if there are more chunks than layers, or if the lists do not name each
// layer once.
Result<std::vector<int64_t>> stages_of_layers(const Parallel& parallel, int64_t layers);

}  // namespace holdfast
