// Chooses the entries of a folder of DCP: flattens the state dict as torch does.
#include <fmt/ranges.h>

#include <algorithm>

#include "holdfast/base/json_text.h"
#include "holdfast/formats/dcp_entries_internal.h"
#include "holdfast/formats/torch_zip_internal.h"

namespace holdfast::dcp {
namespace {

bool has_tensors(const Object& object) {
  const auto in_all = [](const std::vector<Object>& items) {
    return std::ranges::any_of(items, has_tensors);
  };
  if (const auto* list = object.as<Object::List>()) return in_all(list->items);
  if (const auto* tuple = object.as<Object::Tuple>()) return in_all(tuple->items);
  const auto* dict = object.as<Object::Dict>();
  if (dict == nullptr) return object.as<Object::TensorName>() != nullptr;
  return std::ranges::any_of(dict->items,
                             [](const auto& item) { return has_tensors(item.second); });
}

// Whether each item of a list or tuple gets an entry of its own. torch does that for
// lists that have tensors, dicts or such lists in them. It never does that for tuples,
// whose tensors would be in the item of the tuple.
bool is_split(const Object& object) {
  if (object.as<Object::Tuple>() != nullptr) return has_tensors(object);
  const auto* list = object.as<Object::List>();
  if (list == nullptr) return false;
  return std::ranges::any_of(list->items, [](const Object& item) {
    const auto* dict = item.as<Object::Dict>();
    return item.as<Object::TensorName>() != nullptr || is_split(item) ||
           (dict != nullptr && !dict->items.empty());
  });
}

std::string flat_name(const std::vector<Object>& path) {
  std::vector<std::string> steps;
  for (const Object& step : path) steps.push_back(torch_zip::text_of_key(step));
  return fmt::format("{}", fmt::join(steps, "."));
}

}  // namespace

Result<void> EntryPlanner::plan() {
  if (const auto* dict = contents_.objects.as<Object::Dict>()) {
    for (const auto& [key, value] : dict->items) {
      in_list_ = false;
      HOLDFAST_TRY(visit(key, value));
    }
  }
  for (const Tensor& tensor : contents_.collection.tensors()) {
    HOLDFAST_TRY(add_missing(tensor.name));
    for (const std::string& alias : tensor.aliases) HOLDFAST_TRY(add_missing(alias));
  }
  return {};
}

Result<Object> EntryPlanner::objects() const {
  const bool flat = std::ranges::all_of(
      entries_, [](const PlannedEntry& planned) { return is_flat(planned.entry); });
  return flat ? Object() : HOLDFAST_TRY(tree_.finish("the state dict"));
}

Result<void> EntryPlanner::visit(const Object& step, const Object& value) {
  const bool index = step.as<int64_t>() != nullptr && in_list_;
  path_.push_back(index ? step : Object(torch_zip::text_of_key(step)));
  if (path_.size() > kMaxObjectDepth) {
    return invalid("objects nest deeper than {}", kMaxObjectDepth);
  }
  HOLDFAST_TRY(visit_value(value));
  path_.pop_back();
  return {};
}

Result<void> EntryPlanner::visit_value(const Object& value) {
  if (const auto* leaf = value.as<Object::TensorName>()) return add_leaf(leaf->name);
  const auto* dict = value.as<Object::Dict>();
  if (dict != nullptr && !dict->items.empty()) {
    for (const auto& [key, inner] : dict->items) {
      in_list_ = false;
      HOLDFAST_TRY(visit(key, inner));
    }
    return {};
  }
  if (!is_split(value)) return add({.object = &value});
  const auto* list = value.as<Object::List>();
  const auto& items =
      list != nullptr ? list->items : value.as<Object::Tuple>()->items;
  for (size_t i = 0; i < items.size(); ++i) {
    in_list_ = true;
    HOLDFAST_TRY(visit(Object(static_cast<int64_t>(i)), items[i]));
  }
  return {};
}

Result<void> EntryPlanner::add_leaf(const std::string& name) {
  const auto id = contents_.collection.find(name);
  if (!id) {
    return invalid("the objects name the tensor {}, which does not exist",
                   shown(name));
  }
  leaves_.insert(name);
  return add({.tensor = *id, .first = stored_[*id].name.empty()});
}

// Adds a tensor that has no place in the objects.
Result<void> EntryPlanner::add_missing(const std::string& name) {
  if (leaves_.contains(name)) return {};
  path_ = {Object(name)};
  HOLDFAST_TRY(add_leaf(name));
  path_.clear();
  return {};
}

Result<void> EntryPlanner::add(PlannedEntry planned) {
  Entry& entry = planned.entry;
  entry.path = path_;
  entry.name = flat_name(path_);
  entry.tensor = planned.tensor.has_value();
  // A key that is not a text may be equal to another after it has become one.
  while (!try_add(planned)) {
    entry.name = fmt::format("entry.{}", next_++);
    entry.path = {Object(entry.name)};
  }
  if (planned.tensor && planned.first) {
    const Dtype dtype = contents_.collection.tensor(*planned.tensor).dtype;
    stored_[*planned.tensor] = {entry.name, dtype};
  }
  entries_.push_back(std::move(planned));
  return {};
}

bool EntryPlanner::try_add(const PlannedEntry& planned) {
  const std::string& name = planned.entry.name;
  if (name.empty() || name.starts_with(kKeptPrefix) || names_.contains(name)) {
    return false;
  }
  Object value =
      planned.tensor
          ? leaf_of(contents_.collection.tensor(*planned.tensor), name, planned.first)
          : *planned.object;
  if (!tree_.add(planned.entry.path, std::move(value))) return false;
  names_.insert(name);
  return true;
}

Result<KeptTexts> kept_texts(const Contents& contents, const EntryPlanner& planner) {
  const bool native = HOLDFAST_TRY(planner.objects()) == contents.objects;
  return keep_beside(contents, native ? Object() : contents.objects, planner.stored());
}

}  // namespace holdfast::dcp
