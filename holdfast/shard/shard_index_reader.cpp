// Decodes and checks the JSON document of a shard index.
#include <unordered_set>

#include "holdfast/base/checked.h"
#include "holdfast/base/json.h"
#include "holdfast/base/json_append.h"
#include "holdfast/shard/shard_index_internal.h"
#include "holdfast/shard/step_name.h"
#include "holdfast/shard/zstd.h"

namespace holdfast {
namespace {

// One entry of a list in the document: an array whose members are read by their
// position. The name of the entry is made only for an error message, because there are
// many entries.
class Row {
 public:
  Row(const Json& value, const std::string& where, const char* list, size_t index)
      : value_(value), where_(where), list_(list), index_(index) {}

  std::string name() const { return fmt::format("{}: {}[{}]", where_, list_, index_); }

  size_t size() const { return value_.is_array() ? value_.size() : 0; }
  Result<void> check_count(size_t count) const {
    if (value_.is_array() && value_.size() == count) return {};
    return corrupt("{}: is not such an array; expected an array of {}", name(), count);
  }
  Result<int64_t> integer(size_t k, int64_t most) const {
    return integer_of(value_[k], k, most);
  }
  Result<int64_t> integer_of(const Json& value, size_t k, int64_t most) const {
    if (value.is_number_unsigned()) {
      const auto number = value.get<uint64_t>();
      if (number <= static_cast<uint64_t>(most)) return static_cast<int64_t>(number);
    }
    return corrupt(
        "{}: member {} is not such a number; expected an integer from 0 to {}", name(),
        k, most);
  }
  Result<const std::string*> text(size_t k) const { return text_of(value_[k], k); }
  Result<const std::string*> text_of(const Json& value, size_t k) const {
    if (value.is_string()) return value.get_ptr<const std::string*>();
    return corrupt("{}: member {} is not a text; expected a text", name(), k);
  }
  Result<const Json*> array(size_t k, size_t most) const {
    if (value_[k].is_array() && value_[k].size() <= most) return &value_[k];
    return corrupt(
        "{}: member {} is not such an array; expected an array of at most {}", name(),
        k, most);
  }
  bool null(size_t k) const { return value_[k].is_null(); }

  // Adds the name of this entry to the error of a failed `result`, and makes it
  // kCorrupt.
  template <typename T>
  Result<T> named(Result<T> result) const {
    if (result.ok()) return result;
    return result.error().within(name()).as(ErrorCode::kCorrupt);
  }

 private:
  const Json& value_;
  const std::string& where_;
  const char* list_;
  size_t index_;
};

constexpr int64_t kMostBytes = std::numeric_limits<int64_t>::max();
// Sums of two such sizes cannot overflow.
constexpr int64_t kMostFileBytes = int64_t{1} << 61;
// The greatest size of a header chunk. Chunks are read into memory as a whole. This is
// the limit of the safetensors format with room for padding.
constexpr int64_t kMaxHeader = int64_t{128} << 20;

class Reader {
 public:
  explicit Reader(const std::string& where) : where_(where) {}

  Result<ShardIndex> read(const Json& json) {
    Fields fields = HOLDFAST_TRY(Fields::of(json, where_));
    const std::string kind = HOLDFAST_TRY(fields.text("holdfast"));
    if (kind != kShardIndexKind)
      return corrupt("{}: is a \"{}\"; expected a \"{}\"", where_, kind,
                     kShardIndexKind);
    const int64_t version = HOLDFAST_TRY(fields.integer("version"));
    if (version != kShardIndexVersion) {
      return unsupported("{}: version {}; expected {}", where_, version,
                         kShardIndexVersion);
    }
    HOLDFAST_TRY(read_files(*HOLDFAST_TRY(fields.array("files"))));
    HOLDFAST_TRY(read_tensors(*HOLDFAST_TRY(fields.array("tensors"))));
    HOLDFAST_TRY(read_pieces(*HOLDFAST_TRY(fields.array("pieces"))));
    HOLDFAST_TRY(fields.done());
    return std::move(index_);
  }

 private:
  Result<void> read_files(const Json& list) {
    if (list.empty()) return corrupt("{}: names no files; expected the shard", where_);
    std::unordered_set<std::string> names;
    for (size_t i = 0; i < list.size(); ++i) {
      const Row row(list[i], where_, "files", i);
      ShardFile file = HOLDFAST_TRY(read_shard_file(row));
      if (!names.insert(file.name).second) {
        return corrupt("{}: \"{}\" is listed twice; expected it once", row.name(),
                       file.name);
      }
      index_.files.push_back(std::move(file));
    }
    return {};
  }

