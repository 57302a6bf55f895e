// Encodes the metadata of DCP's folders as torch 2.13 does (dcp_metadata.cpp).
#include "holdfast/archive/pickle_writer.h"
#include "holdfast/base/json_text.h"
#include "holdfast/formats/dcp_internal.h"
#include "holdfast/formats/torch_zip_internal.h"

namespace holdfast::dcp {
namespace {

class MetadataEncoder {
 public:
  Result<Bytes> encode(const Metadata& metadata) && {
    begin("metadata", "Metadata");
    HOLDFAST_TRY(writer_.text("state_dict_metadata"));
    writer_.begin_dict();
    for (const Entry& entry : metadata.entries) HOLDFAST_TRY(put_entry(entry));
    writer_.end_dict();
    HOLDFAST_TRY(writer_.text("planner_data"));
    writer_.begin_dict();
    for (const Entry& entry : metadata.entries) HOLDFAST_TRY(put_path(entry));
    writer_.end_dict();
    HOLDFAST_TRY(writer_.text("storage_data"));
    writer_.begin_dict();
    for (const Entry& entry : metadata.entries) HOLDFAST_TRY(put_items(entry));
    writer_.end_dict();
    HOLDFAST_TRY(writer_.text("storage_meta"));
    writer_.none();
    HOLDFAST_TRY(writer_.text("version"));
    HOLDFAST_TRY(writer_.text("1.0.0"));
    end();
    return std::move(writer_).finish();
  }

 private:
  // Begins an object of a class of DCP. Its attributes follow, as items of a dict.
  void begin(std::string_view module, std::string_view name) {
    make(module, name);
    writer_.begin_dict();
  }
  void end() {
    writer_.end_dict();
    writer_.set_state();
  }

  void make(std::string_view module, std::string_view name) {
    writer_.global(fmt::format("torch.distributed.checkpoint.{}", module), name);
    writer_.begin_tuple();
    writer_.end_tuple();
    writer_.new_object();
  }

  // Writes torch.Size((2, 3)).
  template <typename At>
  Result<void> put_size(std::string_view attribute, int rank, At&& at) {
    HOLDFAST_TRY(writer_.text(attribute));
    writer_.global("torch", "Size");
    writer_.begin_tuple();
    writer_.begin_tuple();
    for (int k = 0; k < rank; ++k) writer_.integer(at(k));
    writer_.end_tuple();
    writer_.end_tuple();
    writer_.call();
    return {};
  }

  Result<void> put_offset(std::string_view attribute, const Box& box) {
    return put_size(attribute, box.rank(), [&](int k) { return box[k].lo; });
  }

  Result<void> put_entry(const Entry& entry) {
    HOLDFAST_TRY(writer_.text(entry.name).within(shown(entry.name)));
    if (!entry.tensor) {
      make("metadata", "BytesStorageMetadata");
      return {};
    }
    begin("metadata", "TensorStorageMetadata");
    HOLDFAST_TRY(writer_.text("properties"));
    HOLDFAST_TRY(put_properties(entry.dtype));
    HOLDFAST_TRY(
        put_size("size", entry.shape.rank(), [&](int k) { return entry.shape[k]; }));
    HOLDFAST_TRY(writer_.text("chunks"));
    writer_.begin_list();
    for (const Chunk& chunk : entry.chunks) {
      begin("metadata", "ChunkStorageMetadata");
      HOLDFAST_TRY(put_offset("offsets", chunk.box));
      HOLDFAST_TRY(put_size("sizes", chunk.box.rank(),
                            [&](int k) { return chunk.box.size(k); }));
      end();
    }
    writer_.end_list();
    end();
    return {};
  }

  // The state of the properties: dtype, layout, requires_grad, memory format, pinned.
  Result<void> put_properties(Dtype dtype) {
    make("metadata", "TensorProperties");
    writer_.begin_tuple();
    const std::string whole = torch_zip::global_of_dtype(dtype);
    const size_t dot = whole.find('.');
    writer_.global(whole.substr(0, dot), whole.substr(dot + 1));
    writer_.global("torch.serialization", "_get_layout");
    writer_.begin_tuple();
    HOLDFAST_TRY(writer_.text("torch.strided"));
    writer_.end_tuple();
    writer_.call();
    writer_.boolean(false);
    writer_.global("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING");
    writer_.begin_tuple();
    writer_.integer(0);
    writer_.end_tuple();
    writer_.call();
    writer_.boolean(false);
    writer_.end_tuple();
    writer_.set_state();
    return {};
  }

  Result<void> put_path(const Entry& entry) {
    HOLDFAST_TRY(writer_.text(entry.name));
    writer_.begin_tuple();
    for (const Object& step : entry.path) {
      if (const auto* index = step.as<int64_t>()) {
        writer_.integer(*index);
      } else {
        HOLDFAST_TRY(writer_.text(*step.as<std::string>()));
      }
    }
    writer_.end_tuple();
    return {};
  }

  Result<void> put_items(const Entry& entry) {
    if (!entry.tensor) return put_item(entry, nullptr, 0, entry.object);
    for (size_t i = 0; i < entry.chunks.size(); ++i) {
      const Chunk& chunk = entry.chunks[i];
      HOLDFAST_TRY(put_item(entry, &chunk.box, static_cast<int64_t>(i), chunk.item));
    }
    return {};
  }

  Result<void> put_item(const Entry& entry, const Box* box, int64_t index,
                        const Item& item) {
    begin("metadata", "MetadataIndex");
    HOLDFAST_TRY(writer_.text("fqn"));
    HOLDFAST_TRY(writer_.text(entry.name));
    HOLDFAST_TRY(writer_.text("index"));
    if (box == nullptr) {
      writer_.none();
    } else {
      writer_.integer(index);
      HOLDFAST_TRY(put_offset("offset", *box));
    }
    end();
    begin("filesystem", "_StorageInfo");
    HOLDFAST_TRY(writer_.text("relative_path"));
    HOLDFAST_TRY(writer_.text(item.file));
    HOLDFAST_TRY(writer_.text("offset"));
    writer_.integer(item.offset);
    HOLDFAST_TRY(writer_.text("length"));
    writer_.integer(item.length);
    end();
    return {};
  }

  PickleWriter writer_;
};

}  // namespace

Result<Bytes> encode_metadata(const Metadata& metadata) {
  return MetadataEncoder().encode(metadata);
}

}  // namespace holdfast::dcp
