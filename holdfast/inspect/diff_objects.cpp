// Finds the first difference between the objects of two checkpoints.
#include <map>

#include "holdfast/inspect/diff.h"
#include "holdfast/state/object_json.h"

namespace holdfast {
namespace {

// How many characters of a value are shown.
constexpr size_t kShown = 60;

// The object as JSON, for comparing keys and for people. An object that cannot be
// encoded is at least told apart by its kind.
std::string text_of(const Object& object) {
  const Result<std::string> text = encode_object(object);
  return text.ok() ? *text : fmt::format("<kind {}>", object.value().index());
}

std::string describe(const Object& object) {
  if (const auto* list = object.as<Object::List>()) {
    return fmt::format("a list of {}", list->items.size());
  }
  if (const auto* tuple = object.as<Object::Tuple>()) {
    return fmt::format("a tuple of {}", tuple->items.size());
  }
  if (const auto* dict = object.as<Object::Dict>()) {
    return fmt::format("a dict of {}", dict->items.size());
  }
  std::string text = text_of(object);
  if (text.size() > kShown) text = text.substr(0, kShown) + "...";
  return text;
}

std::string key_text(const Object& key) {
  const std::string* text = key.as<std::string>();
  return text != nullptr ? *text : text_of(key);
}

std::string place_below(const std::string& place, const std::string& key) {
  return place.empty() ? key : place + "." + key;
}

std::string name_of_place(const std::string& place) {
  return place.empty() ? "the objects" : place;
}

std::optional<std::string> compare(const Object& a, const Object& b,
                                   const std::string& place);

// Whether the object holds nothing but references to tensors.
bool only_tensors(const std::vector<Object>& items);

bool only_tensors(const Object& object) {
  if (object.as<Object::TensorName>() != nullptr) return true;
  if (const auto* list = object.as<Object::List>()) return only_tensors(list->items);
  if (const auto* tuple = object.as<Object::Tuple>()) return only_tensors(tuple->items);
  const auto* dict = object.as<Object::Dict>();
  if (dict == nullptr) return false;
  for (const auto& [key, value] : dict->items) {
    if (!only_tensors(value)) return false;
  }
  return true;
}

bool only_tensors(const std::vector<Object>& items) {
  for (const Object& item : items) {
    if (!only_tensors(item)) return false;
  }
  return true;
}

// Whether the object is a list, tuple or dict without items.
bool is_empty(const Object& object) {
  const auto* list = object.as<Object::List>();
  const auto* tuple = object.as<Object::Tuple>();
  const auto* dict = object.as<Object::Dict>();
  return (list != nullptr && list->items.empty()) ||
         (tuple != nullptr && tuple->items.empty()) ||
         (dict != nullptr && dict->items.empty());
}

// Whether the object only says where tensors stand in the tree. Some formats store this
// and others do not, so it is not compared; the tensors themselves are compared by
// name.
bool only_places_tensors(const Object& value) {
  return only_tensors(value) && !is_empty(value);
}

std::optional<std::string> compare_items(const std::vector<Object>& a,
                                         const std::vector<Object>& b,
                                         const std::string& place) {
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    auto found = compare(a[i], b[i], place_below(place, std::to_string(i)));
    if (found) return found;
  }
  if (a.size() == b.size()) return std::nullopt;
  return fmt::format("{}: {} items against {}", name_of_place(place), a.size(),
                     b.size());
}

using ByKey = std::map<std::string, const Object*>;

ByKey by_key(const Object::Dict& dict) {
  ByKey found;
  for (const auto& [key, value] : dict.items) found.emplace(text_of(key), &value);
  return found;
}

std::optional<std::string> compare_dicts(const Object::Dict& a, const Object::Dict& b,
                                         const std::string& place) {
  const ByKey of_a = by_key(a), of_b = by_key(b);
  for (const auto& [key, value] : a.items) {
    const std::string inner = place_below(place, key_text(key));
    const auto other = of_b.find(text_of(key));
    if (other == of_b.end()) {
      if (only_places_tensors(value)) continue;
      return inner + ": only in the first";
    }
    if (auto found = compare(value, *other->second, inner)) return found;
  }
  for (const auto& [key, value] : b.items) {
    if (!of_a.contains(text_of(key)) && !only_places_tensors(value)) {
      return place_below(place, key_text(key)) + ": only in the second";
    }
  }
  return std::nullopt;
}

std::optional<std::string> compare(const Object& a, const Object& b,
                                   const std::string& place) {
  if (a.value().index() == b.value().index()) {
    if (const auto* list = a.as<Object::List>()) {
      return compare_items(list->items, b.as<Object::List>()->items, place);
    }
    if (const auto* tuple = a.as<Object::Tuple>()) {
      return compare_items(tuple->items, b.as<Object::Tuple>()->items, place);
    }
    if (const auto* dict = a.as<Object::Dict>()) {
      return compare_dicts(*dict, *b.as<Object::Dict>(), place);
    }
    if (a == b) return std::nullopt;
  }
  return fmt::format("{}: {} against {}", name_of_place(place), describe(a),
                     describe(b));
}

}  // namespace

std::optional<std::string> first_difference(const Object& a, const Object& b) {
  const bool only_references =
      (a.none() && only_tensors(b)) || (b.none() && only_tensors(a));
  return only_references ? std::nullopt : compare(a, b, "");
}

}  // namespace holdfast
