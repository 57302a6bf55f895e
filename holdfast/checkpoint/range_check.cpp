#include "holdfast/checkpoint/range_check.h"

#include <map>
#include <set>

#include "holdfast/shard/step_name.h"
#include "holdfast/state/box_index.h"
#include "holdfast/state/object_json.h"

namespace holdfast {
namespace {

constexpr std::string_view kRankReport = "report of a rank";

Object int_object(int64_t value) { return Object(Object::Value(value)); }
// Objects have signed numbers only, so a uint64_t travels as hexadecimal digits.
Object hex_object(uint64_t value) { return Object(Object::Value(hex64(value))); }
Object list_object(std::vector<Object> items) {
  return Object(Object::List{std::move(items)});
}

std::string encode(const Object& object) {
  const Result<std::string> text = encode_object(object);
  HOLDFAST_CHECK(text.ok(), "{}", text.error().message());
  return *text;
}

// Reads the items of a list one after the other. What is no list has no items.
class ListReader {
 public:
  explicit ListReader(const Object& object) : list_(object.as<Object::List>()) {}

  size_t remaining() const {
    return list_ == nullptr ? 0 : list_->items.size() - next_;
  }
  template <typename T>
  Result<T> take() {
    if (remaining() == 0)
      return corrupt("{}: a range has {} items; expected more", kRankReport, next_);
    if (const T* value = list_->items[next_++].as<T>()) return *value;
    return corrupt("{}: item {} of a range is of another type; expected {}",
                   kRankReport, next_ - 1,
                   std::is_same_v<T, int64_t> ? "a number" : "text");
  }
  Result<uint64_t> take_hex() {
    const auto number = parse_hex64(HOLDFAST_TRY(take<std::string>()));
    if (number.has_value()) return *number;
    return corrupt(
        "{}: item {} of a range is other text; expected 16 hexadecimal digits",
        kRankReport, next_ - 1);
  }

 private:
  const Object::List* list_;
  size_t next_ = 0;
};

// Decodes [tensor number, whether digests were checked, the seal's two lanes and its
// number of bytes, lo, hi, lo, hi, ...], with lo and hi for each dimension.
Result<RangeRead> parse_range(const Object& object, std::span<const Tensor> tensors) {
  ListReader items(object);
  RangeRead range;
  const int64_t tensor = HOLDFAST_TRY(items.take<int64_t>());
  if (tensor < 0 || tensor >= static_cast<int64_t>(tensors.size())) {
    return corrupt("{}: names tensor number {}; expected a number below {}",
                   kRankReport, tensor, tensors.size());
  }
  range.tensor = static_cast<TensorId>(tensor);
  range.digested = HOLDFAST_TRY(items.take<int64_t>()) != 0;
  for (uint64_t& lane : range.seal.lanes) lane = HOLDFAST_TRY(items.take_hex());
  range.seal.bytes = HOLDFAST_TRY(items.take_hex());
  std::vector<Extent> extents;
  while (items.remaining() > 0) {
    const int64_t lo = HOLDFAST_TRY(items.take<int64_t>());
    extents.push_back({lo, HOLDFAST_TRY(items.take<int64_t>())});
  }
  range.box = HOLDFAST_TRY(Box::create(extents));
  if (range.box.inside(tensors[range.tensor].shape)) return range;
  return corrupt("{}: box {} is not inside tensor number {}", kRankReport,
                 to_string(range.box), tensor);
}

// True if the boxes tile the tensor. They have as many elements as the tensor and leave
// no gap, so they cannot overlap.
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
  std::set<TensorId> undigested;
  std::vector<std::string> unverified;
  for (const RangeRead& range : ranges) {
    if (!range.digested) undigested.insert(range.tensor);
    const auto [entry, added] = parts[range.tensor].emplace(range.box, range.seal);
    // Several ranks may read the same box. It counts once.
    if (added || entry->second == range.seal) continue;
    return corrupt("{}: two ranks have read different bytes for the same box {}",
                   tensors[range.tensor].name, to_string(range.box));
  }
  for (const auto& [tensor, boxes] : parts) {
    const bool is_sealed = seals[tensor].bytes > 0;
    if (!is_sealed || !covers_tensor(boxes, tensors[tensor].shape)) {
      if (undigested.contains(tensor)) unverified.push_back(tensors[tensor].name);
      continue;
    }
    Seal sum;
    for (const auto& [box, seal] : boxes) sum += seal;
    if (sum == seals[tensor]) continue;
    return corrupt(
        "{}: the bytes that the ranks have read have another checksum (seal) than "
        "those "
        "that were saved",
        tensors[tensor].name);
  }
  return unverified;
}

std::string encode_ranges(std::span<const RangeRead> ranges) {
  std::vector<Object> all;
  for (const RangeRead& range : ranges) {
    std::vector<Object> items{int_object(range.tensor),
                              int_object(range.digested ? 1 : 0)};
    for (const uint64_t lane : range.seal.lanes) items.push_back(hex_object(lane));
    items.push_back(hex_object(range.seal.bytes));
    for (const Extent& extent : range.box.extents()) {
      items.push_back(int_object(extent.lo));
      items.push_back(int_object(extent.hi));
    }
    all.push_back(list_object(std::move(items)));
  }
  return encode(list_object(std::move(all)));
}

Result<std::vector<RangeRead>> decode_ranges(const std::string& text,
                                             std::span<const Tensor> tensors) {
  const Object object = HOLDFAST_TRY(decode_object(bytes_of(text), kRankReport));
  const auto* all = object.as<Object::List>();
  if (all == nullptr) return corrupt("{}: is no list; expected one", kRankReport);
  std::vector<RangeRead> ranges;
  for (const Object& item : all->items) {
    ranges.push_back(HOLDFAST_TRY(parse_range(item, tensors)));
  }
  return ranges;
}

std::string encode_names(const std::vector<std::string>& names) {
  std::vector<Object> items;
  for (const std::string& name : names) items.emplace_back(Object::Value(name));
  return encode(list_object(std::move(items)));
}

std::vector<std::string> decode_names(const std::string& text) {
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
