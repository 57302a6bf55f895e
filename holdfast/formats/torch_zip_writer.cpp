// Writes torch's zip files: the pickle, then the storages as streams.
#include <algorithm>
#include <set>
#include <unordered_map>

#include "holdfast/base/xxh3.h"
#include "holdfast/archive/pickle_writer.h"
#include "holdfast/formats/torch_zip.h"
#include "holdfast/formats/torch_zip_internal.h"
#include "holdfast/archive/zip_writer.h"

namespace holdfast {
namespace {

constexpr size_t kChunkBytes = size_t{1} << 20;
constexpr std::string_view kFolder = "archive/";

// Writes the pickle, and assigns a storage to each tensor on the way.
class Emitter {
 public:
  explicit Emitter(const Collection& collection, bool classes = false)
      : collection_(collection), classes_(classes) {}

  Result<void> emit(const Object& objects) {
    find_leaves(objects, 1);
    const auto missing = missing_names();
    const auto* dict = objects.as<Object::Dict>();
    if (objects.none()) {
      writer_.global("collections", "OrderedDict");
      writer_.begin_tuple();
      writer_.end_tuple();
      writer_.call();
      return emit_flat(missing);
    }
    if (missing.empty()) return emit_object(objects, 1);
    if (dict == nullptr) {
      return invalid(
          "the tensor {} has no place in the objects; expected a dict as the objects",
          missing.front());
    }
    return emit_extended(*dict, missing);
  }

  // Writes an object as it is.
  Result<void> emit_object(const Object& object) { return emit_object(object, 1); }

  Bytes finish() && { return std::move(writer_).finish(); }
  // The tensors in the order of the keys of their storages.
  const std::vector<TensorId>& storages() const { return storages_; }

 private:
  // Collects the names of all tensors in the tree. Does not look into trees that are
  // too deep: emit_object() refuses them.
  void find_leaves(const Object& object, int depth) {
    if (depth > kMaxObjectDepth) return;
    if (const auto* leaf = object.as<Object::TensorName>()) leaves_.insert(leaf->name);
    if (const auto* list = object.as<Object::List>()) {
      for (const Object& item : list->items) find_leaves(item, depth + 1);
    }
    if (const auto* tuple = object.as<Object::Tuple>()) {
      for (const Object& item : tuple->items) find_leaves(item, depth + 1);
    }
    if (const auto* dict = object.as<Object::Dict>()) {
      for (const auto& [key, value] : dict->items) find_leaves(value, depth + 1);
    }
  }

  // The names of tensors and aliases that have no place in the objects.
  std::vector<std::string_view> missing_names() const {
    std::vector<std::string_view> names;
    for (const Tensor& tensor : collection_.tensors()) {
      if (!leaves_.contains(tensor.name)) names.push_back(tensor.name);
      for (const std::string& alias : tensor.aliases) {
        if (!leaves_.contains(alias)) names.push_back(alias);
      }
    }
    return names;
  }

  Result<void> emit_flat(const std::vector<std::string_view>& names) {
    writer_.mark();
    for (const std::string_view name : names) {
      HOLDFAST_TRY(writer_.text(name).within(name));
      HOLDFAST_TRY(emit_tensor(name));
    }
    writer_.end_dict();
    return {};
  }

  // Writes the dict and adds the named tensors under their names.
  Result<void> emit_extended(const Object::Dict& dict,
                             const std::vector<std::string_view>& names) {
    const std::set<std::string_view> taken(names.begin(), names.end());
    for (const auto& [key, value] : dict.items) {
      const auto* text = key.as<std::string>();
      if (text != nullptr && taken.contains(*text)) {
        return invalid(
            "the tensor {} has no place in the objects, because its name is a key "
            "already",
            *text);
      }
    }
    HOLDFAST_TRY(emit_dict(dict, 1));
    return emit_flat(names);
  }

  Result<void> emit_object(const Object& object, int depth) {
    if (depth > kMaxObjectDepth) {
      return invalid("objects nest deeper than {}", kMaxObjectDepth);
    }
    if (const auto* leaf = object.as<Object::TensorName>()) {
      return emit_tensor(leaf->name);
    }
    if (const auto* dict = object.as<Object::Dict>()) return emit_dict(*dict, depth);
    if (const auto* list = object.as<Object::List>()) {
      writer_.begin_list();
      HOLDFAST_TRY(emit_items(list->items, depth));
      writer_.end_list();
      return {};
    }
    if (const auto* tuple = object.as<Object::Tuple>()) {
      writer_.begin_tuple();
      HOLDFAST_TRY(emit_items(tuple->items, depth));
      writer_.end_tuple();
      return {};
    }
    return emit_plain(object);
  }

