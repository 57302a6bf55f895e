// Turns the nodes of a pickle into objects and views of storages.
#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "holdfast/base/checked.h"
#include "holdfast/formats/torch_zip_internal.h"

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

class Walker {
 public:
  Walker(const Pickle& pickle, std::string_view where, size_t pickle_bytes)
      : pickle_(pickle),
        where_(where),
        budget_(std::min(kMostBytes, kMaxGrowth * pickle_bytes + kFreeGrowth)),
        open_(pickle.nodes.size()) {}

  Result<Tree> run() && {
    tree_.objects = HOLDFAST_TRY(walk(pickle_.root));
    return std::move(tree_);
  }

 private:
  Result<Object> walk(PickleId id) {
    HOLDFAST_TRY(spend(sizeof(Object)));
    if (open_[id]) return unsupported("{}: {} contains itself", where_, path());
    if (++depth_ > kMaxObjectDepth) {
      return unsupported("{}: {} nests deeper than {}", where_, path(),
                         kMaxObjectDepth);
    }
    open_[id] = true;
    Object object = HOLDFAST_TRY(walk_value(id));
    open_[id] = false;
    --depth_;
    return object;
  }

  Result<Object> walk_value(PickleId id) {
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
    if (node.as<Persistent>() != nullptr) {
      return unsupported("{}: {} is a storage without a tensor", where_, path());
    }
    return walk_plain(node);
  }

