// Writes a TensorFlow checkpoint: the shard as a stream, then the index.
#include <map>
#include <unordered_set>

#include "holdfast/base/json_text.h"
#include "holdfast/contents/side_metadata.h"
#include "holdfast/env/source_sink.h"
#include "holdfast/tensorflow/bundle_index.h"
#include "holdfast/tensorflow/bundle_strings.h"
#include "holdfast/tensorflow/table_writer.h"
#include "holdfast/tensorflow/tensor_bundle.h"

namespace holdfast {
namespace bundle {
namespace {

constexpr int64_t kBufferBytes = int64_t{4} << 20;
// The longest name that is written as a key.
constexpr size_t kMaxNameBytes = size_t{16} << 10;
constexpr std::string_view kPrefixName = "ckpt";

// Whether a name can be a key as it is.
bool can_be_key(std::string_view name) {
  return !name.empty() && name.front() != kSliceKeyMark &&
         !name.starts_with(kKeptPrefix) && name.size() <= kMaxNameBytes;
}

// Chooses the key and the dtype of each tensor.
std::vector<StoredAs> choose_stored(std::span<const Tensor> tensors) {
  std::unordered_set<std::string_view> names;
  for (const Tensor& tensor : tensors) names.insert(tensor.name);
  std::vector<StoredAs> stored;
  int64_t next = 0;
  for (const Tensor& tensor : tensors) {
    std::string key = tensor.name;
    while (!can_be_key(key) || (key != tensor.name && names.contains(key))) {
      key = fmt::format("tensor.{}", next++);
    }
    const bool known = type_of(tensor.dtype).has_value();
    stored.push_back(
        {std::move(key), known ? tensor.dtype : unsigned_like(tensor.dtype)});
  }
  return stored;
}

// The objects that TensorFlow can hold.
struct NativeStrings {
  std::map<std::string, StringTensor> tensors{};
  // Whether these are all objects, in the order in which they are read again.
  bool all = true;
};

NativeStrings find_native(const Object& objects, std::span<const StoredAs> stored) {
  const auto* dict = objects.as<Object::Dict>();
  if (dict == nullptr || dict->items.empty()) return {.all = objects.none()};
  std::unordered_set<std::string_view> keys;
  for (const StoredAs& tensor : stored) keys.insert(tensor.name);
  NativeStrings native;
  for (const auto& [key, value] : dict->items) {
    const auto* name = key.as<std::string>();
    auto strings = strings_in(value);
    if (name == nullptr || !strings || !can_be_key(*name) || keys.contains(*name)) {
      native.all = false;
      continue;
    }
    if (!native.tensors.empty() && native.tensors.rbegin()->first > *name) {
      native.all = false;
    }
    native.tensors.emplace(*name, *std::move(strings));
  }
  return native;
}

// Writes the shard, and notes where everything is.
class ShardWriter {
 public:
  ShardWriter(Sink& sink, const Contents& contents)
      : sink_(sink), contents_(contents), buffer_(kBufferBytes) {}

  Result<void> put_tensor(TensorId id, const StoredAs& stored) {
    const Tensor& tensor = contents_.collection.tensor(id);
    BundleEntry entry{.type = type_of(stored.dtype).value(),
                      .shape = tensor.shape,
                      .offset = size_,
                      .size = tensor.bytes(),
                      .crc = 0};
    CanonicalStream stream(contents_, id);
    for (int64_t done = 0; done < entry.size;) {
      const int64_t count = std::min(std::ssize(buffer_) - used_, entry.size - done);
      const ByteSpan part = ByteSpan(buffer_).subspan(static_cast<size_t>(used_),
                                                      static_cast<size_t>(count));
      HOLDFAST_TRY(stream.read(part));
      entry.crc = crc32c_extend(*entry.crc, part);
      done += count;
      HOLDFAST_TRY(advance(count));
    }
    entries_.emplace(stored.name, std::move(entry));
    return {};
  }

  Result<void> put_strings(const std::string& key, const StringTensor& tensor) {
    const EncodedStrings encoded = encode_strings(tensor.strings);
    entries_.emplace(key, BundleEntry{.type = kStringType,
                                      .shape = tensor.shape,
                                      .offset = size_,
                                      .size = std::ssize(encoded.bytes),
                                      .crc = encoded.crc});
    HOLDFAST_TRY(flush());
    size_ += std::ssize(encoded.bytes);
    return sink_.append(bytes_of(encoded.bytes));
  }

  Result<void> flush() {
    const auto used = static_cast<size_t>(used_);
    used_ = 0;
    if (used == 0) return {};
    return sink_.append(ByteView(buffer_).first(used));
  }

  std::string index() const {
    TableWriter table;
    table.add("", encode_header({}));
    for (const auto& [key, entry] : entries_) table.add(key, encode_entry(entry));
    return std::move(table).finish();
  }

 private:
  Result<void> advance(int64_t count) {
    used_ += count;
    size_ += count;
    return used_ == std::ssize(buffer_) ? flush() : Result<void>();
  }

  Sink& sink_;
  const Contents& contents_;
  Bytes buffer_;
  int64_t used_ = 0;  // bytes in the buffer
  int64_t size_ = 0;  // bytes of the shard so far
  std::map<std::string, BundleEntry> entries_;
};

Result<std::string> write_shard(Sink& sink, const Contents& contents) {
  const auto stored = choose_stored(contents.collection.tensors());
  const NativeStrings native = find_native(contents.objects, stored);
  const KeptTexts kept = HOLDFAST_TRY(
      keep_beside(contents, native.all ? Object() : contents.objects, stored));
  ShardWriter shard(sink, contents);
  for (TensorId t = 0; t < stored.size(); ++t) {
    HOLDFAST_TRY(shard.put_tensor(t, stored[t]));
  }
  for (const auto& [key, tensor] : native.tensors) {
    HOLDFAST_TRY(shard.put_strings(key, tensor));
  }
  for (const auto& [key, text] : kept) {
    HOLDFAST_TRY(shard.put_strings(key, {Shape(), {bytes_of(text)}}));
  }
  HOLDFAST_TRY(shard.flush());
  return shard.index();
}

}  // namespace
}  // namespace bundle

Result<void> write_tensor_bundle(Env& env, const Path& folder,
                                 const Contents& contents) {
  HOLDFAST_TRY(env.create_folder(folder));
  const Path index =
      folder / fmt::format("{}{}", bundle::kPrefixName, kTensorBundleIndexSuffix);
  const bundle::BundleIndex names{.path = index};
  const auto sink = HOLDFAST_TRY(FileSink::create(env, names.shard_path(0)));
  const std::string table = HOLDFAST_TRY(bundle::write_shard(*sink, contents));
  HOLDFAST_TRY(sink->finish());
  HOLDFAST_TRY(env.write_file(index, bytes_of(table)));
  const std::string state =
      fmt::format("model_checkpoint_path: \"{}\"\n", bundle::kPrefixName);
  HOLDFAST_TRY(env.write_file(folder / kTensorBundleStateFile, bytes_of(state)));
  return env.sync_names(folder);
}

}  // namespace holdfast
