// The state dict of a DCP folder: put together from the paths of its entries.
#include <algorithm>
#include <optional>

#include "holdfast/formats/dcp_internal.h"

namespace holdfast::dcp {
namespace {

// How many items that no entry has all lists may have together. torch leaves such holes
// for empty dicts in a list.
constexpr int64_t kMaxHoles = int64_t{1} << 20;

}  // namespace

// A leaf with a value, a dict, or a list. A node without any of these is new.
struct TreeBuilder::Node {
  std::optional<Object> value{};
  std::vector<std::pair<std::string, std::unique_ptr<Node>>> keys{};  // in order
  std::unordered_map<std::string, size_t> by_key{};
  std::map<int64_t, std::unique_ptr<Node>> items{};

  // The node behind a key or index, or null if there is none.
  Node* find(const Object& step) const {
    if (const auto* key = step.as<std::string>()) {
      const auto found = by_key.find(*key);
      return found == by_key.end() ? nullptr : keys[found->second].second.get();
    }
    const auto found = items.find(*step.as<int64_t>());
    return found == items.end() ? nullptr : found->second.get();
  }

  // Whether a key or index may be added.
  bool accepts(const Object& step) const {
    const bool text = step.as<std::string>() != nullptr;
    return !value && (text ? items.empty() : keys.empty());
  }

  Node& add(const Object& step) {
    const auto* key = step.as<std::string>();
    if (key == nullptr) {
      auto& item = items[*step.as<int64_t>()];
      item = std::make_unique<Node>();
      return *item;
    }
    by_key.emplace(*key, keys.size());
    keys.emplace_back(*key, std::make_unique<Node>());
    return *keys.back().second;
  }

  // Returns nullopt if there are more holes in lists than `holes` allows.
  std::optional<Object> build(int64_t& holes) const {
    if (value) return value;
    if (items.empty()) {
      Object::Dict dict;
      for (const auto& [key, node] : keys) {
        std::optional<Object> made = node->build(holes);
        if (!made) return std::nullopt;
        dict.items.emplace_back(Object(key), *std::move(made));
      }
      return Object(std::move(dict));
    }
    Object::List list;
    for (const auto& [index, node] : items) {
      const int64_t missing = index - std::ssize(list.items);
      holes -= missing;
      if (holes < 0) return std::nullopt;
      list.items.resize(static_cast<size_t>(index));
      std::optional<Object> made = node->build(holes);
      if (!made) return std::nullopt;
      list.items.push_back(*std::move(made));
    }
    return Object(std::move(list));
  }
};

TreeBuilder::TreeBuilder() : root_(std::make_unique<Node>()) {}
TreeBuilder::~TreeBuilder() = default;
TreeBuilder::TreeBuilder(TreeBuilder&&) noexcept = default;
TreeBuilder& TreeBuilder::operator=(TreeBuilder&&) noexcept = default;

bool TreeBuilder::add(const std::vector<Object>& path, Object value) {
  if (path.empty() || path.front().as<std::string>() == nullptr ||
      path.size() >= kMaxObjectDepth) {
    return false;
  }
  // Goes as far as the path is there, so that nothing is added if it cannot be.
  Node* node = root_.get();
  size_t at = 0;
  for (; at < path.size(); ++at) {
    if (!node->accepts(path[at])) return false;
    Node* next = node->find(path[at]);
    if (next == nullptr) break;
    node = next;
  }
  if (at == path.size()) return false;
  for (; at < path.size(); ++at) node = &node->add(path[at]);
  node->value = std::move(value);
  return true;
}

Result<Object> TreeBuilder::finish(const std::string& where) const {
  int64_t holes = kMaxHoles;
  std::optional<Object> made = root_->build(holes);
  if (made) return *std::move(made);
  return corrupt("{}: more than {} items of lists are missing", where, kMaxHoles);
}

Object leaf_of(const Tensor& tensor, const std::string& name, bool first) {
  const bool alias =
      !first && std::ranges::find(tensor.aliases, name) != tensor.aliases.end();
  return Object(Object::TensorName{alias ? name : tensor.name});
}

bool is_flat(const Entry& entry) {
  const auto* key = entry.path.size() == 1 ? entry.path[0].as<std::string>() : nullptr;
  return entry.tensor && key != nullptr && *key == entry.name;
}

}  // namespace holdfast::dcp