  Result<ShardFile> read_shard_file(const Row& row) {
    const bool packed = row.size() == 4;
    HOLDFAST_TRY(row.check_count(packed ? 4 : 3));
    ShardFile file;
    file.name = *HOLDFAST_TRY(row.text(0));
    file.bytes = HOLDFAST_TRY(row.integer(1, kMostFileBytes));
    HOLDFAST_TRY(row.named(check_file_name(file.name)));
    const int64_t room = packed ? kMostFileBytes : file.bytes;
    for (const Json& entry : *HOLDFAST_TRY(row.array(2, SIZE_MAX))) {
      const Row chunk(entry, where_, "chunks", file.chunks.size());
      file.chunks.push_back(
          HOLDFAST_TRY(read_chunk(chunk, file.content_bytes(), room)));
    }
    if (packed) {
      HOLDFAST_TRY(read_packed(row, file));
    } else if (file.content_bytes() != file.bytes) {
      return corrupt("{}: chunks end at {}; expected {}", row.name(),
                     file.content_bytes(), file.bytes);
    }
    return file;
  }

  // Chunk 0 is the header and may be longer than other chunks.
  static Result<Chunk> read_chunk(const Row& row, int64_t offset, int64_t room) {
    HOLDFAST_TRY(row.check_count(2));
    const int64_t longest = offset == 0 ? kMaxHeader : kChunkBytes;
    const int64_t most = std::min(room - offset, longest);
    const int64_t bytes = HOLDFAST_TRY(row.integer(0, most));
    if (bytes == 0)
      return corrupt("{}: is empty; expected at least one byte", row.name());
    return Chunk{.offset = offset, .bytes = bytes, .crc = HOLDFAST_TRY(read_crc(row))};
  }

  static Result<uint32_t> read_crc(const Row& row) {
    const Bytes crc = HOLDFAST_TRY(row.named(from_hex(*HOLDFAST_TRY(row.text(1)))));
    if (crc.size() != 4)
      return corrupt("{}: crc has {} digits; expected 8 hexadecimal digits", row.name(),
                     2 * crc.size());
    return big_endian<uint32_t>(crc);
  }

  Result<void> read_packed(const Row& row, ShardFile& file) {
    const Json& list = *HOLDFAST_TRY(row.array(3, file.chunks.size()));
    int64_t end = 0;
    for (size_t i = 0; i < list.size(); ++i) {
      const Row entry(list[i], where_, "packed", i);
      HOLDFAST_TRY(entry.check_count(3));
      // A compressed chunk is never longer than its contents: it would be stored as it
      // is then.
      const int64_t most = std::min(file.chunks[i].bytes, file.bytes - end);
      file.packed.push_back(
          {.offset = end,
           .bytes = HOLDFAST_TRY(entry.integer(0, most)),
           .crc = HOLDFAST_TRY(read_crc(entry)),
           .width = static_cast<int>(HOLDFAST_TRY(entry.integer(2, kMaxPackWidth)))});
      end += file.packed.back().bytes;
    }
    if (list.size() == file.chunks.size() && end == file.bytes && end > 0) return {};
    return corrupt("{}: {} compressed chunks end at {}; expected {} that end at {}",
                   row.name(), list.size(), end, file.chunks.size(), file.bytes);
  }

  Result<void> read_tensors(const Json& list) {
    std::unordered_set<std::string> names;
    index_.tensors.reserve(list.size());
    for (size_t i = 0; i < list.size(); ++i) {
      const Row row(list[i], where_, "tensors", i);
      Tensor tensor = HOLDFAST_TRY(read_tensor(row));
      if (!names.insert(tensor.name).second) {
        return corrupt("{}: \"{}\" is listed twice; expected it once", row.name(),
                       tensor.name);
      }
      index_.tensors.push_back(std::move(tensor));
    }
    return {};
  }

  static Result<Tensor> read_tensor(const Row& row) {
    HOLDFAST_TRY(row.check_count(7));
    Tensor tensor{.name = *HOLDFAST_TRY(row.text(0))};
    if (tensor.name.empty())
      return corrupt("{}: has an empty name; expected the name of a tensor",
                     row.name());
    tensor.dtype = HOLDFAST_TRY(row.named(parse_dtype(*HOLDFAST_TRY(row.text(1)))));
    std::vector<int64_t> sizes;
    for (const Json& size : *HOLDFAST_TRY(row.array(2, kMaxRank))) {
      sizes.push_back(HOLDFAST_TRY(row.integer_of(size, 2, kMostBytes)));
    }
    tensor.shape = HOLDFAST_TRY(row.named(Shape::create(sizes)));
    tensor.role = HOLDFAST_TRY(row.named(parse_role(*HOLDFAST_TRY(row.text(3)))));
    tensor.of = *HOLDFAST_TRY(row.text(4));
    for (const Json& alias : *HOLDFAST_TRY(row.array(5, SIZE_MAX))) {
      tensor.aliases.push_back(*HOLDFAST_TRY(row.text_of(alias, 5)));
    }
    tensor.pad_multiple = HOLDFAST_TRY(row.integer(6, int64_t{1} << 32));
    return tensor;
  }

