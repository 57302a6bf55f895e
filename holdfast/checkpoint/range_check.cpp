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
// number of bytes, lo, hi, lo, hi, ...], with lo and hi for each dimension of the stored
// box and then for those of the part.
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
  const std::span<const Extent> all(extents);
  range.stored = HOLDFAST_TRY(Box::create(all.first(all.size() / 2)));
  range.box = HOLDFAST_TRY(Box::create(all.subspan(all.size() / 2)));
  const Shape& shape = tensors[range.tensor].shape;
  if (range.stored.inside(shape) && range.box.inside(shape)) return range;
  return corrupt("{}: box {} is not inside tensor number {}", kRankReport,
                 to_string(range.box), tensor);
}

// True if the boxes tile the stored one. They have as many elements and leave no gap, so
// they cannot overlap.
bool covers(const std::map<Box, Seal>& parts, const Box& stored) {
  int64_t elements = 0;
  std::vector<Box> boxes;
  for (const auto& [box, seal] : parts) {
    elements += box.elements();
    boxes.push_back(box);
  }
  return elements == stored.elements() && !first_gap(stored, boxes).has_value();
}

}  // namespace

PieceSeals seals_of_pieces(const StepFiles& step) {
  PieceSeals seals;
  const Layout& layout = step.collection.layout();
  for (TensorId t = 0; t < layout.tensor_count(); ++t) {
    const int64_t element = bytes_of(step.collection.tensor(t).dtype);
    for (const Slice& slice : layout.slices(t)) {
      for (PieceId p = slice.first; p < slice.last; ++p) {
        const auto& of_file = step.piece_seals[layout.holder(p)];
        const auto found = of_file.find(layout.map(p, element).offset);
        if (found != of_file.end()) seals[{t, slice.box}] = found->second;
      }
    }
  }
  return seals;
}

Result<std::vector<std::string>> check_ranges(std::span<const RangeRead> ranges,
                                              std::span<const Tensor> tensors,
                                              const PieceSeals& seals) {
  std::map<PieceBox, std::map<Box, Seal>> parts;
  std::set<PieceBox> undigested;
  for (const RangeRead& range : ranges) {
    const PieceBox piece{range.tensor, range.stored};
    if (!range.digested) undigested.insert(piece);
    const auto [entry, added] = parts[piece].emplace(range.box, range.seal);
    // Several ranks may read the same box. It counts once.
    if (added || entry->second == range.seal) continue;
    return corrupt("{}: box {} has different bytes on two ranks; expected the same",
                   tensors[range.tensor].name, to_string(range.box));
  }
  std::set<std::string> unverified;
  for (const auto& [piece, boxes] : parts) {
    const auto saved = seals.find(piece);
    const std::string& name = tensors[piece.first].name;
    if (saved == seals.end() || !covers(boxes, piece.second)) {
      if (undigested.contains(piece)) unverified.insert(name);
      continue;
    }
    Seal sum;
    for (const auto& [box, seal] : boxes) sum += seal;
    if (sum == saved->second) continue;
    return corrupt(
        "{}: what the ranks have read has another seal; expected the one that was "
        "saved",
        name);
  }
  return std::vector<std::string>(unverified.begin(), unverified.end());
}

std::string encode_ranges(std::span<const RangeRead> ranges) {
  std::vector<Object> all;
  for (const RangeRead& range : ranges) {
    std::vector<Object> items{int_object(range.tensor),
                              int_object(range.digested ? 1 : 0)};
    for (const uint64_t lane : range.seal.lanes) items.push_back(hex_object(lane));
    items.push_back(hex_object(range.seal.bytes));
    for (const Box* const box : {&range.stored, &range.box}) {
      for (const Extent& extent : box->extents()) {
        items.push_back(int_object(extent.lo));
        items.push_back(int_object(extent.hi));
      }
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