  Result<void> emit_plain(const Object& object) {
    if (const auto* text = object.as<std::string>()) {
      const auto dtype = classes_ ? torch_zip::dtype_of_global(*text) : std::nullopt;
      if (!dtype) return writer_.text(*text);
      emit_dtype(*dtype);
      return {};
    }
    if (const auto* bytes = object.as<Bytes>()) return writer_.bytes(*bytes);
    if (const auto* big = object.as<Object::BigInteger>()) {
      return writer_.big_integer(big->decimal);
    }
    if (const auto* truth = object.as<bool>()) {
      writer_.boolean(*truth);
    } else if (const auto* integer = object.as<int64_t>()) {
      writer_.integer(*integer);
    } else if (const auto* number = object.as<double>()) {
      writer_.number(*number);
    } else {
      writer_.none();
    }
    return {};
  }

  Result<void> emit_items(const std::vector<Object>& items, int depth) {
    for (size_t i = 0; i < items.size(); ++i) {
      HOLDFAST_TRY(emit_object(items[i], depth + 1).within(fmt::format("[{}]", i)));
    }
    return {};
  }

  Result<void> emit_dict(const Object::Dict& dict, int depth) {
    if (classes_) {
      if (const auto parts = torch_zip::parts_of_instance(dict)) {
        return emit_instance(*parts, depth);
      }
    }
    return emit_items_of(dict.items, depth);
  }

  // Writes a call of the class, and then the attributes or the state that it gets.
  Result<void> emit_instance(const torch_zip::InstanceParts& parts, int depth) {
    emit_global(parts.name);
    writer_.begin_tuple();
    for (size_t i = 0; i < parts.arguments.size(); ++i) {
      const auto* text = parts.arguments[i].as<std::string>();
      if (i == 0 && parts.first_is_class && text != nullptr) {
        emit_global(*text);
        continue;
      }
      HOLDFAST_TRY(emit_object(parts.arguments[i], depth + 1));
    }
    writer_.end_tuple();
    if (parts.arguments.empty()) {
      writer_.new_object();
    } else {
      writer_.call();
    }
    if (parts.state) {
      HOLDFAST_TRY(emit_object(*parts.state, depth + 1).within(parts.name));
      writer_.set_state();
    } else if (!parts.attributes.empty()) {
      HOLDFAST_TRY(emit_items_of(parts.attributes, depth).within(parts.name));
      writer_.set_state();
    }
    return {};
  }

  void emit_global(const std::string& name) {
    const size_t dot = name.rfind('.');
    writer_.global(name.substr(0, dot), name.substr(dot + 1));
  }

  Result<void> emit_items_of(const std::vector<std::pair<Object, Object>>& items,
                             int depth) {
    writer_.begin_dict();
    for (const auto& [key, value] : items) {
      const auto* text = key.as<std::string>();
      const std::string where = fmt::format("[{}]", text != nullptr ? *text : "...");
      HOLDFAST_TRY(emit_object(key, depth + 1).within(where));
      HOLDFAST_TRY(emit_object(value, depth + 1).within(where));
    }
    writer_.end_dict();
    return {};
  }

  // Writes torch._utils._rebuild_tensor_v2(storage, 0, size, stride, False,
  // OrderedDict()). For dtypes without a typed storage writes _rebuild_tensor_v3 with
  // the dtype as one more argument.
  Result<void> emit_tensor(std::string_view name) {
    const auto id = collection_.find(name);
    if (!id)
      return invalid("the objects name the tensor {}, which does not exist", name);
    const Tensor& tensor = collection_.tensor(*id);
    const bool typed = !torch_zip::storage_of_dtype(tensor.dtype).empty();
    writer_.global("torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
    writer_.begin_tuple();
    HOLDFAST_TRY(emit_storage(*id));
    writer_.integer(0);
    emit_shape(tensor.shape);
    writer_.boolean(false);
    writer_.global("collections", "OrderedDict");
    writer_.begin_tuple();
    writer_.end_tuple();
    writer_.call();
    if (!typed) emit_dtype(tensor.dtype);
    writer_.end_tuple();
    writer_.call();
    return {};
  }

  Result<void> emit_storage(TensorId id) {
    const Tensor& tensor = collection_.tensor(id);
    const std::string_view type = torch_zip::storage_of_dtype(tensor.dtype);
    const auto [key, is_new] = key_of_.emplace(id, storages_.size());
    if (is_new) storages_.push_back(id);
    writer_.begin_tuple();
    HOLDFAST_TRY(writer_.text("storage"));
    if (type.empty()) {
      writer_.global("torch.storage", "UntypedStorage");
    } else {
      writer_.global("torch", type);
    }
    HOLDFAST_TRY(writer_.text(std::to_string(key->second)));
    HOLDFAST_TRY(writer_.text("cpu"));
    writer_.integer(type.empty() ? tensor.bytes() : tensor.shape.elements());
    writer_.end_tuple();
    writer_.persistent();
    return {};
  }

  void emit_shape(const Shape& shape) {
    writer_.begin_tuple();
    for (const int64_t size : shape.sizes()) writer_.integer(size);
    writer_.end_tuple();
    const Map dense = Map::dense(Box::whole(shape), 1);
    writer_.begin_tuple();
    for (int k = 0; k < shape.rank(); ++k) {
      writer_.integer(dense.strides[static_cast<size_t>(k)]);
    }
    writer_.end_tuple();
  }

  void emit_dtype(Dtype dtype) {
    const std::string whole = torch_zip::global_of_dtype(dtype);
    const size_t dot = whole.find('.');
    writer_.global(whole.substr(0, dot), whole.substr(dot + 1));
  }

  const Collection& collection_;
  const bool classes_;  // whether dicts that stand for objects become objects
  PickleWriter writer_;
  std::set<std::string, std::less<>> leaves_;
  std::unordered_map<TensorId, size_t> key_of_;
  std::vector<TensorId> storages_;
};

// The archive. It also computes a digest of the names and CRCs of its records, which
// becomes the id of the archive.
class Archive {
 public:
  explicit Archive(Sink& sink) : zip_(sink) {}