  Result<void> read_pieces(const Json& list) {
    index_.pieces.reserve(list.size());
    for (size_t i = 0; i < list.size(); ++i) {
      const Row row(list[i], where_, "pieces", i);
      index_.pieces.push_back(HOLDFAST_TRY(read_piece(row)));
    }
    return {};
  }

  Result<StoredPiece> read_piece(const Row& row) const {
    HOLDFAST_TRY(row.check_count(6));
    StoredPiece piece;
    piece.tensor = HOLDFAST_TRY(read_number_below(row, 0, index_.tensors.size()));
    piece.file = HOLDFAST_TRY(read_number_below(row, 1, index_.files.size()));
    piece.offset =
        HOLDFAST_TRY(row.integer(2, index_.files[piece.file].content_bytes()));
    piece.box = HOLDFAST_TRY(read_box(row));
    if (!piece.box.inside(index_.tensors[piece.tensor].shape)) {
      return corrupt("{}: box {} is not inside {}, which has the shape {}", row.name(),
                     to_string(piece.box), index_.tensors[piece.tensor].name,
                     to_string(index_.tensors[piece.tensor].shape));
    }
    HOLDFAST_TRY(check_range(row, piece));
    HOLDFAST_TRY(read_digests(row, piece));
    return piece;
  }

  static Result<uint32_t> read_number_below(const Row& row, size_t k, size_t count) {
    const int64_t place = HOLDFAST_TRY(row.integer(k, UINT32_MAX));
    if (static_cast<size_t>(place) < count) return static_cast<uint32_t>(place);
    return corrupt("{}: member {} is {}; expected less than {}", row.name(), k, place,
                   count);
  }

  static Result<Box> read_box(const Row& row) {
    const Json& ends = *HOLDFAST_TRY(row.array(3, size_t{2} * kMaxRank));
    if (ends.size() % 2 != 0)
      return corrupt("{}: box has {} ends; expected two for each dimension", row.name(),
                     ends.size());
    std::vector<Extent> extents(ends.size() / 2);
    for (size_t k = 0; k < extents.size(); ++k) {
      extents[k].lo = HOLDFAST_TRY(row.integer_of(ends[2 * k], 3, kMostBytes));
      extents[k].hi = HOLDFAST_TRY(row.integer_of(ends[2 * k + 1], 3, kMostBytes));
    }
    return row.named(Box::create(extents));
  }

  // A piece must not lie in the header, unless the piece is empty.
  Result<void> check_range(const Row& row, const StoredPiece& piece) const {
    const ShardFile& file = index_.files[piece.file];
    const int64_t bytes = bytes_of_piece(index_, piece);
    const int64_t first = file.chunks.empty() ? 0 : file.chunks[0].bytes;
    const std::optional<int64_t> end = checked_add(piece.offset, bytes);
    const int64_t last = file.content_bytes();
    if (end && *end <= last && (piece.offset >= first || bytes == 0)) return {};
    return corrupt("{}: {} bytes at {}; expected them within {} to {}", row.name(),
                   bytes, piece.offset, first, last);
  }

  Result<void> read_digests(const Row& row, StoredPiece& piece) const {
    if (!row.null(4)) {
      const Bytes lanes = HOLDFAST_TRY(row.named(from_hex(*HOLDFAST_TRY(row.text(4)))));
      if (lanes.size() != 16)
        return corrupt("{}: seal has {} digits; expected 32 hexadecimal digits",
                       row.name(), 2 * lanes.size());
      piece.seal.lanes = {big_endian<uint64_t>(lanes),
                          big_endian<uint64_t>(ByteView(lanes).subspan(8))};
      piece.seal.bytes = static_cast<uint64_t>(bytes_of_piece(index_, piece));
    }
    if (!row.null(5)) {
      piece.xxh3 =
          HOLDFAST_TRY(row.named(Digest128::from_hex(*HOLDFAST_TRY(row.text(5)))));
    }
    return {};
  }

  // The number whose hexadecimal digits are those of `bytes`.
  template <typename T>
  static T big_endian(ByteView bytes) {
    T value = 0;
    for (size_t i = 0; i < sizeof(T); ++i) {
      value = static_cast<T>((value << 8) | static_cast<T>(bytes[i]));
    }
    return value;
  }

  const std::string& where_;
  ShardIndex index_;
};

}  // namespace

Result<ShardIndex> decode_shard_index(ByteView json, const std::string& where) {
  const Result<Json> parsed = parse_json(text_of(json), where);
  if (!parsed.ok()) return parsed.error().as(ErrorCode::kCorrupt);
  Result<ShardIndex> index = Reader(where).read(*parsed);
  if (index.ok() || index.error().code() == ErrorCode::kUnsupported) return index;
  return index.error().as(ErrorCode::kCorrupt);
}

}  // namespace holdfast
