#include "holdfast/inspect/packed_tree.h"

#include <array>
#include <optional>

#include "holdfast/base/bytes.h"
#include "holdfast/inspect/training_objects.h"

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

template <typename Stored, typename Value>
std::optional<Object> number_from(const Bytes& bytes) {
  if (bytes.size() != sizeof(Stored)) return std::nullopt;
  return Object(static_cast<Value>(load_little_endian<Stored>(bytes)));
}

// One number, given its bytes and the name of its type in torch or numpy.
std::optional<Object> number_of(const Object* data, const Object* type) {
  const auto* bytes = data == nullptr ? nullptr : data->as<Bytes>();
  const auto* name = type == nullptr ? nullptr : type->as<std::string>();
  if (bytes == nullptr || name == nullptr) return std::nullopt;
  if (*name == "float32" || *name == "<f4") {
    const auto bits = number_from<uint32_t, int64_t>(*bytes);
    if (!bits) return std::nullopt;
    const auto word = static_cast<uint32_t>(*bits->as<int64_t>());
    return Object(static_cast<double>(std::bit_cast<float>(word)));
  }
  if (*name == "float64" || *name == "<f8") {
    const auto bits = number_from<uint64_t, int64_t>(*bytes);
    if (!bits) return std::nullopt;
    return Object(std::bit_cast<double>(*bits->as<int64_t>()));
  }
  if (*name == "int64" || *name == "<i8") return number_from<uint64_t, int64_t>(*bytes);
  if (*name == "int32" || *name == "<i4") {
    const auto bits = number_from<uint32_t, int64_t>(*bytes);
    if (!bits) return std::nullopt;
    return Object(int64_t{static_cast<int32_t>(*bits->as<int64_t>())});
  }
  if (*name == "bool" || *name == "|b1") return number_from<uint8_t, bool>(*bytes);
  return std::nullopt;
}

Result<Object> plain_of_kind(const Object& node, const std::string& kind,
                             std::string_view where) {
  constexpr std::array<std::string_view, 4> kDicts{"dict", "OrderedDict", "Counter",
                                                   "defaultdict"};
  for (const std::string_view dict : kDicts) {
    if (kind == dict) return dict_of(find_key(node, "items"), where);
  }
  const Object* items = find_key(node, "items");
  if (kind == "deque" && items != nullptr) return plain_values(*items, where);
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
