// Decodes the metadata of DCP's folders. It is a pickle of dataclasses:
//
//   Metadata(state_dict_metadata={name: TensorStorageMetadata | BytesStorageMetadata},
//            planner_data={name: path}, storage_data={MetadataIndex: _StorageInfo})
//   TensorStorageMetadata(properties=TensorProperties, size, chunks=[ChunkStorageMetadata])
//   ChunkStorageMetadata(offsets, sizes)
//   MetadataIndex(fqn=name, offset, index)           offset is that of the chunk
//   _StorageInfo(relative_path, offset, length, transform_descriptors)
//
// Their modules differ between versions of torch, and some attributes are newer than
// others: transform_descriptors and the version of the metadata came with torch 2.6.
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>

#include "holdfast/archive/pickle_reader.h"
#include "holdfast/archive/zip_reader.h"
#include "holdfast/base/checked.h"
#include "holdfast/base/json_text.h"
#include "holdfast/formats/dcp_internal.h"
#include "holdfast/formats/torch_zip_internal.h"

namespace holdfast::dcp {
namespace {

using Call = PickleNode::Call;
using Dict = PickleNode::Dict;
using Global = PickleNode::Global;
using List = PickleNode::List;
using Tuple = PickleNode::Tuple;

constexpr int64_t kMaxMetadataBytes = int64_t{1} << 30;
// A node of the pickle can be used in many places, so a small file could keep a reader
// busy for years. These limit what one use costs, and what all of them take.
constexpr size_t kMaxAttributes = 64;
constexpr size_t kMaxNumbers = 64;
constexpr size_t kMaxGrowth = 256;
constexpr size_t kFreeGrowth = size_t{1} << 20;

// Old versions of Python pickle an enumeration as getattr(class, name). Like any other
// call, it is only data here.
bool may_occur_in_metadata(std::string_view global) {
  return global == "builtins.getattr" || torch_zip::may_occur(global);
}

// The name of a class without its module.
std::string_view class_of(std::string_view global) {
  const size_t dot = global.rfind('.');
  return dot == global.npos ? global : global.substr(dot + 1);
}

using Numbers = std::vector<int64_t>;
// An item is found by the name of its entry and, for a tensor, by the offset of its
// chunk.
using ItemKey = std::pair<std::string, std::optional<Numbers>>;

class MetadataDecoder {
 public:
  MetadataDecoder(const Pickle& pickle, size_t pickle_bytes, const std::string& where)
      : pickle_(pickle),
        where_(where),
        budget_(kMaxGrowth * pickle_bytes + kFreeGrowth) {}

  Result<Metadata> decode() {
    const auto entries = HOLDFAST_TRY(
        dict(attribute(pickle_.root, "state_dict_metadata"), "state_dict_metadata"));
    HOLDFAST_TRY(read_items());
    HOLDFAST_TRY(read_paths());
    std::set<std::string> names;
    for (const auto& [key, value] : entries->items) {
      const auto* name = pickle_[key].as<std::string>();
      if (name == nullptr) return broken("a key of state_dict_metadata", "a text");
      if (!names.insert(*name).second) return broken(shown(*name), "its name once");
      metadata_.entries.push_back(HOLDFAST_TRY(read_entry(*name, value)));
    }
    HOLDFAST_TRY(check_items_used());
    order_entries();
    return std::move(metadata_);
  }

 private:
  // Objects of the pickle.

  // The name of the class that an object is of. Empty if it is no object.
  std::string_view kind(PickleId id) const {
    const auto* call = pickle_[id].as<Call>();
    const auto* global = call == nullptr ? nullptr : as<Global>(call->function);
    return global == nullptr ? "" : class_of(global->name);
  }

  // The attribute of an object, or kNoPickleId if it has none of this name.
  PickleId attribute(PickleId id, std::string_view name) const {
    const auto* call = pickle_[id].as<Call>();
    if (call == nullptr || call->state == kNoPickleId) return kNoPickleId;
    const auto* state = pickle_[call->state].as<Dict>();
    PickleId found = kNoPickleId;
    if (state == nullptr || state->items.size() > kMaxAttributes) return found;
    for (const auto& [key, value] : state->items) {
      const auto* text = pickle_[key].as<std::string>();
      if (text != nullptr && *text == name) found = value;
    }
    return found;
  }

  bool is_none(PickleId id) const {
    return id == kNoPickleId || pickle_[id].as<Object::None>() != nullptr;
  }

