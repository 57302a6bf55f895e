#include <algorithm>

#include "holdfast/base/checked.h"
#include "holdfast/hdf5/chunk_index_internal.h"

namespace holdfast::hdf5 {
namespace {

constexpr std::string_view kLayoutMessage = "layout message";
constexpr std::string_view kFillMessage = "fill value message";
// Chunks are decoded as a whole.
constexpr int64_t kMostChunkBytes = int64_t{1} << 30;

// Flags of a layout message of version 4.
constexpr uint8_t kPlainEdges = 1;
constexpr uint8_t kSingleWithFilters = 2;

class DatasetReader {
 public:
  DatasetReader(const File& file, const ObjectHeader& header, const std::string& where)
      : file_(file), header_(header), where_(where) {
    dataset_.where = where;
  }

  Result<Dataset> read() && {
    const Bytes type =
        HOLDFAST_TRY(data_of(MessageType::kDatatype, "datatype message"));
    dataset_.type = HOLDFAST_TRY(read_datatype(file_, type, where_));
    const Bytes space =
        HOLDFAST_TRY(data_of(MessageType::kDataspace, "dataspace message"));
    const Dataspace sizes = HOLDFAST_TRY(read_dataspace(file_, space, where_));
    dataset_.null = sizes.null;
    index_.most_sizes = sizes.most_sizes;
    HOLDFAST_TRY(set_shape(sizes));
    if (header_.find(MessageType::kExternalFiles) != nullptr) {
      return unsupported(
          "{} has its elements in other files; expected them in this file", where_);
    }
    if (const Message* filters = header_.find(MessageType::kFilters)) {
      dataset_.filters = HOLDFAST_TRY(read_filters(file_, filters->data, where_));
    }
    HOLDFAST_TRY(read_fill());
    if (!dataset_.null) HOLDFAST_TRY(read_layout());
    return std::move(dataset_);
  }

 private:
  Result<Bytes> data_of(MessageType type, std::string_view what) const {
    const Message* message = header_.find(type);
    if (message == nullptr) return corrupt("{}: object header has no {}", where_, what);
    return resolve_shared(file_, message->shared(), message->data, type, where_);
  }

  Result<void> set_shape(const Dataspace& sizes) {
    auto shape = Shape::create(sizes.sizes);
    if (!shape.ok()) return unsupported("{}: {}", where_, shape.error().message());
    dataset_.shape = *shape;
    const auto bytes = checked_mul(shape->elements(), dataset_.element_bytes());
    if (!bytes) return corrupt("{}: has more than 2^63 bytes", where_);
    return {};
  }

  Result<void> read_fill() {
    const Message* message = header_.find(MessageType::kFill);
    const Message* old = header_.find(MessageType::kOldFill);
    if (message == nullptr) message = old;
    if (message == nullptr || message->shared()) return {};
    Cursor cursor = file_.cursor(message->data);
    bool has_value = true;
    if (message->type == MessageType::kFill) {
      const uint8_t version = cursor.u8();
      const uint8_t flags = cursor.u8();
      if (version < 3) cursor.skip(1);
      const uint8_t defined = version < 3 ? cursor.u8() : flags & 0x20;
      has_value = defined != 0 || version == 1;
    }
    const uint64_t bytes = has_value ? cursor.u32() : 0;
    dataset_.fill = copy_of(cursor.take(bytes));
    HOLDFAST_TRY(cursor.check(where_, kFillMessage));
    if (!dataset_.fill.empty() && bytes != dataset_.type.bytes) {
      return corrupt("{}: {} has {} bytes; expected {}", where_, kFillMessage, bytes,
                     dataset_.type.bytes);
    }
    swap_numbers(dataset_.fill, dataset_.type.swapped);
    return {};
  }

  Result<void> read_layout() {
    const Message* message = header_.find(MessageType::kLayout);
    if (message == nullptr) {
      return corrupt("{}: object header has no {}", where_, kLayoutMessage);
    }
    Cursor cursor = file_.cursor(message->data);
    const uint8_t version = cursor.u8(), kind = cursor.u8();
    HOLDFAST_TRY(cursor.check(where_, kLayoutMessage));
    if (version < 3 || version > 5) {
      return unsupported("{} has a {} of version {}; expected 3 or newer", where_,
                         kLayoutMessage, version);
    }
    if (kind == 3) {
      return unsupported("{} is a virtual dataset; expected one with its own elements",
                         where_);
    }
    if (kind > 3) return corrupt("{}: {} has class {}", where_, kLayoutMessage, kind);
    if (kind == 2) {
      return version == 3 ? read_chunked(cursor) : read_new_chunked(cursor, *message);
    }
    return kind == 0 ? read_compact(cursor, *message) : read_contiguous(cursor);
  }

  Result<void> set_plain(uint64_t address, uint64_t bytes) {
    if (signed_of(bytes) != dataset_.bytes()) {
      return corrupt("{}: {} has {} bytes; expected {} for the shape {}", where_,
                     kLayoutMessage, bytes, dataset_.bytes(),
                     to_string(dataset_.shape));
    }
    if (!dataset_.filters.empty()) {
      return corrupt("{}: has filters, but no chunks", where_);
    }
    dataset_.storage = Storage::kPlain;
    dataset_.offset =
        HOLDFAST_TRY(file_.place_of(address, bytes, where_, "contiguous storage"));
    return {};
  }

  Result<void> read_compact(Cursor& cursor, const Message& message) {
    const uint16_t bytes = cursor.u16();
    const uint64_t address = message.address + cursor.at();
    cursor.skip(bytes);
    HOLDFAST_TRY(cursor.check(where_, kLayoutMessage));
    HOLDFAST_TRY(set_plain(address, bytes));
    if (header_.version < 2) return {};
    dataset_.header_block = file_.base() + signed_of(message.block);
    dataset_.header_block_bytes = signed_of(message.block_bytes);
    return {};
  }

