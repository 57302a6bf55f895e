#include "holdfast/models/parameter_split.h"

#include <algorithm>

#include "holdfast/base/checked.h"

namespace holdfast {
namespace {

size_t at(int k) { return static_cast<size_t>(k); }

// Orders of a fused QKV [group, component, head, ...] in memory. With the component
// outermost: Megatron 0, and the K and V of kBlocked.
constexpr Part::Order kComponentFirst{1, 0, 2, 3, 4, 5, 6, 7};
// With the component inside the rows of a head: Megatron 1.
constexpr Part::Order kComponentInside{0, 2, 1, 3, 4, 5, 6, 7};

// The box with its dimensions in the order of memory.
Box to_memory_order(const Box& box, const Part::Order& order) {
  Box result = box;
  for (int k = 0; k < box.rank(); ++k) result = result.with(k, box[order[at(k)]]);
  return result;
}

// The reverse of to_memory_order.
Box from_memory_order(const Box& nested, const Part::Order& order) {
  Box result = nested;
  for (int k = 0; k < nested.rank(); ++k) result = result.with(order[at(k)], nested[k]);
  return result;
}

void append(std::vector<Part>& parts, const Box& box,
            const Part::Order& order = Part::kRowMajor) {
  if (!box.empty()) parts.push_back({box, order});
}

// The heads of one rank: a range of all query heads, and a range of the KV heads.
struct Heads {
  Extent queries;
  Extent groups;
};

// If there are at least as many groups as ranks, groups stay whole. Else the query
// heads are divided, and a rank has the KV heads that its query heads need.
Heads whole_heads(const Parameter& parameter, int64_t t, int64_t ways, SplitRule rule) {
  const int64_t m = parameter.queries;
  if (ways <= parameter.groups) {
    const Extent groups = split(parameter.groups, t, ways, rule);
    return {{groups.lo * m, groups.hi * m}, groups};
  }
  const Extent queries = split(parameter.groups * m, t, ways, rule);
  if (queries.lo == queries.hi) return {queries, {0, 0}};
  return {queries, {queries.lo / m, divide_up(queries.hi, m)}};
}

std::vector<Part> cut_rows(const Box& whole, const Extent& rows, int64_t all_rows) {
  const int64_t row = whole.elements() / std::max<int64_t>(all_rows, 1);
  std::vector<Part> parts;
  for (const Box& box : flat_range(whole, rows.lo * row, rows.hi * row)) {
    append(parts, box);
  }
  return parts;
}

std::vector<Part> cut_qkv(const Parameter& parameter, const Parallel& parallel,
                          int64_t t) {
  const Shape& shape = parameter.tensor.shape;
  const Box whole = Box::whole(shape);
  const int64_t m = parameter.queries;
  if (parallel.qkv == QkvLayout::kInterleaved) {
    const int64_t rows = shape[0] * shape[1] * shape[2];
    return cut_rows(whole, split(rows, t, parallel.tp, parallel.split), rows);
  }
  std::vector<Part> parts;
  if (parallel.qkv == QkvLayout::kBlocked) {
    const Heads heads = whole_heads(parameter, t, parallel.tp, parallel.split);
    parts = cut_rows(whole.with(1, {0, m}), heads.queries, shape[0] * m);
    append(parts, whole.with(0, heads.groups).with(1, {m, m + 2}), kComponentFirst);
    return parts;
  }
  const Extent groups = split(shape[0], t, parallel.tp, parallel.split);
  append(parts, whole.with(0, groups),
         parallel.qkv == QkvLayout::kMegatron0 ? kComponentFirst : kComponentInside);
  return parts;
}

Extent vocabulary_rows(const Tensor& tensor, int64_t t, int64_t ways) {
  const int64_t pad = std::max<int64_t>(tensor.pad_multiple, 1);
  const int64_t rows = tensor.shape[0];
  const int64_t share = divide_up(rows, pad * ways) * pad;
  return {std::min(t * share, rows), std::min((t + 1) * share, rows)};
}

Extent head_columns(const Parameter& parameter, const Parallel& parallel, int64_t t) {
  const int64_t columns = parameter.tensor.shape[parameter.axis];
  if (parallel.qkv == QkvLayout::kInterleaved) {
    return split(columns, t, parallel.tp, parallel.split);
  }
  const Heads heads = whole_heads(parameter, t, parallel.tp, parallel.split);
  const bool of_queries = parameter.cut == Cut::kHeads;
  const Extent own = of_queries ? heads.queries : heads.groups;
  const int64_t head =
      columns / (parameter.groups * (of_queries ? parameter.queries : 1));
  return {own.lo * head, own.hi * head};
}

}  // namespace

bool Part::row_major() const {
  int last = -1;  // dimensions of size 1 are skipped: their order makes no difference
  for (int k = 0; k < box.rank(); ++k) {
    const int dim = order[at(k)];
    if (box.size(dim) == 1) continue;
    if (dim < last) return false;
    last = dim;
  }
  return true;
}

Map Part::map(int64_t element_bytes, int64_t offset) const {
  Map map{.offset = offset};
  int64_t stride = element_bytes;
  for (int k = box.rank() - 1; k >= 0; --k) {
    const int dim = order[at(k)];
    map.strides[at(dim)] = stride;
    stride *= box.size(dim);
  }
  return map;
}

Spread spread_of(const Parameter& parameter, const Parallel& parallel) {
  const int64_t ways =
      parameter.expert ? parallel.ep * parallel.expert_tp() : parallel.tp;
  return {ways, parallel.tp * parallel.dp / ways};
}

Result<void> check_split(const Parameter& parameter, const Parallel& parallel) {
  const bool old =
      parallel.qkv == QkvLayout::kMegatron0 || parallel.qkv == QkvLayout::kMegatron1;
  if (parameter.cut == Cut::kQkv && old && parameter.queries != 1) {
    return invalid(
        "{}: {} query heads for each KV head, but qkv={} is for multi-head attention; "
        "expected interleaved or blocked",
        parameter.tensor.name, parameter.queries,
        parallel.qkv == QkvLayout::kMegatron0 ? "megatron0" : "megatron1");
  }
  return {};
}

std::vector<Part> split_parameter(const Parameter& parameter, const Parallel& parallel,
                                  int64_t way) {
  if (parameter.cut == Cut::kQkv) return cut_qkv(parameter, parallel, way);
  Box box = Box::whole(parameter.tensor.shape);
  int64_t t = way, ways = parallel.tp;
  if (parameter.expert) {
    ways = parallel.expert_tp();
    t = way % ways;
    const int64_t experts = parameter.only ? parameter.only->count : box.size(0);
    const Extent own = split(experts, way / ways, parallel.ep, SplitRule::kEven);
    if (!parameter.only) {
      box = box.with(0, own);
    } else if (parameter.only->number < own.lo || parameter.only->number >= own.hi) {
      return {};
    }
  }
  switch (parameter.cut) {
    case Cut::kAxis:
      box = box.with(parameter.axis,
                     split(box.size(parameter.axis), t, ways, parallel.split));
      break;
    case Cut::kVocabulary:
      box = box.with(0, vocabulary_rows(parameter.tensor, t, ways));
      break;
    case Cut::kHeads:
    case Cut::kKvHeads:
      box = box.with(parameter.axis, head_columns(parameter, parallel, t));
      break;
    case Cut::kReplicated:
    case Cut::kQkv: break;
  }
  std::vector<Part> parts;
  append(parts, box);
  return parts;
}

int64_t elements_of(std::span<const Part> parts) {
  int64_t total = 0;
  for (const Part& part : parts) total += part.box.elements();
  return total;
}

std::vector<Part> flat_range(std::span<const Part> parts, int64_t first, int64_t last) {
  std::vector<Part> result;
  for (const Part& part : parts) {
    const int64_t size = part.box.elements();
    const int64_t lo = std::clamp<int64_t>(first, 0, size);
    const int64_t hi = std::clamp<int64_t>(last, 0, size);
    for (const Box& nested :
         flat_range(to_memory_order(part.box, part.order), lo, hi)) {
      append(result, from_memory_order(nested, part.order), part.order);
    }
    first -= size;
    last -= size;
  }
  return result;
}

}  // namespace holdfast
