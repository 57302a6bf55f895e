#include "holdfast/megatron/cut.h"

namespace holdfast::megatron {

bool is_old_qkv(std::string_view name) {
  return name.find(".query_key_value.") != name.npos;
}

Result<Shape> whole_shape(const Rule& rule, const Shape& local, int64_t ways) {
  if (rule.cut == Cut::kReplicated) return local;
  const int axis = rule.cut == Cut::kVocabulary ? 0 : rule.axis;
  if (rule.stacked || local.rank() <= axis) {
    return invalid("has the shape {}; expected {} dimensions by the rule {}",
                   to_string(local), axis + 1, rule.pattern);
  }
  if (local[axis] % rule.parts != 0 || (rule.parts > 1 && axis != 0)) {
    return invalid("has the shape {}; expected {} equal components of rows",
                   to_string(local), rule.parts);
  }
  const auto sizes = local.sizes();
  std::vector<int64_t> whole(sizes.begin(), sizes.end());
  // A file can claim any size, and Shape refuses what is too large.
  int64_t& size = whole[static_cast<size_t>(axis)];
  if (__builtin_mul_overflow(size, ways, &size)) {
    return invalid("has the shape {}; expected a smaller one", to_string(local));
  }
  return Shape::create(whole);
}

std::vector<LocalPart> local_parts(const Rule& rule, const Shape& shape, int64_t ways,
                                   int64_t rank) {
  const Box whole = Box::whole(shape);
  if (rule.cut == Cut::kReplicated) return {{.box = whole}};
  const int axis = rule.cut == Cut::kVocabulary ? 0 : rule.axis;
  const int64_t component = shape[axis] / rule.parts;
  const int64_t own = component / ways;
  std::vector<LocalPart> parts;
  for (int64_t c = 0; c < rule.parts; ++c) {
    const int64_t begin = c * component + rank * own;
    parts.push_back({.box = whole.with(axis, {begin, begin + own}), .first = c * own});
  }
  return parts;
}

Result<std::vector<LocalPart>> old_qkv_parts(const Shape& shape, int64_t ways,
                                             int64_t rank, const QkvRows& rows) {
  if (rows.heads <= 0 || rows.heads % ways != 0 || shape[0] % (3 * rows.heads) != 0) {
    return invalid(
        "has {} rows of {} heads on {} ranks, and the rows are ordered as in "
        "checkpoint_version {}; expected args with the number of heads",
        shape[0], rows.heads, ways, rows.version);
  }
  const int64_t own = rows.heads / ways;
  const int64_t head = shape[0] / (3 * rows.heads);
  std::vector<LocalPart> parts;
  for (int64_t h = 0; h < own; ++h) {
    for (int64_t c = 0; c < 3; ++c) {
      const int64_t begin = ((rank * own + h) * 3 + c) * head;
      LocalPart part{.box = Box::whole(shape).with(0, {begin, begin + head})};
      part.first = rows.version == 0 ? (c * own + h) * head : h * head * 3 + c;
      part.step = rows.version == 0 ? 1 : 3;
      parts.push_back(part);
    }
  }
  return parts;
}

}  // namespace holdfast::megatron
