// Which part of a tensor a rank of Megatron has, and in which order of rows it has it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "holdfast/models/rules.h"

namespace holdfast::megatron {

// A box of the whole tensor, and where it lies in the rank's own tensor along the axis
// that is cut: its index i there is at first + i * step.
struct LocalPart {
  Box box{};
  int64_t first = 0;
  int64_t step = 1;
};

// The order of the rows of a fused QKV on a rank, by checkpoint_version.
struct QkvRows {
  int version = 2;    // 0: [3, heads, head]; 1: [heads, head, 3]; 2: [heads, 3, head]
  int64_t heads = 0;  // of the whole model; only needed for 0 and 1
};

// Whether the name is that of a fused QKV whose rows old versions order in another way.
bool is_old_qkv(std::string_view name);

// The whole tensor, if one rank of `ways` has `local`. Fails with kInvalid if the rule
// needs more dimensions, or components that do not divide the axis.
Result<Shape> whole_shape(const Rule& rule, const Shape& local, int64_t ways);

// What rank `rank` of `ways` has of a tensor, in the order of its own rows. The axis must
// be divisible as whole_shape() and check_degrees() have it.
std::vector<LocalPart> local_parts(const Rule& rule, const Shape& shape, int64_t ways,
                                   int64_t rank);
// The same for a fused QKV of version 0 or 1. Fails with kInvalid if the heads do not
// divide the rows.
Result<std::vector<LocalPart>> old_qkv_parts(const Shape& shape, int64_t ways,
                                             int64_t rank, const QkvRows& rows);

}  // namespace holdfast::megatron
