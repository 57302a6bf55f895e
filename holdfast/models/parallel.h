// A parallel configuration: into how many parts a job is cut by each kind of
// parallelism, and by which rules. Its text is like "tp=4,pp=2,dp=1,zero=1".
//
// The position (the rank in the framework's order) is tp + T * (dp + D * pp). Experts
// have coordinates of their own inside a stage: with l = tp + T * dp, they are etp = l
// % ETP and ep = l / ETP % EP; l / (ETP * EP) is the number of the expert's replica.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/state/box.h"

namespace holdfast {

// How a rank stores a fused QKV projection. A group is a KV head with its query heads.
enum class QkvLayout : uint8_t {
  // As Megatron from 2.0 on: rows ordered by group, and in a group queries, key, value.
  // The rows are cut evenly, so a group may be cut if T does not divide the groups.
  kInterleaved,
  // [Q; K; V] on each rank, in whole heads. If there are fewer KV heads than ranks, a
  // rank holds the KV heads of its query heads, so that KV heads are replicated.
  kBlocked,
  kMegatron0,  // [3, heads, head] on each rank; for multi-head attention only
  kMegatron1,  // [heads, head, 3] on each rank; for multi-head attention only
};

// Says at which indices a dimension of size n is cut into T parts.
enum class SplitRule : uint8_t {
  kEven,   // part t begins at floor(n * t / T)
  kChunk,  // blocks of ceil(n / T), as torch.chunk: the last ones may be short or empty
};

// The unit that ZeRO divides over D replicas, in flat parts of ceil(size / D) elements.
enum class ShardUnit : uint8_t {
  kTensor,  // each tensor, as the rank holds it
  kLayer,   // the tensors of a layer one after the other (FSDP's flat parameter)
  kStage,   // all tensors of the stage one after the other (DeepSpeed's flat group)
  kRows,    // each tensor, cut between rows (FSDP2: dimension 0 by torch.chunk)
};

struct Parallel {
  int64_t tp = 1;
  int64_t pp = 1;
  int64_t dp = 1;
  int64_t ep = 1;
  int64_t etp = 0;   // expert tensor parallelism; 0 means tp
  int64_t zero = 0;  // 1, 2: optimizer state is sharded; 3: parameters too
  int64_t vpp = 1;   // interleaved chunks of layers in each stage
  ShardUnit shard = ShardUnit::kTensor;
  QkvLayout qkv = QkvLayout::kInterleaved;
  SplitRule split = SplitRule::kEven;  // for tensor parallelism; experts are cut evenly
  // These two say which stage has which layers. At most one of them is given; without
  // either, layers are divided evenly. layer_counts has the number of layers of each of
  // the pp * vpp chunks in order; stage_layers has the layers of each of the pp stages.
  std::vector<int64_t> layer_counts{};
  std::vector<std::vector<int64_t>> stage_layers{};
  std::optional<int64_t> world{};  // if the caller gives it, it must equal positions()

  int64_t positions() const { return tp * pp * dp; }
  int64_t expert_tp() const { return etp > 0 ? etp : tp; }
  friend bool operator==(const Parallel&, const Parallel&) = default;
};

inline constexpr int64_t kMaxPositions = int64_t{1} << 20;

// Reads key=value pairs separated by commas. Keys: tp pp dp ep etp zero vpp world;
// shard (tensor, layer, stage, rows), qkv (interleaved, blocked, megatron0, megatron1),
// split (even, chunk); layers=8/8/7/7 (layer_counts), stages=0-3+8/4-7 (stage_layers).
// Fails, naming the key, on a key that is unknown or repeated, on a value out of range,
// and on whatever check() refuses.
Result<Parallel> parse_parallel(std::string_view text);
// The text that parse_parallel reads back as the same configuration: tp, pp, dp, then
// whatever is not the default.
std::string to_string(const Parallel& parallel);
// Fails, naming the field, if the numbers are out of range or contradict each other. A
// configuration that passes has at most kMaxPositions positions.
Result<void> check(const Parallel& parallel);

// Part t of n elements that are cut into `parts` parts; 0 <= t < parts.
Extent split(int64_t n, int64_t t, int64_t parts, SplitRule rule);

// The stage of each of `layers` layers. Chunk c of an interleaved pipeline is on stage
// c % pp. Fails if there are more chunks than layers, or if stage_layers does not name
// each layer once, or if layer_counts do not add up to `layers`.
Result<std::vector<int64_t>> stages_of_layers(const Parallel& parallel, int64_t layers);

}  // namespace holdfast
