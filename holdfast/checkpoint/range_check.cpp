#include "holdfast/checkpoint/range_check.h"

#include <map>

#include "holdfast/shard/step_name.h"
#include "holdfast/state/box_index.h"
#include "holdfast/state/object_json.h"

namespace holdfast {
namespace {

constexpr std::string_view kRankReport = "report of a rank";

Object int_object(int64_t value) { return Object(Object::Value(value)); }
Object word(uint64_t value) { return Object(Object::Value(hex64(value))); }
Object list(std::vector<Object> items) {
  return Object(Object::List{std::move(items)});
}

std::string print(const Object& object) {
  const Result<std::string> text = encode_object(object);
  HOLDFAST_CHECK(text.ok(), "{}", text.error().message());
  return *text;
}

// Gives the items of a list one after the other.
class Items {
 public:
  explicit Items(const Object& object) : list_(object.as<Object::List>()) {}

  size_t left() const { return list_ == nullptr ? 0 : list_->items.size() - next_; }
  template <typename T>
  Result<T> take() {
    if (left() == 0) return corrupt("{}: a range ends early", kRankReport);
    if (const T* value = list_->items[next_++].as<T>()) return *value;
    return corrupt("{}: item {} has another type than expected", kRankReport,
                   next_ - 1);
  }
  Result<uint64_t> take_word() {
    const auto word = parse_hex64(HOLDFAST_TRY(take<std::string>()));
    if (word.has_value()) return *word;
    return corrupt("{}: item {} is no number; expected 16 hexadecimal digits",
                   kRankReport, next_ - 1);
  }

 private:
  const Object::List* list_;
  size_t next_ = 0;
};

// Parses a range, which is written as [tensor, seal lane, seal lane, seal bytes, lo,
// hi, lo, hi, ...].
Result<RangeRead> parse_range(const Object& object, std::span<const Tensor> tensors) {
  Items items(object);
  RangeRead range;
  const int64_t tensor = HOLDFAST_TRY(items.take<int64_t>());
  if (tensor < 0 || tensor >= static_cast<int64_t>(tensors.size())) {
    return corrupt("{}: names tensor number {}; expected less than {}", kRankReport,
                   tensor, tensors.size());
  }
  range.tensor = static_cast<TensorId>(tensor);
  for (uint64_t& lane : range.seal.lanes) lane = HOLDFAST_TRY(items.take_word());
  range.seal.bytes = HOLDFAST_TRY(items.take_word());
  std::vector<Extent> extents;
  while (items.left() > 0) {
    const int64_t lo = HOLDFAST_TRY(items.take<int64_t>());
    extents.push_back({lo, HOLDFAST_TRY(items.take<int64_t>())});
  }
  range.box = HOLDFAST_TRY(Box::create(extents));
  if (range.box.inside(tensors[range.tensor].shape)) return range;
  return corrupt("{}: box {} is not inside tensor number {}", kRankReport,
                 to_string(range.box), tensor);
}

// True if the parts are disjoint and together have all elements of the tensor.
bool covers_tensor(const std::map<Box, Seal>& parts, const Shape& shape) {
  int64_t elements = 0;
  std::vector<Box> boxes;
  for (const auto& [box, seal] : parts) {
    elements += box.elements();
    boxes.push_back(box);
  }
  if (elements != shape.elements()) return false;
  return !first_gap(Box::whole(shape), boxes).has_value();
}

}  // namespace

Result<std::vector<std::string>> check_ranges(std::span<const RangeRead> ranges,
                                              std::span<const Tensor> tensors,
                                              std::span<const Seal> seals) {
  std::map<TensorId, std::map<Box, Seal>> parts;
  std::vector<std::string> unknown;
  for (const RangeRead& range : ranges) {
    const auto [entry, added] = parts[range.tensor].emplace(range.box, range.seal);
    if (added || entry->second == range.seal) continue;
    return corrupt("{}: two ranks have read different bytes of box {}",
                   tensors[range.tensor].name, to_string(range.box));
  }
  for (const auto& [tensor, of_tensor] : parts) {
    if (!covers_tensor(of_tensor, tensors[tensor].shape)) {
      unknown.push_back(tensors[tensor].name);
      continue;
    }
    Seal sum;
    for (const auto& [box, seal] : of_tensor) sum += seal;
    if (sum == seals[tensor]) continue;
    return corrupt(
        "{}: the seals of the parts that were read do not sum up to its seal",
        tensors[tensor].name);
  }
  return unknown;
}

std::string print_ranges(std::span<const RangeRead> ranges) {
  std::vector<Object> all;
  for (const RangeRead& range : ranges) {
    std::vector<Object> items{int_object(range.tensor), word(range.seal.lanes[0]),
                              word(range.seal.lanes[1]), word(range.seal.bytes)};
    for (const Extent& extent : range.box.extents()) {
      items.push_back(int_object(extent.lo));
      items.push_back(int_object(extent.hi));
    }
    all.push_back(list(std::move(items)));
  }
  return print(list(std::move(all)));
}

Result<std::vector<RangeRead>> parse_ranges(const std::string& text,
                                            std::span<const Tensor> tensors) {
  const Object object = HOLDFAST_TRY(decode_object(bytes_of(text), kRankReport));
  const auto* all = object.as<Object::List>();
  if (all == nullptr) return corrupt("{}: is no list", kRankReport);
  std::vector<RangeRead> ranges;
  for (const Object& item : all->items) {
    ranges.push_back(HOLDFAST_TRY(parse_range(item, tensors)));
  }
  return ranges;
}

std::string print_names(const std::vector<std::string>& names) {
  std::vector<Object> items;
  for (const std::string& name : names) items.emplace_back(Object::Value(name));
  return print(list(std::move(items)));
}

std::vector<std::string> parse_names(const std::string& text) {
  std::vector<std::string> names;
  const Result<Object> object = decode_object(bytes_of(text), kRankReport);
  const auto* all = object.ok() ? object->as<Object::List>() : nullptr;
  if (all == nullptr) return names;
  for (const Object& item : all->items) {
    if (const auto* name = item.as<std::string>()) names.push_back(*name);
  }
  return names;
}

}  // namespace holdfast
