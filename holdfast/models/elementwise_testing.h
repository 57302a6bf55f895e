// For tests: how many bytes must move when the parallel configuration of a Megatron GPT
// changes, found by looking at every element.
//
// Tests compare build_collection() and plan() with it. It knows nothing of boxes,
// layouts or intersections: each rank goes over the elements of its shards and marks
// each with its rank, once for the old configuration and once for the new one. Every
// figure is then a sum over all elements, which depends only on the two sets of ranks
// of each element.
//
// All its conventions are listed here:
//   - rank = tp + T * (dp + D * pp), device = rank, host = device / 4;
//   - pipeline stage s has layers [s * L / P, (s + 1) * L / P);
//   - attention's and the MLP's first matrix are cut by rows, with their biases; their
//     second by columns; its bias, the norms and the position embedding are whole on
//     every tensor-parallel rank;
//   - the word embedding is cut by rows after padding to a multiple of 128 * T; padding
//     is not state and is not counted;
//   - the head is tied to the word embedding: with P > 1 the last stage has a copy,
//     with P = 1 there is only one;
//   - a parameter has 14 bytes: 16-bit weight, 32-bit master, two 32-bit moments.
#pragma once

#include <bit>
#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "holdfast/base/result.h"
#include "holdfast/plan/assignment_testing.h"

namespace holdfast::elementwise {

inline constexpr int64_t kBytesPerParameter = 14;

struct Parallel {
  int tp = 1;
  int pp = 1;
  int dp = 1;

