// Reads the files that torch.save wrote before torch 1.6, and still writes if it is asked
// to. Such a file is a sequence of pickles: a magic number, the version of the format,
// facts on the machine, the saved object, and the keys of its storages. For each key, the
// number of elements (8 bytes) and the elements follow. Nothing has a checksum.
#include <algorithm>
#include <map>

#include "holdfast/base/checked.h"
#include "holdfast/formats/torch_zip.h"
#include "holdfast/formats/torch_zip_internal.h"

namespace holdfast {
namespace torch_zip {
namespace {

using Dict = PickleNode::Dict;
using Global = PickleNode::Global;
using List = PickleNode::List;
using Persistent = PickleNode::Persistent;
using Tuple = PickleNode::Tuple;

constexpr std::string_view kMagic = "119547037146038801333356";
constexpr int64_t kMagicBytes = 64;  // more than the pickle of the number has
constexpr int64_t kVersion = 1001;
// How much is read at first to find the end of a pickle.
constexpr int64_t kFirstWindow = int64_t{64} << 10;

// Reads pickles that lie one behind the other in a file.
class PickleSequence {
 public:
  explicit PickleSequence(const Source& source) : source_(source) {}

  int64_t at() const { return at_; }
  size_t last_bytes() const { return last_bytes_; }

  // A pickle does not say how long it is. So a larger part of the file is read until the
  // pickle ends in it.
  Result<Pickle> next(const std::string& where) {
    const int64_t left = std::min(source_.size() - at_, kMaxPickleBytes);
    for (int64_t window = kFirstWindow;; window *= 2) {
      const Bytes bytes =
          HOLDFAST_TRY(source_.read_bytes(at_, std::min(window, left)));
      std::optional<FrontPickle> front = HOLDFAST_TRY(
          read_front_pickle(bytes, {.where = where, .allow_global = may_occur}));
      if (front) {
        at_ += static_cast<int64_t>(front->bytes);
        last_bytes_ = front->bytes;
        return std::move(front->pickle);
      }
      if (window < left) continue;
      return corrupt("{}: the pickle at byte {} does not end within {} bytes", where,
                     at_, left);
    }
  }

