#include "holdfast/contents/side_metadata.h"

#include <unordered_map>
#include <unordered_set>

#include "holdfast/base/json_text.h"
#include "holdfast/state/object_json.h"

namespace holdfast {
namespace {

constexpr const char* kKeptObjects = "holdfast.objects";
constexpr const char* kKeptMetadata = "holdfast.metadata";
constexpr const char* kKeptTies = "holdfast.ties";
constexpr const char* kKeptDtypes = "holdfast.dtypes";
constexpr const char* kKeptNames = "holdfast.names";

using NameSet = std::unordered_set<std::string_view>;

Result<void> check_names(const Object& objects, const NameSet& names) {
  const auto check_all = [&](const std::vector<Object>& items) -> Result<void> {
    for (const Object& item : items) HOLDFAST_TRY(check_names(item, names));
    return {};
  };
  if (const auto* tensor = objects.as<Object::TensorName>()) {
    if (names.contains(tensor->name)) return {};
    return invalid("objects: {} is not a tensor of this file", shown(tensor->name));
  }
  if (const auto* list = objects.as<Object::List>()) return check_all(list->items);
  if (const auto* tuple = objects.as<Object::Tuple>()) return check_all(tuple->items);
  const auto* dict = objects.as<Object::Dict>();
  if (dict == nullptr) return {};
  for (const auto& [key, value] : dict->items) {
    HOLDFAST_TRY(check_names(key, names));
    HOLDFAST_TRY(check_names(value, names));
  }
  return {};
}

Object list_of(const std::vector<std::string>& names) {
  Object::List list;
  for (const std::string& name : names) list.items.emplace_back(name);
  return Object(std::move(list));
}

// Adds a text unless the dict is empty.
Result<void> add_text(KeptTexts& texts, const char* key, Object::Dict dict) {
  if (dict.items.empty()) return {};
  texts[key] = HOLDFAST_TRY(encode_object(Object(std::move(dict))).within(key));
  return {};
}

// One of the texts, which maps names of tensors to notes about them.
class Notes {
 public:
  Notes(const KeptTexts& texts, const char* key, const std::string& where)
      : texts_(texts), key_(key), where_(where + ": " + key) {}

  using Apply = Result<void>(Tensor& tensor, const Object& value,
                             const std::string& where);
  // Calls `apply` with each tensor that has a note.
  Result<void> for_each(std::span<Tensor> tensors, Apply* apply) const {
    const Object::Dict dict = HOLDFAST_TRY(read());
    if (dict.items.empty()) return {};
    std::unordered_map<std::string, Tensor*> by_name;
    for (Tensor& tensor : tensors) by_name[tensor.name] = &tensor;
    for (const auto& [key, value] : dict.items) {
      const auto* name = key.as<std::string>();
      const auto found = name == nullptr ? by_name.end() : by_name.find(*name);
      if (found == by_name.end()) {
        return corrupt("{}: has a key that is not the name of a tensor", where_);
      }
      HOLDFAST_TRY(apply(*found->second, value, where_ + ": " + shown(*name)));
    }
    return {};
  }

  Result<Object::Dict> read() const {
    const auto text = texts_.find(key_);
    if (text == texts_.end()) return Object::Dict();
    Object object = HOLDFAST_TRY(decode_object(bytes_of(text->second), where_));
    auto* dict = std::get_if<Object::Dict>(&object.value());
    if (dict == nullptr) return corrupt("{}: is not a dict; expected one", where_);
    return std::move(*dict);
  }

  const std::string& where() const { return where_; }

