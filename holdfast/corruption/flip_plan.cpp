#include "holdfast/corruption/flip_plan.h"

#include <fmt/ranges.h>

#include <set>
#include <utility>

namespace holdfast {

FlipPlan inverse(FlipPlan plan) {
  for (PlannedFlip& flip : plan.flips) std::swap(flip.before, flip.after);
  for (PlannedByte& byte : plan.bytes) std::swap(byte.before, byte.after);
  return plan;
}

namespace {

// The index only says for people where the element is. A plan that was edited by hand
// may have changed one of them and not the other.
Result<void> check_index(const Tensor& tensor, const PlannedFlip& flip) {
  const std::string expected = index_text(tensor.shape, flip.element);
  const std::string index = fmt::format("[{}]", fmt::join(flip.index, ", "));
  if (index == expected) return {};
  return invalid("{} {}: is not element {}; expected {}", flip.tensor, index,
                 flip.element, expected);
}

}  // namespace

Result<void> check_plan(const Contents& contents, const FlipPlan& plan) {
  const Collection& collection = contents.collection;
  std::set<std::pair<TensorId, int64_t>> seen_before;
  for (const PlannedFlip& flip : plan.flips) {
    const auto tensor = collection.find(flip.tensor);
    if (!tensor) {
      return not_found(
          "{}: there is no tensor of this name; expected those of the plan",
          flip.tensor);
    }
    const Tensor& of = collection.tensor(*tensor);
    if (of.dtype != flip.dtype || flip.element >= of.shape.elements()) {
      return conflict(
          "{}: is {} {}; expected {} with more than {} elements, as in the plan",
          flip.tensor, name_of(of.dtype), to_string(of.shape), name_of(flip.dtype),
          flip.element);
    }
    HOLDFAST_TRY(check_index(of, flip));
    if (!seen_before.emplace(*tensor, flip.element).second) {
      return invalid("{} {}: is in the plan twice; expected each element once",
                     flip.tensor, index_text(of.shape, flip.element));
    }
    Bytes bytes(static_cast<size_t>(bytes_of(of.dtype)));
    HOLDFAST_TRY(
        read_canonical(contents, *tensor, flip.element * bytes_of(of.dtype), bytes));
    const ElementBits seen = element_bits(bytes);
    if (seen == flip.before) continue;
    return conflict("{} {}: has the bits {} ({}); expected {} ({}), as in the plan",
                    flip.tensor, index_text(of.shape, flip.element),
                    bits_text(of.dtype, seen), value_text(of.dtype, seen),
                    bits_text(of.dtype, flip.before),
                    value_text(of.dtype, flip.before));
  }
  return {};
}

std::vector<Flip> flips_of(const FlipPlan& plan) {
  std::vector<Flip> flips;
  for (const PlannedFlip& flip : plan.flips) {
    flips.push_back(
        {.tensor = flip.tensor, .element = flip.element, .mask = flip.mask()});
  }
  return flips;
}

std::string describe(const PlannedFlip& flip) {
  return fmt::format("{} [{}]  {} {}  {}", flip.tensor, fmt::join(flip.index, ", "),
                     name_of(flip.dtype), bits_in_words(flip.mask()),
                     change_text(flip.dtype, flip.before, flip.after));
}

std::string describe(const PlannedByte& byte) {
  return fmt::format("{}  byte {}  {} -> {}", byte.file, byte.offset,
                     to_hex(byte.before),
                     to_hex(byte.after));
}

}  // namespace holdfast