  Result<void> read_contiguous(Cursor& cursor) {
    const uint64_t address = cursor.address(), bytes = cursor.length();
    HOLDFAST_TRY(cursor.check(where_, kLayoutMessage));
    if (address == kUndefined || dataset_.bytes() == 0) return {};
    return set_plain(address, bytes);
  }

  Result<void> read_chunked(Cursor& cursor) {
    const uint8_t rank = cursor.u8();
    index_.address = cursor.address();
    HOLDFAST_TRY(read_chunk_sizes(cursor, rank, 4));
    return read_index();
  }

  // A layout message of version 4 or 5.
  Result<void> read_new_chunked(Cursor& cursor, const Message& message) {
    const uint8_t flags = cursor.u8(), rank = cursor.u8(), width = cursor.u8();
    index_.plain_edges = (flags & kPlainEdges) != 0;
    HOLDFAST_TRY(read_chunk_sizes(cursor, rank, width));
    index_.kind = static_cast<IndexKind>(cursor.u8());
    switch (index_.kind) {
      case IndexKind::kSingle:
        if ((flags & kSingleWithFilters) != 0) read_single(cursor, message);
        break;
      case IndexKind::kImplicit: break;
      // The other indexes say the same in headers of their own.
      case IndexKind::kFixedArray: cursor.skip(1); break;
      case IndexKind::kExtensibleArray: cursor.skip(5); break;
      case IndexKind::kNewTree: cursor.skip(6); break;
      default:
        return corrupt("{}: {} has a chunk index of kind {}; expected 1 to 5", where_,
                       kLayoutMessage, static_cast<int>(index_.kind));
    }
    index_.single.address_field =
        file_.base() + signed_of(message.address + cursor.at());
    index_.address = cursor.address();
    HOLDFAST_TRY(cursor.check(where_, kLayoutMessage));
    return read_index();
  }

  // The size and the mask of the only chunk are in the layout message.
  void read_single(Cursor& cursor, const Message& message) {
    Chunk& chunk = index_.single;
    chunk.size_field = file_.base() + signed_of(message.address + cursor.at());
    chunk.size_bytes = file_.sizes().length;
    chunk.bytes = signed_of(std::min(cursor.length(), uint64_t{INT64_MAX}));
    chunk.mask = cursor.u32();
    if (header_.version < 2) return;
    chunk.index_block = file_.base() + signed_of(message.block);
    chunk.index_block_bytes = signed_of(message.block_bytes);
  }

  Result<void> read_index() {
    if (index_.address == kUndefined || dataset_.bytes() == 0) return {};
    dataset_.storage = Storage::kChunked;
    return read_chunks(file_, index_, dataset_);
  }

  // The sizes of a chunk in each dimension, and last the bytes of an element.
  Result<void> read_chunk_sizes(Cursor& cursor, uint8_t rank, uint8_t width) {
    std::vector<int64_t> sizes;
    for (int k = 0; k < rank && width <= 8 && !cursor.cut(); ++k) {
      const uint64_t size = cursor.number(width);
      sizes.push_back(signed_of(std::min(size, uint64_t{INT64_MAX})));
    }
    HOLDFAST_TRY(cursor.check(where_, kLayoutMessage));
    if (width > 8 || rank != dataset_.shape.rank() + 1 ||
        sizes.back() != dataset_.element_bytes()) {
      return corrupt("{}: {} has chunks of {} dimensions; expected {}", where_,
                     kLayoutMessage, rank - 1, dataset_.shape.rank());
    }
    sizes.pop_back();
    return set_chunk_shape(sizes);
  }

  Result<void> set_chunk_shape(const std::vector<int64_t>& sizes) {
    const auto shape = Shape::create(sizes);
    const auto bytes = shape.ok()
                           ? checked_mul(shape->elements(), dataset_.element_bytes())
                           : std::nullopt;
    if (!bytes || *bytes == 0) {
      return corrupt("{}: {} has chunks of no or too many bytes", where_,
                     kLayoutMessage);
    }
    if (*bytes > kMostChunkBytes) {
      return unsupported("{} has chunks of {} bytes; expected at most {}", where_,
                         *bytes, kMostChunkBytes);
    }
    dataset_.chunk_shape = *shape;
    return {};
  }

  const File& file_;
  const ObjectHeader& header_;
  const std::string& where_;
  Dataset dataset_;
  ChunkIndex index_;
};

}  // namespace

int64_t Dataset::grid(int k) const { return divide_up(shape[k], chunk_shape[k]); }

bool is_dataset(const ObjectHeader& header) {
  return header.find(MessageType::kDataspace) != nullptr ||
         header.find(MessageType::kLayout) != nullptr;
}

Result<Dataset> read_dataset(const File& file, const ObjectHeader& header,
                             const std::string& where) {
  return DatasetReader(file, header, where).read();
}

InChunk chunk_of(const Dataset& dataset, int64_t element) {
  InChunk in;
  int64_t chunks = 1, elements = 1;  // of the dimensions after k
  for (int k = dataset.shape.rank() - 1; k >= 0; --k) {
    const int64_t at = element % dataset.shape[k], size = dataset.chunk_shape[k];
    element /= dataset.shape[k];
    in.number += at / size * chunks;
    in.inside += at % size * elements;
    chunks *= dataset.grid(k);
    elements *= size;
  }
  in.inside *= dataset.element_bytes();
  return in;
}

}  // namespace holdfast::hdf5
