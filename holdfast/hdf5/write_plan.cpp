#include "holdfast/hdf5/write_plan_internal.h"

#include <algorithm>

#include "holdfast/base/json_text.h"
#include "holdfast/hdf5/datatype_internal.h"

namespace holdfast::hdf5 {
namespace {

// Tensors whose names HDF5 cannot have are called so, with a number behind.
constexpr std::string_view kOddName = "holdfast.tensor.";
// An attribute lies in a message of at most 64 KiB.
constexpr size_t kMostAttributeBytes = 60000;
// The number of messages of an object has 16 bits.
constexpr size_t kMostAttributes = 30000;
// Readers refuse groups that are nested deeper.
constexpr size_t kMostParts = 60;
// Keras splits these lists of names if they are long, and reads them so.
constexpr size_t kNamesOfAPart = 2000;
constexpr int kMostLinksInARow = 16;

bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         !name.starts_with(kKeptPrefix) && name.find('\0') == name.npos &&
         is_utf8(name);
}

// How HDF5 stores a dtype: floats of one byte, which it does not have, as integers. BF16
// is stored as Keras does it.
Dtype stored_as(Dtype dtype) {
  const bool is_foreign = info(dtype).kind == DtypeKind::kFloat && bytes_of(dtype) == 1;
  return is_foreign ? unsigned_like(dtype) : dtype;
}

std::vector<std::string_view> parts_of(std::string_view path) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t end = path.find('/');
    parts.push_back(path.substr(0, end));
    if (end == path.npos) return parts;
    path.remove_prefix(end + 1);
  }
}

// A reader visits groups in the order of their links' names, and calls a dataset by the
// first path.
bool comes_before(const std::string& a, const std::string& b) {
  return parts_of(a) < parts_of(b);
}

template <typename Value>
const Value* find_in(const std::map<std::string, Value>& map, const std::string& key) {
  const auto found = map.find(key);
  return found == map.end() ? nullptr : &found->second;
}

class WritePlanner {
 public:
  explicit WritePlanner(const Contents& contents)
      : contents_(contents), soft_links_(contents.hdf5.soft_links) {}

  WritePlan plan() && {
    const auto tensors = contents_.collection.tensors();
    paths_.resize(tensors.size());
    plan_.links.resize(tensors.size());
    plan_.attributes.resize(tensors.size());
    for (TensorId t = 0; t < tensors.size(); ++t) place_tensor(t, hard_name(tensors[t]));
    for (TensorId t = 0; t < tensors.size(); ++t) place_aliases(t);
    for (const auto& [path, target] : soft_links_) {
      if (Node* node = free_node(path)) node->target = target;
    }
    for (const std::string& path : contents_.hdf5.empty_groups) {
      Node* node = find_or_add(path);
      if (node != nullptr && !node->is_leaf()) node->kept = true;
    }
    for (TensorId t = 0; t < tensors.size(); ++t) settle_name(t);
    if (!place_objects()) plan_.objects = contents_.objects;
    return std::move(plan_);
  }

 private:
  // The node at a path, made with its groups if it is not there. Null if the path has a
  // part that HDF5 cannot have, or leads through a dataset or a soft link.
  Node* find_or_add(std::string_view path) {
    const auto parts = parts_of(path);
    if (parts.size() > kMostParts || !std::ranges::all_of(parts, is_plain_name)) {
      return nullptr;
    }
    Node* node = &plan_.root;
    for (const std::string_view part : parts) {
      if (node->is_leaf()) return nullptr;
      node = &node->children[std::string(part)];
    }
    return node;
  }
  Node* free_node(std::string_view path) {
    Node* node = find_or_add(path);
    return node == nullptr || node->is_written() ? nullptr : node;
  }

  bool is_under_soft_link(std::string_view path) const {
    if (soft_links_.empty()) return false;
    for (size_t end = path.find('/'); end != path.npos; end = path.find('/', end + 1)) {
      if (soft_links_.contains(std::string(path.substr(0, end)))) return true;
    }
    return soft_links_.contains(std::string(path));
  }

  // A name of the tensor that no soft link stands for. If all names are such, the links
  // to them are not written.
  std::string hard_name(const Tensor& tensor) {
    if (!is_under_soft_link(tensor.name)) return tensor.name;
    for (const std::string& alias : tensor.aliases) {
      if (!is_under_soft_link(alias)) return alias;
    }
    const std::string& name = tensor.name;
    for (size_t end = name.find('/'); end != name.npos; end = name.find('/', end + 1)) {
      soft_links_.erase(name.substr(0, end));
    }
    soft_links_.erase(name);
    return name;
  }

  void place_tensor(TensorId t, std::string name) {
    Node* node = free_node(name);
    if (node == nullptr) {
      name = fmt::format("{}{}", kOddName, t);
      node = &plan_.root.children[name];
    }
    node->tensor = t;
    plan_.links[t] = 1;
    paths_[t].push_back(std::move(name));
  }

  void place_aliases(TensorId t) {
    const Tensor& tensor = contents_.collection.tensor(t);
    const auto place = [&](const std::string& alias) {
      if (alias == paths_[t].front() || is_under_soft_link(alias)) return;
      Node* node = free_node(alias);
      if (node == nullptr) return;
      node->tensor = t;
      ++plan_.links[t];
      paths_[t].push_back(alias);
    };
    place(tensor.name);
    for (const std::string& alias : tensor.aliases) place(alias);
  }