  template <typename T>
  const T* as(PickleId id) const {
    return id == kNoPickleId ? nullptr : pickle_[id].as<T>();
  }

  Result<const Dict*> dict(PickleId id, std::string_view what) const {
    const auto* found = as<Dict>(id);
    if (found == nullptr) return broken(what, "a dict");
    return found;
  }

  // The items of a tuple or list, or null.
  const std::vector<PickleId>* sequence(PickleId id) const {
    const auto* list = as<List>(id);
    const auto* tuple = as<Tuple>(id);
    if (list != nullptr) return &list->items;
    return tuple == nullptr ? nullptr : &tuple->items;
  }

  // A torch.Size, a tuple or a list of integers.
  std::optional<Numbers> numbers(PickleId id) const {
    if (const auto* call = as<Call>(id); call != nullptr && kind(id) == "Size") {
      const auto& arguments = pickle_[call->arguments].as<Tuple>()->items;
      if (arguments.size() != 1) return std::nullopt;
      id = arguments[0];
    }
    const std::vector<PickleId>* items = sequence(id);
    if (items == nullptr || items->size() > kMaxNumbers) return std::nullopt;
    Numbers found;
    for (const PickleId item : *items) {
      const auto* number = pickle_[item].as<int64_t>();
      if (number == nullptr) return std::nullopt;
      found.push_back(*number);
    }
    return found;
  }

  // Items.

  Result<void> read_items() {
    const PickleId id = attribute(pickle_.root, "storage_data");
    for (const auto& [key, value] : HOLDFAST_TRY(dict(id, "storage_data"))->items) {
      const ItemKey at = HOLDFAST_TRY(read_key(key));
      Item item = HOLDFAST_TRY(read_item(at.first, value));
      std::string transformed = transformed_by(attribute(value, "transform_descriptors"));
      metadata_.items.push_back({item, at.first, !transformed.empty()});
      if (!transformed.empty()) odd_[at.first] = std::move(transformed);
      if (!items_.emplace(at, std::pair(std::move(item), false)).second) {
        return broken(fmt::format("an item of {}", shown(at.first)), "it once");
      }
    }
    std::ranges::sort(metadata_.items, {}, &NamedItem::item);
    return {};
  }

  Result<ItemKey> read_key(PickleId id) {
    const auto* name = as<std::string>(attribute(id, "fqn"));
    if (kind(id) != "MetadataIndex" || name == nullptr) {
      return broken("a key of storage_data", "a MetadataIndex with a name");
    }
    HOLDFAST_TRY(spend(3 * (name->size() + sizeof(NamedItem))));
    const PickleId offset = attribute(id, "offset");
    std::optional<Numbers> at = numbers(offset);
    if (!at && !is_none(offset)) {
      return broken(fmt::format("the offset of an item of {}", shown(*name)),
                    "integers");
    }
    return ItemKey(*name, std::move(at));
  }

  Result<Item> read_item(const std::string& name, PickleId id) {
    const std::string what = fmt::format("an item of {}", shown(name));
    const auto* file = as<std::string>(attribute(id, "relative_path"));
    const auto* offset = as<int64_t>(attribute(id, "offset"));
    const auto* length = as<int64_t>(attribute(id, "length"));
    if (kind(id) != "_StorageInfo" || file == nullptr || offset == nullptr ||
        length == nullptr) {
      return broken(what, "a _StorageInfo with relative_path, offset and length");
    }
    if (!is_safe_zip_name(*file)) {
      return unsupported("{}: {} is in the file {}; expected a file in this folder",
                         where_, what, shown(*file));
    }
    HOLDFAST_TRY(spend(3 * file->size()));
    if (*offset < 0 || *length < 0 || !checked_add(*offset, *length)) {
      return corrupt("{}: {} has {} bytes at {}; expected a range in a file", where_,
                     what, *length, *offset);
    }
    return Item{*file, *offset, *length};
  }

  // Says how an item is transformed. Empty if it is as torch.save writes it.
  std::string transformed_by(PickleId id) const {
    const std::vector<PickleId>* items = sequence(id);
    if (is_none(id) || (items != nullptr && items->empty())) return "";
    const auto* name = items == nullptr ? nullptr : as<std::string>(items->front());
    return fmt::format("is transformed by {}; expected it as torch.save writes it",
                       name == nullptr ? "something" : shown(*name));
  }

  // An item that no entry names would be lost without a word.
  Result<void> check_items_used() const {
    for (const auto& [key, found] : items_) {
      if (found.second) continue;
      return broken(fmt::format("an item of {} at {}", shown(key.first),
                                fmt::join(key.second.value_or(Numbers()), ", ")),
                    "a tensor or object that it belongs to");
    }
    return {};
  }

