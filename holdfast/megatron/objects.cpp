#include "holdfast/megatron/objects.h"

#include <fmt/ranges.h>


#include "holdfast/base/json_text.h"
#include "holdfast/base/number_text.h"

namespace holdfast::megatron {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 20;
constexpr int64_t kMostLayers = int64_t{1} << 20;
constexpr std::string_view kTensorClass = "torch.Tensor";

bool is_object_of_class(const Object& object) {
  return find_key(object, "__class__") != nullptr;
}

Result<void> collect(const Object& tree, std::vector<std::string>& path,
                     std::vector<Leaf>& leaves) {
  const auto* dict = tree.as<Object::Dict>();
  if (dict == nullptr || is_object_of_class(tree)) {
    leaves.push_back({.path = path, .value = tree});
    return {};
  }
  for (const auto& [key, value] : dict->items) {
    const auto* text = key.as<std::string>();
    if (text == nullptr) {
      return unsupported("{}: has a key that is no text; expected names of modules",
                         shown(joined(path)));
    }
    path.push_back(*text);
    HOLDFAST_TRY(collect(value, path, leaves));
    path.pop_back();
  }
  return {};
}

// A number in a key, such as the 3 in "layers.3.mlp.weight".
struct NumberInKey {
  size_t key = 0;  // which of the keys of the path
  size_t begin = 0, end = 0;
  int64_t number = 0;
};

std::optional<NumberInKey> find_number(const std::vector<std::string>& path) {
  constexpr std::string_view kLayers = "layers.";
  for (size_t k = 0; k < path.size(); ++k) {
    const std::string& text = path[k];
    const size_t at = text.find(kLayers);
    if (at == text.npos || (at > 0 && text[at - 1] != '.')) continue;
    NumberInKey found{.key = k, .begin = at + kLayers.size()};
    std::string_view rest = std::string_view(text).substr(found.begin);
    found.number = take_number<int64_t>(rest).value_or(-1);
    found.end = text.size() - rest.size();
    if (found.number < 0 || found.number >= kMostLayers) continue;
    if (found.end < text.size() && text[found.end] != '.') continue;
    return found;
  }
  return std::nullopt;
}

Result<Object> bytes_object(const Contents& contents, const std::string& name) {
  const auto id = contents.collection.find(name);
  if (!id) return corrupt("{}: is not in the file", shown(name));
  const Tensor& tensor = contents.collection.tensor(*id);
  if (tensor.bytes() > kMostBytes) {
    return unsupported("{}: is a tensor of {} bytes outside of model and optimizer; "
                       "expected at most {}",
                       shown(name), tensor.bytes(), kMostBytes);
  }
  Bytes bytes(static_cast<size_t>(tensor.bytes()));
  HOLDFAST_TRY(read_canonical(contents, *id, 0, bytes));
  Object::Tuple shape;
  for (const int64_t size : tensor.shape.sizes()) shape.items.emplace_back(size);
  Object made{Object::Dict{}};
  set_key(made, "__class__", Object(std::string(kTensorClass)));
  set_key(made, "dtype", Object(std::string(name_of(tensor.dtype))));
  set_key(made, "shape", Object(std::move(shape)));
  set_key(made, "bytes", Object(std::move(bytes)));
  return made;
}

}  // namespace

void set_key(Object& dict, std::string_view key, Object value) {
  if (Object* found = find_key(dict, key)) {
    *found = std::move(value);
    return;
  }
  auto* items = std::get_if<Object::Dict>(&dict.value());
  HOLDFAST_CHECK(items != nullptr, "{} is set in an object that is no dict", key);
  items->items.emplace_back(Object(std::string(key)), std::move(value));
}

std::optional<int64_t> integer_at(const Object& dict, std::string_view key) {
  const Object* found = find_key(dict, key);
  const auto* integer = found == nullptr ? nullptr : found->as<int64_t>();
  return integer == nullptr ? std::nullopt : std::optional(*integer);
}

bool true_at(const Object& dict, std::string_view key) {
  const Object* found = find_key(dict, key);
  const auto* truth = found == nullptr ? nullptr : found->as<bool>();
  return truth != nullptr && *truth;
}

Result<std::vector<Leaf>> collect_leaves(const Object& tree) {
  std::vector<Leaf> leaves;
  std::vector<std::string> path;
  HOLDFAST_TRY(collect(tree, path, leaves));
  return leaves;
}

void add_leaf(Object& tree, const Leaf& leaf) {
  Object* at = &tree;
  for (size_t k = 0; k + 1 < leaf.path.size(); ++k) {
    if (find_key(*at, leaf.path[k]) == nullptr) {
      set_key(*at, leaf.path[k], Object(Object::Dict{}));
    }
    at = find_key(*at, leaf.path[k]);
  }
  set_key(*at, leaf.path.back(), leaf.value);
}

std::string joined(const std::vector<std::string>& path) {
  return fmt::format("{}", fmt::join(path, "."));
}

std::optional<int64_t> layer_of(const std::vector<std::string>& path) {
  const auto found = find_number(path);
  return found ? std::optional(found->number) : std::nullopt;
}

std::vector<std::string> with_layer(std::vector<std::string> path, int64_t layer) {
  if (const auto found = find_number(path)) {
    path[found->key].replace(found->begin, found->end - found->begin,
                             std::to_string(layer));
  }
  return path;
}

Result<Object> with_bytes_of_tensors(const Contents& contents, const Object& object) {
  if (const auto* leaf = object.as<Object::TensorName>()) {
    return bytes_object(contents, leaf->name);
  }
  Object made = object;
  if (auto* list = std::get_if<Object::List>(&made.value())) {
    for (Object& item : list->items) {
      item = HOLDFAST_TRY(with_bytes_of_tensors(contents, item));
    }
  } else if (auto* tuple = std::get_if<Object::Tuple>(&made.value())) {
    for (Object& item : tuple->items) {
      item = HOLDFAST_TRY(with_bytes_of_tensors(contents, item));
    }
  } else if (auto* dict = std::get_if<Object::Dict>(&made.value())) {
    for (auto& [key, value] : dict->items) {
      value = HOLDFAST_TRY(with_bytes_of_tensors(contents, value));
    }
  }
  return made;
}

std::optional<StoredBytes> bytes_of_tensor(const Object& object) {
  const Object* name = find_key(object, "__class__");
  const auto* text = name == nullptr ? nullptr : name->as<std::string>();
  if (text == nullptr || *text != kTensorClass) return std::nullopt;
  const Object* dtype = find_key(object, "dtype");
  const Object* shape = find_key(object, "shape");
  const Object* bytes = find_key(object, "bytes");
  if (dtype == nullptr || shape == nullptr || bytes == nullptr) return std::nullopt;
  const auto* sizes = shape->as<Object::Tuple>();
  const auto* stored = bytes->as<Bytes>();
  const auto* type = dtype->as<std::string>();
  if (sizes == nullptr || stored == nullptr || type == nullptr) return std::nullopt;
  std::vector<int64_t> numbers;
  for (const Object& size : sizes->items) {
    if (size.as<int64_t>() == nullptr) return std::nullopt;
    numbers.push_back(*size.as<int64_t>());
  }
  const auto parsed = parse_dtype(*type);
  const auto made = Shape::create(numbers);
  if (!parsed.ok() || !made.ok()) return std::nullopt;
  if (made->elements() * holdfast::bytes_of(*parsed) != std::ssize(*stored)) {
    return std::nullopt;
  }
  return StoredBytes{.dtype = *parsed, .shape = *made, .bytes = *stored};
}

}  // namespace holdfast::megatron