  int ranks() const { return tp * pp * dp; }
};

// It has no number of heads, because query, key and value are one interval of rows.
struct Gpt {
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t vocabulary = 0;
  int64_t positions = 0;
};

enum class Cut { kWhole, kRows, kColumns, kVocabularyRows };
enum class Stage { kFirst, kOfLayer, kLast, kFirstAndLast };

struct NaiveTensor {
  std::string name;
  int64_t rows = 0;
  int64_t columns = 0;  // 1 for a vector
  Cut cut = Cut::kWhole;
  Stage stage = Stage::kOfLayer;
  int64_t layer = 0;   // for kOfLayer
  int64_t weight = 1;  // how many parameters one cell stands for
};

inline std::vector<NaiveTensor> layer_tensors(const Gpt& gpt, int64_t layer) {
  const int64_t h = gpt.hidden;
  std::vector<NaiveTensor> tensors{
      {.name = "input_norm.weight", .rows = h, .columns = 1},
      {.name = "input_norm.bias", .rows = h, .columns = 1},
      {.name = "qkv.weight", .rows = 3 * h, .columns = h, .cut = Cut::kRows},
      {.name = "qkv.bias", .rows = 3 * h, .columns = 1, .cut = Cut::kRows},
      {.name = "attention_out.weight", .rows = h, .columns = h, .cut = Cut::kColumns},
      {.name = "attention_out.bias", .rows = h, .columns = 1},
      {.name = "middle_norm.weight", .rows = h, .columns = 1},
      {.name = "middle_norm.bias", .rows = h, .columns = 1},
      {.name = "mlp_in.weight", .rows = 4 * h, .columns = h, .cut = Cut::kRows},
      {.name = "mlp_in.bias", .rows = 4 * h, .columns = 1, .cut = Cut::kRows},
      {.name = "mlp_out.weight", .rows = h, .columns = 4 * h, .cut = Cut::kColumns},
      {.name = "mlp_out.bias", .rows = h, .columns = 1},
  };
  for (NaiveTensor& tensor : tensors) {
    tensor.name = fmt::format("layers.{}.{}", layer, tensor.name);
    tensor.layer = layer;
  }
  return tensors;
}

inline std::vector<NaiveTensor> tensors_of(const Gpt& gpt) {
  const int64_t h = gpt.hidden;
  std::vector<NaiveTensor> tensors{
      {.name = "word_embedding",
       .rows = gpt.vocabulary,
       .columns = h,
       .cut = Cut::kVocabularyRows,
       .stage = Stage::kFirstAndLast},
      {.name = "position_embedding",
       .rows = gpt.positions,
       .columns = h,
       .stage = Stage::kFirst},
      {.name = "final_norm.weight", .rows = h, .columns = 1, .stage = Stage::kLast},
      {.name = "final_norm.bias", .rows = h, .columns = 1, .stage = Stage::kLast},
  };
  for (int64_t layer = 0; layer < gpt.layers; ++layer) {
    for (NaiveTensor& tensor : layer_tensors(gpt, layer)) {
      tensors.push_back(std::move(tensor));
    }
  }
  return tensors;
}

inline int64_t state_bytes(const Gpt& gpt) {
  int64_t parameters = 0;
  for (const NaiveTensor& t : tensors_of(gpt)) parameters += t.rows * t.columns;
  return parameters * kBytesPerParameter;
}

// kElement: a cell is one element. kCutIndex: a cell is one index of the axis that
// tensor parallelism cuts. It stands for all elements with that index, because they
// have the same holders; a tensor that is never cut is one cell. It is for models that
// are too large to visit every element.
enum class Grain { kElement, kCutIndex };

inline NaiveTensor coarsen(NaiveTensor tensor) {
  if (tensor.cut != Cut::kColumns) tensor.weight *= std::exchange(tensor.columns, 1);
  if (tensor.cut == Cut::kColumns || tensor.cut == Cut::kWhole) {
    tensor.weight *= std::exchange(tensor.rows, 1);
  }
  return tensor;
}

using Holders = uint64_t;  // bit r is set if rank r has the cell

inline bool on_stage(const NaiveTensor& tensor, const Gpt& gpt, int stage, int stages) {
  const bool first = stage == 0;
  const bool last = stage == stages - 1;
  switch (tensor.stage) {
    case Stage::kFirst: return first;
    case Stage::kLast: return last;
    case Stage::kFirstAndLast: return first || last;
    case Stage::kOfLayer: return tensor.layer / (gpt.layers / stages) == stage;
  }
  HOLDFAST_CHECK(false, "no such stage");
  return false;  // the thread sanitizer hides from the compiler that this is not reached
}

// The number of rows of a rank's shard in memory, with padding.
inline int64_t shard_rows(const NaiveTensor& tensor, int tp) {
  if (tensor.cut == Cut::kRows) return tensor.rows / tp;
  if (tensor.cut != Cut::kVocabularyRows) return tensor.rows;
  int64_t padded = tensor.rows;
  while (padded % (128 * tp) != 0) ++padded;
  return padded / tp;
}

// Sets the bit `name` in every cell of the shard of tensor-parallel rank `t` of `tp`.
inline void mark_shard(const NaiveTensor& tensor, int t, int tp, Holders name,
                       std::vector<Holders>& cells) {
  const bool by_rows = tensor.cut == Cut::kRows || tensor.cut == Cut::kVocabularyRows;
  const bool by_columns = tensor.cut == Cut::kColumns;
  const int64_t rows = shard_rows(tensor, tp);
  const int64_t columns = by_columns ? tensor.columns / tp : tensor.columns;
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t row = by_rows ? t * rows + i : i;
    if (row >= tensor.rows) continue;  // padding
    Holders* const cells_of_row = cells.data() + row * tensor.columns;
    for (int64_t j = 0; j < columns; ++j) {
      cells_of_row[by_columns ? t * columns + j : j] |= name;
    }
  }
}

// The holders of each cell of the tensor, row by row.
inline std::vector<Holders> holders_of(const NaiveTensor& tensor, const Gpt& gpt,
                                       const Parallel& parallel) {
  HOLDFAST_CHECK(parallel.ranks() <= 64, "{} ranks; expected at most 64",
                 parallel.ranks());
  HOLDFAST_CHECK(gpt.layers % parallel.pp == 0 && gpt.hidden % parallel.tp == 0,
                 "{} layers of {} do not divide evenly", gpt.layers, gpt.hidden);
  std::vector<Holders> cells(static_cast<size_t>(tensor.rows * tensor.columns));
  for (int rank = 0; rank < parallel.ranks(); ++rank) {
    const int t = rank % parallel.tp;
    const int stage = rank / parallel.tp / parallel.dp;
    if (!on_stage(tensor, gpt, stage, parallel.pp)) continue;
    mark_shard(tensor, t, parallel.tp, Holders{1} << rank, cells);
  }
  return cells;
}