  // Paths.

  // Planners other than torch's own may keep anything here. Then the state dict counts as
  // flat.
  Result<void> read_paths() {
    const auto* all = as<Dict>(attribute(pickle_.root, "planner_data"));
    if (all == nullptr) return {};
    for (const auto& [key, value] : all->items) {
      const auto* name = pickle_[key].as<std::string>();
      const auto* path = pickle_[value].as<Tuple>();
      if (name == nullptr || path == nullptr) continue;
      paths_[*name] = {HOLDFAST_TRY(read_path(*name, path->items)), paths_.size()};
    }
    return {};
  }

  // The entries are in the order of the ranks that wrote them. The paths are in the order
  // of the state dict.
  void order_entries() {
    std::ranges::stable_sort(metadata_.entries, {}, [&](const Entry& entry) {
      const auto path = paths_.find(entry.name);
      return path == paths_.end() ? SIZE_MAX : path->second.second;
    });
  }

  Result<std::vector<Object>> read_path(const std::string& name,
                                        const std::vector<PickleId>& steps) {
    if (steps.size() > kMaxObjectDepth) {
      return broken(fmt::format("the path of {}", shown(name)), "a shorter one");
    }
    std::vector<Object> path;
    for (const PickleId step : steps) {
      const auto* key = pickle_[step].as<std::string>();
      const auto* index = pickle_[step].as<int64_t>();
      if (key == nullptr && (index == nullptr || *index < 0)) {
        return broken(fmt::format("the path of {}", shown(name)),
                      "keys that are texts and indices");
      }
      HOLDFAST_TRY(spend(2 * (sizeof(Object) + (key == nullptr ? 0 : key->size()))));
      path.push_back(key != nullptr ? Object(*key) : Object(*index));
    }
    return path;
  }

  // Entries.

  Result<Entry> read_entry(const std::string& name, PickleId id) {
    Entry entry{.name = name};
    const auto path = paths_.find(name);
    entry.path = path == paths_.end() ? std::vector{Object(name)} : path->second.first;
    if (const auto odd = odd_.find(name); odd != odd_.end()) {
      return leave_out(std::move(entry), odd->second);
    }
    if (kind(id) == "BytesStorageMetadata") {
      const Item* item = use_item({name, std::nullopt});
      if (item == nullptr) return broken(shown(name), "an item in storage_data");
      entry.object = *item;
      return entry;
    }
    if (kind(id) != "TensorStorageMetadata") {
      return broken(shown(name), "a TensorStorageMetadata or BytesStorageMetadata");
    }
    entry.tensor = true;
    const Result<Dtype> dtype = read_dtype(name, attribute(id, "properties"));
    if (is_odd(dtype)) return leave_out(std::move(entry), dtype.error().message());
    const Result<Shape> shape = read_shape(name, attribute(id, "size"));
    if (is_odd(shape)) return leave_out(std::move(entry), shape.error().message());
    entry.dtype = HOLDFAST_TRY(dtype);
    entry.shape = HOLDFAST_TRY(shape);
    HOLDFAST_TRY(read_chunks(entry, attribute(id, "chunks")));
    return entry;
  }

  template <typename T>
  static bool is_odd(const Result<T>& read) {
    return !read.ok() && read.error().code() == ErrorCode::kUnsupported;
  }

  // The items of such an entry stay among all items, and belong to nothing else.
  Entry leave_out(Entry entry, std::string why) {
    entry.odd = std::move(why);
    for (auto item = items_.lower_bound({entry.name, std::nullopt});
         item != items_.end() && item->first.first == entry.name; ++item) {
      item->second.second = true;
    }
    return entry;
  }

  // The state of the properties is a tuple that begins with the dtype.
  Result<Dtype> read_dtype(const std::string& name, PickleId id) const {
    const auto* call = as<Call>(id);
    const auto* state = call == nullptr ? nullptr : as<Tuple>(call->state);
    const auto* global = state == nullptr || state->items.empty()
                             ? nullptr
                             : pickle_[state->items[0]].as<Global>();
    if (global == nullptr) return broken(shown(name), "properties with a dtype");
    const auto dtype = torch_zip::dtype_of_global(global->name);
    if (dtype) return *dtype;
    return unsupported("has the dtype {}, which is not known", shown(global->name));
  }