  Result<Object> walk_plain(const PickleNode& node) {
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

  Result<std::vector<Object>> walk_items(const std::vector<PickleId>& items) {
    std::vector<Object> objects;
    for (size_t i = 0; i < items.size(); ++i) {
      keys_.emplace_back(static_cast<int64_t>(i));
      objects.push_back(HOLDFAST_TRY(walk(items[i])));
      keys_.pop_back();
    }
    return objects;
  }

  Result<Object> walk_dict(const Dict& dict) {
    Object::Dict object;
    std::unordered_set<std::string> seen;
    for (const auto& [key_id, value_id] : dict.items) {
      Object key = HOLDFAST_TRY(walk_key(key_id));
      if (!seen.insert(identity_of_key(key)).second) {
        return corrupt("{}: {} has the key {} twice", where_, path(), text_of_key(key));
      }
      keys_.push_back(key);
      Object value = HOLDFAST_TRY(walk(value_id));
      keys_.pop_back();
      object.items.emplace_back(std::move(key), std::move(value));
    }
    return Object(std::move(object));
  }

  Result<Object> walk_key(PickleId id) {
    Object key = HOLDFAST_TRY(walk(id));
    if (!plain_key(key)) {
      return unsupported(
          "{}: {} has a key of another type; expected text, a number, None, or a tuple "
          "of these",
          where_, path());
    }
    return key;
  }

  static bool plain_key(const Object& key) {
    if (const auto* tuple = key.as<Object::Tuple>()) {
      return std::ranges::all_of(tuple->items, plain_key);
    }
    return key.as<Object::List>() == nullptr && key.as<Object::Dict>() == nullptr &&
           key.as<Object::TensorName>() == nullptr;
  }

  Result<Object> walk_global(const Global& global) {
    if (!dtype_of_global(global.name)) HOLDFAST_TRY(note_simplified(global.name));
    HOLDFAST_TRY(spend(global.name.size()));
    return Object(global.name);
  }

  Result<Object> walk_call(const Call& call) {
    const std::string& name = pickle_[call.function].as<Global>()->name;
    if (!is_known(name)) return walk_foreign_object(call, name);
    const bool bare = call.state == kNoPickleId && call.items == kNoPickleId &&
                      call.entries == kNoPickleId;
    if (!bare) return refuse(name);
    const auto& arguments = pickle_[call.arguments].as<Tuple>()->items;
    if (name.starts_with("torch._utils._rebuild_")) return walk_tensor(name, arguments);
    if (name == "torch.Size" && arguments.size() == 1) {
      return Object(
          Object::Tuple{HOLDFAST_TRY(walk_items(HOLDFAST_TRY(tuple(arguments[0]))))});
    }
    if (name == "torch.device") return walk_device(arguments);
    if (name == "_codecs.encode") return walk_bytes(arguments);
    if (name == "builtins.bytes" && arguments.empty()) return Object(Bytes{});
    return refuse(name);
  }

  // An object of any other class is never made. Its class becomes text, and its parts
  // stay data, so that its tensors can be read.
  Result<Object> walk_foreign_object(const Call& call, const std::string& name) {
    const size_t simplified = tree_.simplified.size();
    HOLDFAST_TRY(note_simplified(name));
    HOLDFAST_TRY(spend(name.size()));
    Object::Dict made{{{Object(std::string(kClassKey)), Object(name)}}};
    const auto& arguments = pickle_[call.arguments].as<Tuple>()->items;
    if (!arguments.empty()) {
      HOLDFAST_TRY(add_part(kArgumentsKey, call.arguments, made));
    }
    HOLDFAST_TRY(add_part(kItemsKey, call.items, made));
    HOLDFAST_TRY(add_part(kEntriesKey, call.entries, made));
    const bool by_name = has_names(pickle_, call.state);
    if (!by_name) HOLDFAST_TRY(add_part(kStateKey, call.state, made));
    if (by_name) {
      const Object state = HOLDFAST_TRY(walk_dict(*pickle_[call.state].as<Dict>()));
      std::ranges::copy(state.as<Object::Dict>()->items,
                        std::back_inserter(made.items));
    }
    if (std::optional<Object> number = numpy_scalar(made)) {
      tree_.simplified.resize(simplified);
      return *std::move(number);
    }
    return Object(std::move(made));
  }

  Result<void> add_part(std::string_view key, PickleId id, Object::Dict& made) {
    if (id == kNoPickleId) return {};
    keys_.emplace_back(std::string(key));
    Object part = HOLDFAST_TRY(walk(id));
    keys_.pop_back();
    made.items.emplace_back(Object(std::string(key)), std::move(part));
    return {};
  }

  Result<void> note_simplified(const std::string& name) {
    const std::string place = keys_.empty() ? "the saved object" : this->name();
    HOLDFAST_TRY(spend(place.size() + name.size()));
    tree_.simplified.push_back(fmt::format("{}: {}", place, name));
    return {};
  }

  // The arguments are ("cpu",) or ("cuda", 0).
  Result<Object> walk_device(const std::vector<PickleId>& arguments) {
    if (arguments.empty() || arguments.size() > 2) return refuse("torch.device");
    std::string device = HOLDFAST_TRY(text(arguments[0]));
    if (arguments.size() == 2) {
      device += fmt::format(":{}", HOLDFAST_TRY(integer(arguments[1])));
    }
    HOLDFAST_TRY(spend(device.size()));
    return Object(std::move(device));
  }

  // Pickle protocol 2 has no bytes: it encodes them as text with code points below 256.
  Result<Object> walk_bytes(const std::vector<PickleId>& arguments) {
    if (arguments.size() != 2 || HOLDFAST_TRY(text(arguments[1])) != "latin1") {
      return refuse("_codecs.encode");
    }
    const std::string from = HOLDFAST_TRY(text(arguments[0]));
    HOLDFAST_TRY(spend(from.size()));
    std::optional<Bytes> bytes = bytes_of_latin1(from);
    if (!bytes) return corrupt("{}: {} has a byte above 255", where_, path());
    return Object(*std::move(bytes));
  }

  // Tensors.

  Result<Object> walk_tensor(std::string_view function,
                             const std::vector<PickleId>& arguments) {
    if (function == "torch._utils._rebuild_parameter" && arguments.size() == 3) {
      Object data = HOLDFAST_TRY(walk(arguments[0]));
      if (data.as<Object::TensorName>() == nullptr)
        return broken("is a parameter without a tensor");
      return data;
    }
    const bool v2 = function == "torch._utils._rebuild_tensor_v2";
    const bool v3 = function == "torch._utils._rebuild_tensor_v3";
    const size_t expected = v3 ? 7 : 6;
    if ((!v2 && !v3) || arguments.size() < expected ||
        arguments.size() > expected + 1) {
      return refuse(function);
    }
    if (arguments.size() > expected) HOLDFAST_TRY(check_flags(arguments[expected]));
    View view = HOLDFAST_TRY(start_view());
    std::optional<Dtype> dtype;
    if (v3) {
      dtype = HOLDFAST_TRY(find_dtype(arguments[6]));
    }
    HOLDFAST_TRY(read_storage(arguments[0], dtype, view));
    view.offset = HOLDFAST_TRY(integer(arguments[1]));
    HOLDFAST_TRY(read_shape(arguments[2], arguments[3], view));
    Object leaf(Object::TensorName{view.name});
    tree_.views.push_back(std::move(view));
    return leaf;
  }

  // Begins a view with its name and path. Fails if another tensor has the same name.
  Result<View> start_view() {
    View view{.name = name(), .path = path()};
    HOLDFAST_TRY(spend(sizeof(View) + 4 * view.name.size()));
    if (view.name.empty()) return unsupported("{}: a tensor has no name", where_);
    const auto [other, is_new] = names_.emplace(view.name, view.path);
    if (!is_new) {
      return unsupported("{}: {} and {} would both be named {}", where_, other->second,
                         view.path, view.name);
    }
    return view;
  }

  // torch marks lazy conjugation and negation of a view in flags. Such views are not
  // supported, because the operation is not carried out in the stored bytes.
  Result<void> check_flags(PickleId id) {
    const auto* flags = pickle_[id].as<Dict>();
    if (flags != nullptr && flags->items.empty()) return {};
    return unsupported("{}: {} is a conjugated or negated view", where_, path());
  }

  Result<Dtype> find_dtype(PickleId id) {
    const auto* global = pickle_[id].as<Global>();
    const auto dtype = global == nullptr ? std::nullopt : dtype_of_global(global->name);
    if (dtype) return *dtype;
    return unsupported("{}: {} has the dtype {}, which is not known", where_, path(),
                       global == nullptr ? "?" : global->name);
  }

  // A storage is ('storage', torch.FloatStorage, '0', 'cpu', 6). The last item is the
  // number of elements. `dtype` is the dtype of the tensor; it is set if the storage
  // itself has none.
  Result<void> read_storage(PickleId id, std::optional<Dtype> dtype, View& view) {
    const auto* persistent = pickle_[id].as<Persistent>();
    if (persistent == nullptr) return broken("has no storage");
    const auto parts = HOLDFAST_TRY(tuple(persistent->id));
    if (parts.size() != 5 || HOLDFAST_TRY(text(parts[0])) != "storage") {
      return broken("has a storage that is not torch's");
    }
    const auto* type = pickle_[parts[1]].as<Global>();
    if (type == nullptr) return broken("has a storage without a type");
    const auto stored = dtype_of_storage(type->name);
    const bool untyped = type->name == "torch.storage.UntypedStorage";
    if (stored.has_value() == untyped || (!stored && !dtype)) {
      return unsupported("{}: {} is in a {}, which is not known", where_, path(),
                         type->name);
    }
    view.dtype = dtype ? *dtype : *stored;
    view.key = HOLDFAST_TRY(text(parts[2]));
    HOLDFAST_TRY(spend(view.key.size()));
    const auto bytes = checked_mul(HOLDFAST_TRY(integer(parts[4])),
                                   stored ? bytes_of(*stored) : int64_t{1});
    if (!bytes || *bytes < 0) return broken("has a storage of an impossible size");
    view.storage_bytes = *bytes;
    return {};
  }

  Result<void> read_shape(PickleId sizes_id, PickleId strides_id, View& view) {
    const auto sizes = HOLDFAST_TRY(integers(sizes_id));
    const auto strides = HOLDFAST_TRY(integers(strides_id));
    if (sizes.size() != strides.size()) {
      return corrupt("{}: {} has {} sizes and {} strides", where_, path(), sizes.size(),
                     strides.size());
    }
    if (sizes.size() > kMaxRank) {
      return unsupported("{}: {} has {} dimensions, limit {}", where_, path(),
                         sizes.size(), kMaxRank);
    }
    auto shape = Shape::create(sizes);
    if (!shape.ok()) {
      return shape.error().as(ErrorCode::kCorrupt).within(path()).within(where_);
    }
    view.shape = *std::move(shape);
    std::ranges::copy(strides, view.strides.begin());
    return {};
  }

  // Arguments.

  Result<std::vector<PickleId>> tuple(PickleId id) const {
    const auto* found = pickle_[id].as<Tuple>();
    if (found == nullptr) return broken("has another value; expected a tuple");
    return found->items;
  }

  Result<std::string> text(PickleId id) const {
    const auto* found = pickle_[id].as<std::string>();
    if (found == nullptr) return broken("has another value; expected text");
    return *found;
  }

  Result<int64_t> integer(PickleId id) const {
    const auto* found = pickle_[id].as<int64_t>();
    if (found == nullptr) return broken("has another value; expected an integer");
    return *found;
  }

  Result<std::vector<int64_t>> integers(PickleId id) const {
    PickleId items = id;
    if (const auto* size = pickle_[id].as<Call>()) {
      const auto& arguments = pickle_[size->arguments].as<Tuple>()->items;
      if (pickle_[size->function].as<Global>()->name == "torch.Size" &&
          arguments.size() == 1) {
        items = arguments[0];
      }
    }
    std::vector<int64_t> numbers;
    for (const PickleId item : HOLDFAST_TRY(tuple(items))) {
      numbers.push_back(HOLDFAST_TRY(integer(item)));
    }
    return numbers;
  }

  Error broken(std::string_view what) const {
    return corrupt("{}: {} {}", where_, path(), what);
  }

  Error refuse(std::string_view global) const {
    return unsupported("{}: {} is made by \"{}\", which is not allowed", where_, path(),
                       global);
  }

  // Counts memory that the result takes. Fails if the limit is reached.
  Result<void> spend(size_t bytes) {
    if (bytes > budget_) {
      return corrupt("{}: {} grows too large for its pickle", where_, path());
    }
    budget_ -= bytes;
    return {};
  }

  std::string path() const { return path_of_keys(keys_); }
  std::string name() const { return name_of_keys(keys_); }

  const Pickle& pickle_;
  const std::string_view where_;
  size_t budget_;
  // The nodes on the way from the root to the current node. Finding one of them again
  // means that an object contains itself.
  std::vector<bool> open_;
  int depth_ = 0;
  // The keys that lead to the current object.
  std::vector<Object> keys_;
  std::unordered_map<std::string, std::string> names_;
  Tree tree_;
};

}  // namespace

Result<Tree> read_tree(const Pickle& pickle, std::string_view where,
                       size_t pickle_bytes) {
  return Walker(pickle, where, pickle_bytes).run();
}

}  // namespace holdfast::torch_zip
