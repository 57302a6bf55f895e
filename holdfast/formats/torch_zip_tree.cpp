// Turns the nodes of a pickle into objects and views of storages.
#include <algorithm>

#include "holdfast/formats/torch_zip_walker_internal.h"

namespace holdfast::torch_zip {
namespace {

using Call = PickleNode::Call;
using Dict = PickleNode::Dict;
using Global = PickleNode::Global;
using List = PickleNode::List;
using Persistent = PickleNode::Persistent;
using Tuple = PickleNode::Tuple;

// A node that is used in several places becomes one object for each place, so a small
// file could grow without limit. The result may take at most this many bytes of memory
// for each byte of the pickle, plus kFreeGrowth, and at most kMostBytes.
constexpr size_t kMaxGrowth = 256;
constexpr size_t kFreeGrowth = size_t{1} << 20;
constexpr size_t kMostBytes = size_t{1} << 32;

// Before torch 1.6 the class of a module was written as ("module", class, file, text).
const Global* class_of_module(const Pickle& pickle, const Persistent& outside) {
  const auto* parts = pickle[outside.id].as<Tuple>();
  if (parts == nullptr || parts->items.size() < 2) return nullptr;
  const auto* kind = pickle[parts->items[0]].as<std::string>();
  if (kind == nullptr || *kind != "module") return nullptr;
  return pickle[parts->items[1]].as<Global>();
}

bool plain_key(const Object& key) {
  if (const auto* tuple = key.as<Object::Tuple>()) {
    return std::ranges::all_of(tuple->items, plain_key);
  }
  return key.as<Object::List>() == nullptr && key.as<Object::Dict>() == nullptr &&
         key.as<Object::TensorName>() == nullptr;
}

}  // namespace

Walker::Walker(const Pickle& pickle, std::string_view where, size_t pickle_bytes)
    : pickle_(pickle),
      where_(where),
      budget_(std::min(kMostBytes, kMaxGrowth * pickle_bytes + kFreeGrowth)),
      is_open_(pickle.nodes.size()) {}

Result<Tree> Walker::run() && {
  tree_.objects = HOLDFAST_TRY(walk(pickle_.root));
  return std::move(tree_);
}

Result<Object> Walker::walk(PickleId id) {
  HOLDFAST_TRY(spend(sizeof(Object)));
  if (is_open_[id]) return here().odd("contains itself");
  if (open_.size() >= kMaxObjectDepth) {
    return here().odd(fmt::format("nests deeper than {}", kMaxObjectDepth));
  }
  open_.push_back(id);
  is_open_[id] = true;
  Object object = HOLDFAST_TRY(walk_value(id));
  is_open_[id] = false;
  open_.pop_back();
  return object;
}

Result<std::optional<Object>> Walker::walk_if_readable(PickleId id) {
  const Mark before = mark();
  Result<Object> object = walk(id);
  if (object.ok()) return std::optional(*std::move(object));
  if (object.error().code() != ErrorCode::kUnsupported) return object.error();
  go_back(before);
  HOLDFAST_TRY(note_left_out(object.error().message()));
  return std::optional<Object>();
}

Walker::Mark Walker::mark() const {
  return {open_.size(), keys_.size(), tree_.views.size(), tree_.simplified.size(),
          tree_.left_out.size()};
}

void Walker::go_back(const Mark& mark) {
  for (size_t i = mark.open; i < open_.size(); ++i) is_open_[open_[i]] = false;
  for (size_t i = mark.views; i < tree_.views.size(); ++i) {
    names_.erase(tree_.views[i].name);
  }
  open_.resize(mark.open);
  keys_.resize(mark.keys);
  tree_.views.resize(mark.views);
  tree_.simplified.resize(mark.simplified);
  tree_.left_out.resize(mark.left_out);
}

Result<void> Walker::note_left_out(std::string_view message) {
  const std::string place = fmt::format("{}: {} ", where_, path());
  if (message.starts_with(place)) message.remove_prefix(place.size());
  std::string line =
      fmt::format("{}: {}", keys_.empty() ? "the saved object" : name(), message);
  HOLDFAST_TRY(spend(line.size()));
  tree_.left_out.push_back(std::move(line));
  return {};
}

Result<Object> Walker::walk_value(PickleId id) {
  const PickleNode& node = pickle_[id];
  if (const auto* list = node.as<List>()) {
    return Object(Object::List{HOLDFAST_TRY(walk_items(list->items))});
  }
  if (const auto* tuple = node.as<Tuple>()) {
    return Object(Object::Tuple{HOLDFAST_TRY(walk_items(tuple->items))});
  }
  if (const auto* dict = node.as<Dict>()) return walk_dict(*dict);
  if (const auto* call = node.as<Call>()) return walk_call(*call);
  if (const auto* global = node.as<Global>()) return walk_global(*global);
  if (const auto* outside = node.as<Persistent>()) return walk_outside(id, *outside);
  return walk_plain(node);
}

Result<Object> Walker::walk_outside(PickleId id, const Persistent& outside) {
  if (const Global* global = class_of_module(pickle_, outside)) {
    return walk_global(*global);
  }
  return add_view(HOLDFAST_TRY(here().storage(id)));
}

Result<Object> Walker::walk_plain(const PickleNode& node) {
  if (const auto* truth = node.as<bool>()) return Object(*truth);
  if (const auto* integer = node.as<int64_t>()) return Object(*integer);
  if (const auto* number = node.as<double>()) return Object(*number);
  if (const auto* big = node.as<Object::BigInteger>()) {
    HOLDFAST_TRY(spend(big->decimal.size()));
    return Object(*big);
  }
  if (const auto* text = node.as<std::string>()) {
    HOLDFAST_TRY(spend(text->size()));
    return Object(*text);
  }
  if (const auto* bytes = node.as<Bytes>()) {
    HOLDFAST_TRY(spend(bytes->size()));
    return Object(*bytes);
  }
  return Object();
}

Result<std::vector<Object>> Walker::walk_items(const std::vector<PickleId>& items) {
  std::vector<Object> objects;
  for (size_t i = 0; i < items.size(); ++i) {
    keys_.emplace_back(static_cast<int64_t>(i));
    // None keeps the places of the items behind an item that is left out.
    objects.push_back(HOLDFAST_TRY(walk_if_readable(items[i])).value_or(Object()));
    keys_.pop_back();
  }
  return objects;
}

Result<Object> Walker::walk_dict(const Dict& dict) {
  Object::Dict object;
  std::unordered_set<std::string> seen;
  for (const auto& [key_id, value_id] : dict.items) {
    const std::optional<Object> readable = HOLDFAST_TRY(walk_key(key_id));
    if (!readable) continue;
    const Object& key = *readable;
    if (!seen.insert(identity_of_key(key)).second) {
      return corrupt("{}: {} has the key {} twice", where_, path(), text_of_key(key));
    }
    keys_.push_back(key);
    std::optional<Object> value = HOLDFAST_TRY(walk_if_readable(value_id));
    keys_.pop_back();
    if (value) object.items.emplace_back(key, *std::move(value));
  }
  return Object(std::move(object));
}

Result<std::optional<Object>> Walker::walk_key(PickleId id) {
  const Mark before = mark();
  std::optional<Object> key = HOLDFAST_TRY(walk_if_readable(id));
  if (!key || plain_key(*key)) return key;
  go_back(before);
  HOLDFAST_TRY(note_left_out(
      "an entry has a key of another type; expected text, a number, None, or a tuple "
      "of these"));
  return std::optional<Object>();
}

Result<Object> Walker::walk_global(const Global& global) {
  if (!dtype_of_global(global.name)) HOLDFAST_TRY(note_simplified(global.name));
  HOLDFAST_TRY(spend(global.name.size()));
  return Object(global.name);
}

Result<Object> Walker::walk_call(const Call& call) {
  const std::string name(function_of(pickle_, call));
  if (name.empty()) return here().odd("is made by a function that has no name");
  if (!is_known(name)) return walk_foreign_object(call, name);
  const bool bare = call.state == kNoPickleId && call.items == kNoPickleId &&
                    call.entries == kNoPickleId && call.keywords == kNoPickleId;
  if (!bare) return here().refuse(name);
  const auto& arguments = pickle_[call.arguments].as<Tuple>()->items;
  if (name.starts_with("torch._utils._rebuild_")) return walk_tensor(name, arguments);
  if (name.starts_with("torch._tensor._rebuild_from_type")) {
    return walk_subclass(arguments);
  }
  if (name == "torch.Size" && arguments.size() == 1) {
    return Object(Object::Tuple{
        HOLDFAST_TRY(walk_items(HOLDFAST_TRY(here().tuple(arguments[0]))))});
  }
  if (name == "torch.device") return walk_device(arguments);
  if (name.starts_with("torch.serialization.") && arguments.size() == 1) {
    return walk(arguments[0]);  // a layout, by its name
  }
  return walk_bytes(name, arguments);
}

Result<Object> Walker::walk_foreign_object(const Call& call, const std::string& name) {
  const size_t simplified = tree_.simplified.size();
  Object object = HOLDFAST_TRY(walk_parts_of_object(name, call));
  if (std::optional<Object> number = numpy_scalar(*object.as<Object::Dict>())) {
    tree_.simplified.resize(simplified);
    return *std::move(number);
  }
  return object;
}

Result<Object> Walker::walk_parts_of_object(const std::string& name, const Call& call) {
  HOLDFAST_TRY(note_simplified(name));
  HOLDFAST_TRY(spend(name.size()));
  Object::Dict made{{{Object(std::string(kClassKey)), Object(name)}}};
  const auto* arguments = call.arguments == kNoPickleId
                              ? nullptr
                              : pickle_[call.arguments].as<Tuple>();
  if (arguments != nullptr && !arguments->items.empty()) {
    HOLDFAST_TRY(add_part(kArgumentsKey, call.arguments, made));
  }
  HOLDFAST_TRY(add_part(kKeywordsKey, call.keywords, made));
  HOLDFAST_TRY(add_part(kItemsKey, call.items, made));
  HOLDFAST_TRY(add_part(kEntriesKey, call.entries, made));
  const bool by_name = has_names(pickle_, call.state);
  if (!by_name) HOLDFAST_TRY(add_part(kStateKey, call.state, made));
  if (by_name) {
    const Object state = HOLDFAST_TRY(walk_dict(*pickle_[call.state].as<Dict>()));
    std::ranges::copy(state.as<Object::Dict>()->items,
                      std::back_inserter(made.items));
  }
  return Object(std::move(made));
}

Result<void> Walker::add_part(std::string_view key, PickleId id, Object::Dict& made) {
  if (id == kNoPickleId) return {};
  keys_.emplace_back(std::string(key));
  std::optional<Object> part = HOLDFAST_TRY(walk_if_readable(id));
  keys_.pop_back();
  if (part) made.items.emplace_back(Object(std::string(key)), *std::move(part));
  return {};
}

Result<void> Walker::note_simplified(const std::string& name) {
  const std::string place = keys_.empty() ? "the saved object" : this->name();
  HOLDFAST_TRY(spend(place.size() + name.size()));
  tree_.simplified.push_back(fmt::format("{}: {}", place, name));
  return {};
}

Result<Object> Walker::walk_device(const std::vector<PickleId>& arguments) {
  if (arguments.empty() || arguments.size() > 2) return here().refuse("torch.device");
  std::string device = HOLDFAST_TRY(here().text(arguments[0]));
  if (arguments.size() == 2) {
    device += fmt::format(":{}", HOLDFAST_TRY(here().integer(arguments[1])));
  }
  HOLDFAST_TRY(spend(device.size()));
  return Object(std::move(device));
}

Result<Object> Walker::walk_bytes(std::string_view function,
                                  const std::vector<PickleId>& arguments) {
  if (function != "_codecs.encode" && arguments.empty()) return Object(Bytes{});
  if (function == "builtins.bytearray" && arguments.size() == 1) {
    Object bytes = HOLDFAST_TRY(walk(arguments[0]));
    return bytes.as<Bytes>() == nullptr ? here().refuse(function)
                                        : Result<Object>(std::move(bytes));
  }
  if (arguments.size() != 2) return here().refuse(function);
  const std::string encoding = HOLDFAST_TRY(here().text(arguments[1]));
  if (encoding != "latin1" && encoding != "latin-1") return here().refuse(function);
  const std::string from = HOLDFAST_TRY(here().text(arguments[0]));
  HOLDFAST_TRY(spend(from.size()));
  std::optional<Bytes> bytes = bytes_of_latin1(from);
  if (!bytes) return here().broken("has a byte above 255");
  return Object(*std::move(bytes));
}

Result<void> Walker::spend(size_t bytes) {
  if (bytes > budget_) {
    return corrupt("{}: {} grows too large for its pickle", where_, path());
  }
  budget_ -= bytes;
  return {};
}

std::string_view function_of(const Pickle& pickle, const PickleNode::Call& call) {
  const PickleNode& function = pickle[call.function];
  const auto* outside = function.as<Persistent>();
  const Global* global =
      outside == nullptr ? function.as<Global>() : class_of_module(pickle, *outside);
  return global == nullptr ? std::string_view() : std::string_view(global->name);
}

Result<Tree> read_tree(const Pickle& pickle, std::string_view where,
                       size_t pickle_bytes) {
  return Walker(pickle, where, pickle_bytes).run();
}

}  // namespace holdfast::torch_zip