 private:
  const Source& source_;
  int64_t at_ = 0;
  size_t last_bytes_ = 0;
};

Result<void> check_version(const Pickle& pickle, const std::string& where) {
  const auto* version = pickle[pickle.root].as<int64_t>();
  if (version != nullptr && *version == kVersion) return {};
  return unsupported("{}: another version of the format before torch 1.6; expected {}",
                     where, kVersion);
}

Result<void> check_byte_order(const Pickle& pickle, const std::string& where) {
  const auto* facts = pickle[pickle.root].as<Dict>();
  if (facts == nullptr) return corrupt("{}: has no facts on its machine", where);
  for (const auto& [key, value] : facts->items) {
    const auto* name = pickle[key].as<std::string>();
    const auto* little = pickle[value].as<bool>();
    if (name == nullptr || *name != "little_endian") continue;
    if (little != nullptr && *little) return {};
    return unsupported("{}: byte order is big; expected little", where);
  }
  return corrupt("{}: does not say its byte order", where);
}

// The numbers of elements and bytes of each storage that the pickle names, by key. They
// are taken from all nodes, because an object that cannot be read may have storages too.
struct StorageSize {
  int64_t elements = 0;
  int64_t bytes = 0;
};
using StorageSizes = std::map<std::string, StorageSize>;

std::optional<int64_t> element_bytes_of(const Pickle& pickle, PickleId type) {
  const auto* global = pickle[type].as<Global>();
  if (global == nullptr) return std::nullopt;
  if (global->name == "torch.storage.UntypedStorage") return 1;
  const auto dtype = dtype_of_storage(global->name);
  return dtype ? std::optional(bytes_of(*dtype)) : std::nullopt;
}

StorageSizes sizes_of_storages(const Pickle& pickle) {
  StorageSizes sizes;
  for (const PickleNode& node : pickle.nodes) {
    const auto* outside = node.as<Persistent>();
    const auto* parts =
        outside == nullptr ? nullptr : pickle[outside->id].as<Tuple>();
    if (parts == nullptr || parts->items.size() != 6) continue;
    const auto* key = pickle[parts->items[2]].as<std::string>();
    const auto* elements = pickle[parts->items[4]].as<int64_t>();
    const auto element = element_bytes_of(pickle, parts->items[1]);
    if (key == nullptr || elements == nullptr || *elements < 0 || !element) continue;
    const auto bytes = checked_mul(*elements, *element);
    if (bytes) sizes.emplace(*key, StorageSize{*elements, *bytes});
  }
  return sizes;
}

using Records = std::map<std::string, StorageRecord>;

// Finds the storage that begins at `at`, and moves `at` behind it.
Result<StorageRecord> next_storage(const Source& source, const std::string& key,
                                   const StorageSizes& sizes, int64_t& at) {
  const auto size = sizes.find(key);
  if (size == sizes.end()) {
    return unsupported("{}: the size of storage {} is not known", source.name(), key);
  }
  const Bytes count = HOLDFAST_TRY(source.read_bytes(at, 8));
  const auto elements = load_little_endian<uint64_t>(count);
  if (elements != static_cast<uint64_t>(size->second.elements)) {
    return corrupt("{}: storage {} has {} elements; expected {}", source.name(), key,
                   elements, size->second.elements);
  }
  at += 8;
  if (size->second.bytes > source.size() - at) {
    return corrupt("{}: storage {} of {} bytes at {} does not fit into the file",
                   source.name(), key, size->second.bytes, at);
  }
  StorageRecord record{"storage " + key, at, size->second.bytes};
  at += record.size;
  return record;
}

Result<Records> find_storages(const Source& source, const Pickle& keys,
                              const StorageSizes& sizes, int64_t at) {
  const auto* list = keys[keys.root].as<List>();
  if (list == nullptr) {
    return corrupt("{}: has no list of its storages", source.name());
  }
  Records records;
  for (const PickleId id : list->items) {
    const auto* key = keys[id].as<std::string>();
    if (key == nullptr || records.contains(*key)) {
      return corrupt("{}: a storage has no key of its own", source.name());
    }
    records[*key] = HOLDFAST_TRY(next_storage(source, *key, sizes, at));
  }
  if (at == source.size()) return records;
  return unsupported("{}: {} bytes follow its last storage; expected one saved object",
                     source.name(), source.size() - at);
}

}  // namespace

Result<bool> is_legacy(const Source& source) {
  const int64_t count = std::min(source.size(), kMagicBytes);
  return is_legacy_torch(HOLDFAST_TRY(source.read_bytes(0, count)));
}

Result<Contents> open_legacy(std::shared_ptr<const Source> source) {
  const std::string& where = source->name();
  PickleSequence pickles(*source);
  HOLDFAST_TRY(pickles.next(where));  // the magic number
  HOLDFAST_TRY(check_version(HOLDFAST_TRY(pickles.next(where)), where));
  HOLDFAST_TRY(check_byte_order(HOLDFAST_TRY(pickles.next(where)), where));
  const Pickle object = HOLDFAST_TRY(pickles.next(where));
  Tree tree = HOLDFAST_TRY(read_tree(object, where, pickles.last_bytes()));
  const Pickle keys = HOLDFAST_TRY(pickles.next(where));
  const Records records = HOLDFAST_TRY(
      find_storages(*source, keys, sizes_of_storages(object), pickles.at()));
  const auto find = [&](const std::string& key) -> std::optional<StorageRecord> {
    const auto found = records.find(key);
    return found == records.end() ? std::nullopt : std::optional(found->second);
  };
  PlacedViews views = HOLDFAST_TRY(place_views(where, find, std::move(tree.views)));
  return contents_of_views(source, nullptr, std::move(views), std::move(tree));
}

}  // namespace torch_zip

bool is_legacy_torch(ByteView head) {
  // The number is written after a mark of the protocol, or as text.
  if (head.empty() || (head[0] != std::byte{0x80} && head[0] != std::byte{'L'})) {
    return false;
  }
  head = head.first(std::min<size_t>(head.size(), torch_zip::kMagicBytes));
  const auto front = read_front_pickle(head, {.where = "magic number"});
  if (!front.ok() || !*front) return false;
  const Pickle& pickle = (*front)->pickle;
  const auto* number = pickle[pickle.root].as<Object::BigInteger>();
  return number != nullptr && number->decimal == torch_zip::kMagic;
}

}  // namespace holdfast
