// Writes safetensors files: the header, then the tensors as a stream.
#include <algorithm>
#include <numeric>
#include <unordered_set>

#include "holdfast/base/checked.h"
#include "holdfast/base/json_text.h"
#include "holdfast/contents/side_metadata.h"
#include "holdfast/formats/safetensors.h"
#include "holdfast/formats/safetensors_internal.h"
#include "holdfast/state/object_json.h"

namespace holdfast {
namespace {

using Metadata = std::map<std::string, std::string>;

constexpr std::string_view kMetadataName = "__metadata__";
constexpr int64_t kBufferBytes = int64_t{4} << 20;

Dtype stored_dtype(Dtype dtype) { return dtype == Dtype::kC128 ? Dtype::kF64 : dtype; }

Result<void> check_name(const std::string& name) {
  if (name.empty()) return invalid("safetensors: a tensor has an empty name");
  if (name == kMetadataName) {
    return invalid("safetensors: a tensor is called {}, which the format reserves",
                   kMetadataName);
  }
  if (!is_utf8(name)) {
    return invalid("safetensors: the name {} is not UTF-8", shown(name));
  }
  return {};
}

Result<void> check_entries(std::span<const SafetensorsEntry> entries) {
  std::unordered_set<std::string_view> names;
  names.reserve(entries.size());
  for (const SafetensorsEntry& entry : entries) {
    HOLDFAST_TRY(check_name(entry.name));
    if (!names.insert(entry.name).second) {
      return invalid("safetensors: two tensors are called {}", shown(entry.name));
    }
    if (entry.dtype == Dtype::kC128 && entry.shape.rank() == kMaxRank) {
      return unsupported(
          "safetensors: {} is C128 with {} dimensions; expected one less",
          shown(entry.name), kMaxRank);
    }
  }
  return {};
}

// Returns the metadata with a note of each dtype that the header cannot express.
Result<Metadata> with_dtypes(std::span<const SafetensorsEntry> entries,
                             Metadata metadata) {
  if (metadata.contains(kDtypesKey)) {
    return invalid("safetensors: metadata has the key {}, which is reserved",
                   kDtypesKey);
  }
  Object::Dict dtypes;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.dtype != Dtype::kC128) continue;
    dtypes.items.emplace_back(Object(entry.name),
                              Object(std::string(name_of(entry.dtype))));
  }
  if (!dtypes.items.empty()) {
    metadata[kDtypesKey] = HOLDFAST_TRY(encode_object(Object(std::move(dtypes))));
  }
  return metadata;
}

Result<void> append_metadata(std::string& json, const Metadata& metadata) {
  if (metadata.empty()) return {};
  append_json_string(json, kMetadataName);
  char between = ':';
  for (const auto& [key, value] : metadata) {
    if (!is_utf8(key) || !is_utf8(value)) {
      return invalid("safetensors: metadata {} is not UTF-8", shown(key));
    }
    json += between;
    if (between == ':') json += '{';
    append_json_string(json, key);
    json += ':';
    append_json_string(json, value);
    between = ',';
  }
  json += '}';
  return {};
}

void append_entry(std::string& json, const SafetensorsEntry& entry, int64_t first,
                  int64_t last) {
  if (json.size() > 1) json += ',';
  append_json_string(json, entry.name);
  json += ":{\"dtype\":\"";
  json += name_of(stored_dtype(entry.dtype));
  json += "\",\"shape\":[";
  for (int k = 0; k < entry.shape.rank(); ++k) {
    if (k > 0) json += ',';
    append_json_integer(json, entry.shape[k]);
  }
  if (entry.dtype == Dtype::kC128) json += entry.shape.rank() > 0 ? ",2" : "2";
  json += "],\"data_offsets\":[";
  append_json_integer(json, first);
  json += ',';
  append_json_integer(json, last);
  json += "]}";
}

// The length, the JSON, and spaces up to the alignment.
Result<Bytes> header_of(const std::string& json, int64_t align) {
  const int64_t whole =
      divide_up(kHeaderLengthBytes + std::ssize(json), align) * align -
      kHeaderLengthBytes;
  if (whole > kMaxSafetensorsHeader) {
    return unsupported("safetensors: header is {} bytes, limit {}", whole,
                       kMaxSafetensorsHeader);
  }
  Bytes header(static_cast<size_t>(kHeaderLengthBytes + whole), std::byte{' '});
  store_little_endian(static_cast<uint64_t>(whole), header);
  std::ranges::copy(bytes_of(json), header.begin() + kHeaderLengthBytes);
  return header;
}

// Collects small tensors in a buffer and appends full buffers to the sink.
class Stream {
 public:
  Stream(Sink& sink, const Contents& contents)
      : sink_(sink), contents_(contents), buffer_(kBufferBytes) {}

