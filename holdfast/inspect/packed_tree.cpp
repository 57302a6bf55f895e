#include "holdfast/inspect/packed_tree.h"

#include <array>
#include <optional>

#include "holdfast/base/bytes.h"
#include "holdfast/inspect/training_objects.h"
#include "holdfast/state/number.h"

namespace holdfast {
namespace {

constexpr std::string_view kTypeKey = "holdfast:type";

Result<std::vector<Object>> plain_items(const std::vector<Object>& items,
                                        std::string_view where) {
  std::vector<Object> plain;
  for (const Object& item : items) {
    plain.push_back(HOLDFAST_TRY(plain_values(item, where)));
  }
  return plain;
}

// The dict of a list of pairs.
Result<Object> dict_of(const Object* pairs, std::string_view where) {
  const auto* list = pairs == nullptr ? nullptr : pairs->as<Object::List>();
  if (list == nullptr) return corrupt("{}: a packed dict without items", where);
  Object::Dict dict;
  for (const Object& item : list->items) {
    const auto* pair = item.as<Object::Tuple>();
    if (pair == nullptr || pair->items.size() != 2) {
      return corrupt("{}: a packed dict with an item that is no pair", where);
    }
    dict.items.emplace_back(HOLDFAST_TRY(plain_values(pair->items[0], where)),
                            HOLDFAST_TRY(plain_values(pair->items[1], where)));
  }
  return Object(std::move(dict));
}

// The dtype, given its name in torch ("float32") or numpy ("<f4").
std::optional<Dtype> dtype_named(const std::string& name) {
  constexpr std::array<std::pair<std::string_view, Dtype>, 5> kOfNumpy{
      {{"<f4", Dtype::kF32},
       {"<f8", Dtype::kF64},
       {"<i4", Dtype::kI32},
       {"<i8", Dtype::kI64},
       {"|b1", Dtype::kBool}}};
  for (const auto& [text, dtype] : kOfNumpy) {
    if (name == text) return dtype;
  }
  const Result<Dtype> parsed = parse_dtype(name);
  return parsed.ok() ? std::optional(*parsed) : std::nullopt;
}

// One number, given its bytes and the name of its type. Nullopt if it is no single
// number, or one that an Object does not hold (complex, or of 64 bits without a sign).
std::optional<Object> number_of(const Object* data, const Object* type) {
  const auto* bytes = data == nullptr ? nullptr : data->as<Bytes>();
  const auto* name = type == nullptr ? nullptr : type->as<std::string>();
  if (bytes == nullptr || name == nullptr) return std::nullopt;
  const std::optional<Dtype> dtype = dtype_named(*name);
  if (!dtype || *dtype == Dtype::kU64) return std::nullopt;
  if (info(*dtype).components != 1) return std::nullopt;
  if (std::ssize(*bytes) != bytes_of(*dtype)) return std::nullopt;
  Bytes padded(*bytes);
  padded.resize(sizeof(uint64_t));
  const auto bits = load_little_endian<uint64_t>(padded);
  if (*dtype == Dtype::kBool) return Object(bits != 0);
  if (*dtype == Dtype::kI64) return Object(static_cast<int64_t>(bits));
  const double number = to_double(*dtype, bits);
  if (info(*dtype).kind == DtypeKind::kFloat) return Object(number);
  return Object(static_cast<int64_t>(number));  // exact: at most 32 bits
}

Result<Object> plain_of_kind(const Object& node, const std::string& kind,
                             std::string_view where) {
  constexpr std::array<std::string_view, 5> kDicts{"dict", "OrderedDict", "Counter",
                                                   "defaultdict", "dataclass"};
  for (const std::string_view dict : kDicts) {
    if (kind == dict) return dict_of(find_key(node, "items"), where);
  }
  const Object* items = find_key(node, "items");
  const bool is_list = kind == "deque" || kind == "namedtuple";
  if (is_list && items != nullptr) return plain_values(*items, where);
  if (kind == "tensor" || kind == "numpy scalar") {
    const Object* name = find_key(node, "name");
    if (name != nullptr && name->as<Object::TensorName>() != nullptr) return *name;
    if (auto number = number_of(find_key(node, "data"), find_key(node, "dtype"))) {
      return *std::move(number);
    }
  }
  return unsupported("{}: holds a value of the kind {}; expected plain values", where,
                     kind);
}

Result<Object> plain_dict(const Object& node, const Object::Dict& dict,
                          std::string_view where) {
  const Object* kind = find_key(node, kTypeKey);
  if (kind != nullptr) {
    const auto* text = kind->as<std::string>();
    if (text == nullptr) return corrupt("{}: a packed value without a kind", where);
    return plain_of_kind(node, *text, where);
  }
  Object::Dict plain;
  for (const auto& [key, value] : dict.items) {
    plain.items.emplace_back(key, HOLDFAST_TRY(plain_values(value, where)));
  }
  return Object(std::move(plain));
}

}  // namespace

Result<Object> plain_values(const Object& packed, std::string_view where) {
  if (const auto* list = packed.as<Object::List>()) {
    return Object(Object::List{HOLDFAST_TRY(plain_items(list->items, where))});
  }
  if (const auto* tuple = packed.as<Object::Tuple>()) {
    return Object(Object::Tuple{HOLDFAST_TRY(plain_items(tuple->items, where))});
  }
  if (const auto* dict = packed.as<Object::Dict>()) {
    return plain_dict(packed, *dict, where);
  }
  return packed;
}

}  // namespace holdfast