  Result<Shape> read_shape(const std::string& name, PickleId id) const {
    const std::optional<Numbers> sizes = numbers(id);
    if (!sizes) return broken(shown(name), "a size of integers");
    if (sizes->size() > kMaxRank) {
      return unsupported("has {} dimensions, limit {}", sizes->size(), kMaxRank);
    }
    auto shape = Shape::create(*sizes);
    if (shape.ok()) return shape;
    return shape.error().as(ErrorCode::kCorrupt).within(shown(name)).within(where_);
  }

  Result<void> read_chunks(Entry& entry, PickleId id) {
    const auto* chunks = as<List>(id);
    if (chunks == nullptr) return broken(shown(entry.name), "a list of chunks");
    int64_t left = entry.shape.elements();
    for (const PickleId chunk : chunks->items) {
      HOLDFAST_TRY(spend(sizeof(Chunk)));
      const std::optional<Numbers> offsets = numbers(attribute(chunk, "offsets"));
      const Box box = HOLDFAST_TRY(read_box(entry, chunk, offsets));
      const Item* item = use_item({entry.name, offsets});
      // Ranks that have nothing of a tensor have chunks without elements. A tensor
      // without elements needs one of them.
      const bool needed = entry.shape.elements() == 0 && entry.chunks.empty();
      if (box.empty() && (!needed || item == nullptr)) continue;
      if (item == nullptr) {
        return broken(fmt::format("{} {}", shown(entry.name), to_string(box)),
                      "an item in storage_data");
      }
      left -= box.elements();
      if (left < 0) return broken(shown(entry.name), "chunks that do not overlap");
      entry.chunks.push_back({box, *item});
    }
    return {};
  }

  Result<Box> read_box(const Entry& entry, PickleId chunk,
                       const std::optional<Numbers>& offsets) const {
    const std::optional<Numbers> sizes = numbers(attribute(chunk, "sizes"));
    const auto rank = static_cast<size_t>(entry.shape.rank());
    if (!offsets || !sizes || offsets->size() != rank || sizes->size() != rank) {
      return broken(fmt::format("a chunk of {}", shown(entry.name)),
                    fmt::format("{} offsets and sizes", rank));
    }
    std::vector<Extent> extents;
    bool fits = true;
    for (size_t k = 0; k < rank; ++k) {
      const auto end = checked_add((*offsets)[k], (*sizes)[k]);
      fits = fits && end && (*offsets)[k] >= 0 && (*sizes)[k] >= 0 &&
             *end <= entry.shape[static_cast<int>(k)];
      if (fits) extents.push_back({(*offsets)[k], *end});
    }
    if (fits) return Box::create(extents);
    return corrupt("{}: {} of shape {} has a chunk of [{}] at [{}]; expected it inside",
                   where_, shown(entry.name), to_string(entry.shape),
                   fmt::join(*sizes, ", "), fmt::join(*offsets, ", "));
  }

  const Item* use_item(const ItemKey& key) {
    const auto found = items_.find(key);
    if (found == items_.end()) return nullptr;
    found->second.second = true;
    return &found->second.first;
  }

  // Counts memory that the result takes.
  Result<void> spend(size_t bytes) {
    if (bytes > budget_) {
      return corrupt("{}: the metadata grows too large for its pickle", where_);
    }
    budget_ -= bytes;
    return {};
  }

  Error broken(std::string_view what, std::string_view expected) const {
    return corrupt("{}: {} is not as torch writes it; expected {}", where_, what,
                   expected);
  }

  const Pickle& pickle_;
  const std::string& where_;
  size_t budget_;
  std::map<ItemKey, std::pair<Item, bool>> items_;  // and whether an entry has it
  std::map<std::string, std::string> odd_;  // why an entry cannot be read, by its name
  // The path of each entry, and its place among them.
  std::unordered_map<std::string, std::pair<std::vector<Object>, size_t>> paths_;
  Metadata metadata_;
};

}  // namespace

Result<Metadata> decode_metadata(ByteView pickle, const std::string& where) {
  const Pickle nodes = HOLDFAST_TRY(
      read_pickle(pickle, {.where = where, .allow_global = may_occur_in_metadata}));
  return MetadataDecoder(nodes, pickle.size(), where).decode();
}

Result<Metadata> read_metadata(Env& env, const Path& folder) {
  const Path path = folder / kMetadataFile;
  const Bytes bytes = HOLDFAST_TRY(env.read_file(path, kMaxMetadataBytes));
  return decode_metadata(bytes, path.native());
}

}  // namespace holdfast::dcp