  Result<void> put(TensorId tensor) {
    const int64_t bytes = contents_.collection.tensor(tensor).bytes();
    CanonicalStream stream(contents_, tensor);
    for (int64_t done = 0; done < bytes;) {
      const int64_t room = std::ssize(buffer_) - used_;
      const int64_t count = std::min(room, bytes - done);
      HOLDFAST_TRY(stream.read(ByteSpan(buffer_).subspan(static_cast<size_t>(used_),
                                                         static_cast<size_t>(count))));
      done += count;
      used_ += count;
      if (used_ == std::ssize(buffer_)) HOLDFAST_TRY(flush());
    }
    return {};
  }

  Result<void> flush() {
    const auto used = static_cast<size_t>(used_);
    used_ = 0;
    return sink_.append(ByteView(buffer_).first(used));
  }

 private:
  Sink& sink_;
  const Contents& contents_;
  Bytes buffer_;
  int64_t used_ = 0;
};

// The __metadata__ of a file with these tensors.
Result<Metadata> metadata_of(const Contents& contents,
                             std::span<const TensorId> tensors, const Object& objects) {
  Metadata metadata = contents.metadata;
  for (const char* kept : {kTiesKey, kObjectsKey}) {
    if (!metadata.contains(kept)) continue;
    return invalid("safetensors: metadata has the key {}, which is reserved", kept);
  }
  Object::Dict aliases;
  for (const TensorId t : tensors) {
    const Tensor& tensor = contents.collection.tensor(t);
    if (tensor.aliases.empty()) continue;
    Object::List names;
    for (const std::string& alias : tensor.aliases) names.items.emplace_back(alias);
    aliases.items.emplace_back(Object(tensor.name), Object(std::move(names)));
  }
  if (!aliases.items.empty()) {
    metadata[kTiesKey] =
        HOLDFAST_TRY(encode_object(Object(std::move(aliases))).within("aliases"));
  }
  if (!objects.none()) metadata[kObjectsKey] = HOLDFAST_TRY(encode_object(objects));
  // The loaders of Hugging Face refuse a file without this entry.
  metadata.emplace("format", "pt");
  return metadata;
}

}  // namespace

Result<SafetensorsLayout> lay_out_safetensors(std::span<const SafetensorsEntry> entries,
                                              const Metadata& metadata,
                                              int64_t align_data_to) {
  HOLDFAST_CHECK(align_data_to > 0 && align_data_to % 8 == 0, "alignment {}",
                 align_data_to);
  HOLDFAST_TRY(check_entries(entries));
  std::string json = "{";
  HOLDFAST_TRY(append_metadata(json, HOLDFAST_TRY(with_dtypes(entries, metadata))));
  SafetensorsLayout layout;
  layout.offsets.reserve(entries.size());
  int64_t next = 0;
  for (const SafetensorsEntry& entry : entries) {
    const auto last = checked_add(next, entry.shape.elements() * bytes_of(entry.dtype));
    if (!last) return unsupported("safetensors: more than 2^63 bytes in one file");
    append_entry(json, entry, next, *last);
    layout.offsets.push_back(next);
    next = *last;
  }
  json += '}';
  layout.header = HOLDFAST_TRY(header_of(json, align_data_to));
  const int64_t start = std::ssize(layout.header);
  const auto end = checked_add(next, start);
  if (!end) return unsupported("safetensors: more than 2^63 bytes in one file");
  for (int64_t& offset : layout.offsets) offset += start;
  layout.file_bytes = *end;
  return layout;
}

std::vector<TensorId> storage_order(const Collection& collection) {
  std::vector<TensorId> order(collection.tensors().size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater(), [&](TensorId t) {
    return bytes_of(stored_dtype(collection.tensor(t).dtype));
  });
  return order;
}

Result<void> write_tensors(Sink& sink, const Contents& contents,
                           std::span<const TensorId> tensors, const Object& objects) {
  HOLDFAST_TRY(check_tensor_names(objects, contents.collection.tensors()));
  std::vector<SafetensorsEntry> entries;
  for (const TensorId t : tensors) {
    const Tensor& tensor = contents.collection.tensor(t);
    entries.push_back({tensor.name, tensor.dtype, tensor.shape});
  }
  const auto metadata = HOLDFAST_TRY(metadata_of(contents, tensors, objects));
  const SafetensorsLayout layout = HOLDFAST_TRY(lay_out_safetensors(entries, metadata));
  HOLDFAST_TRY(sink.append(layout.header));
  Stream stream(sink, contents);
  for (const TensorId t : tensors) HOLDFAST_TRY(stream.put(t));
  return stream.flush();
}

Result<void> write_safetensors(Sink& sink, const Contents& contents) {
  return write_tensors(sink, contents, storage_order(contents.collection),
                       contents.objects);
}

}  // namespace holdfast