  // The tensor that a reader finds at a path.
  std::optional<TensorId> find_tensor(std::string_view path, int depth) const {
    const Node* node = &plan_.root;
    std::string walked;
    for (auto parts = parts_of(path); const std::string_view part : parts) {
      if (part.empty() || part == ".") continue;
      const auto child = node->children.find(std::string(part));
      if (child == node->children.end()) return std::nullopt;
      node = &child->second;
      if (node->target) {
        const auto behind = static_cast<size_t>(part.data() + part.size() - path.data());
        const std::string base =
            node->target->starts_with('/') ? std::string() : walked + "/";
        if (depth == kMostLinksInARow) return std::nullopt;
        return find_tensor(base + *node->target + std::string(path.substr(behind)),
                           depth + 1);
      }
      walked += "/" + std::string(part);
    }
    return node->tensor;
  }

  // Finds out by which name a reader will call the tensor, and whether it will find its
  // aliases, in their order.
  void settle_name(TensorId t) {
    const Tensor& tensor = contents_.collection.tensor(t);
    std::vector<std::string> all{tensor.name};
    std::ranges::copy(tensor.aliases, std::back_inserter(all));
    bool same = std::ranges::is_sorted(all, comes_before);
    for (const std::string& path : all) {
      const bool there = find_tensor(path, 0) == t;
      same = same && there;
      if (there) paths_[t].push_back(path);
    }
    plan_.stored.push_back({.name = *std::ranges::min_element(paths_[t], comes_before),
                            .dtype = stored_as(tensor.dtype),
                            .has_ties = same});
  }

  // Returns whether the file will have all objects.
  bool place_objects() {
    if (contents_.objects.none()) return true;
    const auto* all = contents_.objects.as<Object::Dict>();
    if (all == nullptr) return false;
    bool whole = true;
    for (const auto& [name, value] : all->items) {
      const auto* text = name.as<std::string>();
      const bool known = text != nullptr && (*text == "attributes" || *text == "values");
      whole = whole && known && value.as<Object::Dict>() != nullptr;
    }
    whole = place_each(*all, "values", &WritePlanner::place_value) && whole;
    return place_each(*all, "attributes", &WritePlanner::place_attributes) && whole;
  }

  // Places the items of a dict in `all`, which are by path.
  using Place = bool (WritePlanner::*)(const std::string& path, const Object& object);
  bool place_each(const Object::Dict& all, std::string_view key, Place place) {
    bool whole = true;
    for (const auto& [name, value] : all.items) {
      const auto* dict = value.as<Object::Dict>();
      if (!(name == Object(std::string(key))) || dict == nullptr) continue;
      for (const auto& [path, object] : dict->items) {
        const auto* text = path.as<std::string>();
        whole = text != nullptr && (this->*place)(*text, object) && whole;
      }
    }
    return whole;
  }

  bool place_value(const std::string& path, const Object& object) {
    auto value = native_value(object, find_in(contents_.hdf5.values, path));
    if (!value) return false;
    // A list of no texts must not become a tensor.
    if (value->as_it_was == nullptr && value->elements.empty() &&
        !value->sizes.empty()) {
      value->kind = NativeValue::Kind::kText;
    }
    const bool fits = value->kind == NativeValue::Kind::kNone ||
                      value->kind == NativeValue::Kind::kText ||
                      value->kind == NativeValue::Kind::kBytes;
    Node* node = fits ? free_node(path) : nullptr;
    if (node == nullptr) return false;
    node->value = std::move(value);
    return true;
  }

  bool place_attributes(const std::string& path, const Object& object) {
    const auto* dict = object.as<Object::Dict>();
    Node* node = path == "/" ? &plan_.root : find_or_add(path);
    if (dict == nullptr || node == nullptr || node->target) return false;
    if (!node->is_leaf()) node->kept = true;
    auto& into = node->tensor ? plan_.attributes[*node->tensor] : node->attributes;
    const auto* before = find_in(contents_.hdf5.attributes, path);
    bool whole = true;
    for (const auto& [name, value] : dict->items) {
      const auto* text = name.as<std::string>();
      if (text == nullptr || !is_plain_name(*text)) {
        whole = false;
        continue;
      }
      const Hdf5Value* was = before == nullptr ? nullptr : find_in(*before, *text);
      whole = add_attribute(*text, native_value(value, was), *node, into) && whole;
    }
    return whole;
  }

  bool add_attribute(const std::string& name, std::optional<NativeValue> value,
                     const Node& node, std::vector<NewAttribute>& into) const {
    const bool is_dtype = node.tensor && name == kDtypeAttribute &&
                          plan_.stored[*node.tensor].dtype == Dtype::kBf16;
    if (is_dtype || !value || into.size() > kMostAttributes) return false;
    if (name.size() + value->stored_bytes() <= kMostAttributeBytes) {
      into.push_back({name, *std::move(value)});
      return true;
    }
    const bool splits = std::ranges::find(kSplitAttributes, name) !=
                            std::ranges::end(kSplitAttributes) &&
                        value->kind == NativeValue::Kind::kText &&
                        value->sizes.size() == 1;
    for (size_t i = 0; splits && i * kNamesOfAPart < value->elements.size(); ++i) {
      NativeValue part{.kind = value->kind};
      const auto first =
          value->elements.begin() + static_cast<int64_t>(i * kNamesOfAPart);
      const auto left = static_cast<size_t>(value->elements.end() - first);
      part.elements.assign(
          first, first + static_cast<int64_t>(std::min(kNamesOfAPart, left)));
      part.sizes = {std::ssize(part.elements)};
      into.push_back({fmt::format("{}{}", name, i), std::move(part)});
    }
    return splits;
  }

  const Contents& contents_;
  std::map<std::string, std::string> soft_links_;
  WritePlan plan_;
  std::vector<std::vector<std::string>> paths_;  // of each tensor
};

}  // namespace

WritePlan plan_write(const Contents& contents) {
  return WritePlanner(contents).plan();
}

}  // namespace holdfast::hdf5