  Result<void> add(std::string_view name, ByteView bytes) {
    const std::string whole = std::string(kFolder) + std::string(name);
    note(whole, HOLDFAST_TRY(zip_.add(whole, bytes)));
    return {};
  }

  Result<void> add_storage(size_t key, const Contents& contents, TensorId id) {
    const std::string whole = fmt::format("{}data/{}", kFolder, key);
    const int64_t size = contents.collection.tensor(id).bytes();
    HOLDFAST_TRY(zip_.begin(whole, size));
    buffer_.resize(kChunkBytes);
    CanonicalStream stream(contents, id);
    for (int64_t done = 0; done < size;) {
      const auto count = std::min(kChunkBytes, static_cast<size_t>(size - done));
      const ByteSpan part = ByteSpan(buffer_).first(count);
      HOLDFAST_TRY(stream.read(part));
      HOLDFAST_TRY(zip_.append(part));
      done += static_cast<int64_t>(count);
    }
    note(whole, HOLDFAST_TRY(zip_.end()));
    return {};
  }

  Result<void> finish() {
    const Digest128 digest = identity_.digest();
    const std::string id = fmt::format("{:020}{:020}", digest.high, digest.low);
    HOLDFAST_TRY(add(".data/serialization_id", bytes_of(id)));
    return zip_.finish();
  }

 private:
  void note(const std::string& name, Crc32 crc) {
    identity_.append(bytes_of(fmt::format("{} {:08x}\n", name, crc)));
  }

  ZipWriter zip_;
  Bytes buffer_;
  Xxh3Stream identity_;
};

// The records and their order are as in torch 2.13.
Result<void> write_archive(Sink& sink, const Contents& contents, Emitter emitter) {
  const std::vector<TensorId> storages = emitter.storages();
  Archive archive(sink);
  HOLDFAST_TRY(archive.add("data.pkl", std::move(emitter).finish()));
  HOLDFAST_TRY(archive.add(".format_version", bytes_of("1")));
  HOLDFAST_TRY(archive.add(".storage_alignment", bytes_of("64")));
  HOLDFAST_TRY(archive.add("byteorder", bytes_of("little")));
  for (size_t key = 0; key < storages.size(); ++key) {
    HOLDFAST_TRY(archive.add_storage(key, contents, storages[key]));
  }
  HOLDFAST_TRY(archive.add("version", bytes_of("3\n")));
  return archive.finish();
}

}  // namespace

Result<void> write_torch(Sink& sink, const Contents& contents) {
  Emitter emitter(contents.collection);
  HOLDFAST_TRY(emitter.emit(contents.objects));
  return write_archive(sink, contents, std::move(emitter));
}

Result<void> write_torch_with_classes(Sink& sink, const Contents& contents) {
  Emitter emitter(contents.collection, true);
  HOLDFAST_TRY(emitter.emit(contents.objects));
  return write_archive(sink, contents, std::move(emitter));
}

Result<void> torch_zip::write_object(Sink& sink, const Contents& contents,
                                     const Object& object) {
  Emitter emitter(contents.collection);
  HOLDFAST_TRY(emitter.emit_object(object));
  return write_archive(sink, contents, std::move(emitter));
}

}  // namespace holdfast