 private:
  const KeptTexts& texts_;
  const char* key_;
  const std::string where_;
};

Result<std::string> text_in(const Object& value, const std::string& where) {
  if (const auto* text = value.as<std::string>()) return *text;
  return corrupt("{}: is not a text; expected one", where);
}

Result<void> apply_ties(Tensor& tensor, const Object& value, const std::string& where) {
  const auto* names = value.as<Object::List>();
  if (names == nullptr) return corrupt("{}: is not a list; expected names", where);
  tensor.aliases.clear();
  for (const Object& name : names->items) {
    tensor.aliases.push_back(HOLDFAST_TRY(text_in(name, where)));
  }
  return {};
}

Result<void> apply_dtype(Tensor& tensor, const Object& value,
                         const std::string& where) {
  const std::string name = HOLDFAST_TRY(text_in(value, where));
  const Result<Dtype> dtype = parse_dtype(name);
  if (!dtype.ok()) return corrupt("{}: {}", where, dtype.error().message());
  if (bytes_of(*dtype) > 8 || tensor.dtype != unsigned_like(*dtype)) {
    return corrupt("{}: is stored as {}; expected unsigned integers of the size of {}",
                   where, name_of(tensor.dtype), name_of(*dtype));
  }
  tensor.dtype = *dtype;
  return {};
}

Result<void> apply_name(Tensor& tensor, const Object& value, const std::string& where) {
  tensor.name = HOLDFAST_TRY(text_in(value, where));
  return {};
}

Result<Object> read_objects(const KeptTexts& texts, std::span<const Tensor> tensors,
                            const std::string& where) {
  const auto text = texts.find(kKeptObjects);
  if (text == texts.end()) return Object();
  const std::string place = where + ": " + kKeptObjects;
  Object objects = HOLDFAST_TRY(decode_object(bytes_of(text->second), place));
  const Result<void> checked = check_tensor_names(objects, tensors).within(place);
  if (!checked.ok()) return checked.error().as(ErrorCode::kCorrupt);
  return objects;
}

}  // namespace

Dtype unsigned_like(Dtype dtype) {
  switch (bytes_of(dtype)) {
    case 1: return Dtype::kU8;
    case 2: return Dtype::kU16;
    case 4: return Dtype::kU32;
    default:
      HOLDFAST_CHECK(bytes_of(dtype) == 8, "dtype {}", name_of(dtype));
      return Dtype::kU64;
  }
}

Result<void> check_tensor_names(const Object& objects,
                                std::span<const Tensor> tensors) {
  if (objects.none()) return {};
  NameSet names;
  for (const Tensor& tensor : tensors) {
    names.insert(tensor.name);
    names.insert(tensor.aliases.begin(), tensor.aliases.end());
  }
  return check_names(objects, names);
}

Result<KeptTexts> keep_beside(const Contents& contents, const Object& objects,
                              std::span<const StoredAs> stored) {
  const auto tensors = contents.collection.tensors();
  HOLDFAST_CHECK(stored.size() == tensors.size(), "{} of {} tensors", stored.size(),
                 tensors.size());
  HOLDFAST_TRY(check_tensor_names(objects, tensors));
  Object::Dict ties, dtypes, names, metadata;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const Tensor& tensor = tensors[t];
    const Object name(stored[t].name);
    if (!tensor.aliases.empty() && !stored[t].has_ties) {
      ties.items.emplace_back(name, list_of(tensor.aliases));
    }
    if (stored[t].dtype != tensor.dtype) {
      dtypes.items.emplace_back(name, Object(std::string(name_of(tensor.dtype))));
    }
    if (stored[t].name != tensor.name) {
      names.items.emplace_back(name, Object(tensor.name));
    }
  }
  for (const auto& [key, text] : contents.metadata) {
    metadata.items.emplace_back(Object(key), Object(text));
  }
  KeptTexts texts;
  HOLDFAST_TRY(add_text(texts, kKeptTies, std::move(ties)));
  HOLDFAST_TRY(add_text(texts, kKeptDtypes, std::move(dtypes)));
  HOLDFAST_TRY(add_text(texts, kKeptNames, std::move(names)));
  HOLDFAST_TRY(add_text(texts, kKeptMetadata, std::move(metadata)));
  if (!objects.none()) {
    texts[kKeptObjects] = HOLDFAST_TRY(encode_object(objects).within("objects"));
  }
  return texts;
}

Result<RestoredTexts> restore_kept(const KeptTexts& texts, std::span<Tensor> tensors,
                                   const std::string& where) {
  HOLDFAST_TRY(Notes(texts, kKeptTies, where).for_each(tensors, apply_ties));
  HOLDFAST_TRY(Notes(texts, kKeptDtypes, where).for_each(tensors, apply_dtype));
  HOLDFAST_TRY(Notes(texts, kKeptNames, where).for_each(tensors, apply_name));
  RestoredTexts restored;
  const Notes metadata(texts, kKeptMetadata, where);
  for (const auto& [key, value] : HOLDFAST_TRY(metadata.read()).items) {
    const std::string name = HOLDFAST_TRY(text_in(key, metadata.where()));
    restored.metadata[name] = HOLDFAST_TRY(text_in(value, metadata.where()));
  }
  restored.objects = HOLDFAST_TRY(read_objects(texts, tensors, where));
  return restored;
}

}  // namespace holdfast