struct Transition {
  Parallel from;
  Parallel to;
};

// Bytes of state, by (the ranks that had them, the ranks that shall have them).
using Tally = std::map<std::pair<Holders, Holders>, int64_t>;

// Adds the bytes of all cells. Neighbouring cells mostly have the same holders, so
// equal neighbours are counted first: a lookup for each cell would take most of the
// time of an unoptimised build.
inline void add_cells(const std::vector<Holders>& before,
                      const std::vector<Holders>& after, int64_t cell_bytes,
                      Tally& bytes) {
  const Holders* const had = before.data();
  const Holders* const shall_have = after.data();
  const size_t cells = before.size();
  int64_t alike = 0;
  for (size_t cell = 0; cell < cells; ++cell) {
    ++alike;
    if (cell + 1 < cells && had[cell] == had[cell + 1] &&
        shall_have[cell] == shall_have[cell + 1]) {
      continue;
    }
    bytes[{had[cell], shall_have[cell]}] += alike * cell_bytes;
    alike = 0;
  }
}

inline Tally tally(const Gpt& gpt, const Transition& change, Grain grain) {
  Tally bytes;
  for (NaiveTensor tensor : tensors_of(gpt)) {
    if (grain == Grain::kCutIndex) tensor = coarsen(std::move(tensor));
    const std::vector<Holders> before = holders_of(tensor, gpt, change.from);
    const std::vector<Holders> after = holders_of(tensor, gpt, change.to);
    add_cells(before, after, tensor.weight * kBytesPerParameter, bytes);
  }
  return bytes;
}

inline bool has(Holders holders, size_t rank) { return (holders >> rank & 1) != 0; }

// How many bytes of each new position's shards each device already has. A job that
// shrinks may keep any of the old devices; a job that grows adds devices after the old
// ones.
inline Weights held_already(const Tally& bytes, const Transition& change) {
  const auto positions = static_cast<size_t>(change.to.ranks());
  const auto old = static_cast<size_t>(change.from.ranks());
  Weights held(positions, std::vector<int64_t>(std::max(positions, old)));
  for (const auto& [holders, amount] : bytes) {
    for (size_t p = 0; p < positions; ++p) {
      if (!has(holders.second, p)) continue;
      for (size_t d = 0; d < old; ++d) {
        if (has(holders.first, d)) held[p][d] += amount;
      }
    }
  }
  return held;
}

// Numbers of bytes. In all but `moved_best`, every position is on the device of its
// number.
struct Figures {
  int64_t needed = 0;      // by all new positions together
  int64_t moved = 0;       // needed by a device that did not have them
  int64_t moved_best = 0;  // the same, with the best choice of devices
  // Bytes that are needed on a host of which no device had them, counted once for each
  // host (crossing), and once for each device that needs them (crossing_each).
  int64_t crossing = 0;
  int64_t crossing_each = 0;

  friend bool operator==(const Figures&, const Figures&) = default;
};

// How a failing test prints figures.
inline void PrintTo(const Figures& f, std::ostream* out) {
  *out << fmt::format("needed {}, moved {}, best {}, crossing {}, each {}", f.needed,
                      f.moved, f.moved_best, f.crossing, f.crossing_each);
}

inline Figures figures(const Tally& bytes, const Transition& change) {
  Figures sum;
  for (const auto& [holders, amount] : bytes) {
    const auto [before, after] = holders;
    sum.needed += amount * std::popcount(after);
    sum.moved += amount * std::popcount(after & ~before);
    for (Holders host = 0b1111; host != 0; host <<= kDevicesPerHost) {
      if ((after & host) == 0 || (before & host) != 0) continue;
      sum.crossing += amount;
      sum.crossing_each += amount * std::popcount(after & host);
    }
  }
  sum.moved_best = sum.needed - best_assignment(held_already(bytes, change));
  return sum;
}

}  // namespace holdfast::elementwise
