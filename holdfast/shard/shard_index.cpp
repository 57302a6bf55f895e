// Encodes and decodes the JSON document of a shard index. It is compact because it has
// many entries:
//
//   {"holdfast":"shard index","version":1,
//    "files":[["rank-0000.safetensors",bytes,[[bytes,"crc32c"],...],packed],...],
//    "tensors":[["name","F32",[shape],"role","of",["alias",...],pad_multiple],...],
//    "pieces":[[tensor,file,offset,[lo,hi,...],"seal" or null,"xxh3" or null],...]}
//
// `packed` is there only if the file is compressed: [[bytes,"crc32c",width],...]. The
// offset of a chunk is the sum of the sizes before it. A seal is written as its two
// lanes, 16 digits each, and always covers the whole piece.
#include "holdfast/shard/shard_index.h"

#include <unordered_set>

#include "holdfast/base/checked.h"
#include "holdfast/base/crc32c.h"
#include "holdfast/base/json_text.h"
#include "holdfast/shard/step_name.h"
#include "holdfast/shard/zstd.h"
#include "holdfast/state/tensor_fields.h"

namespace holdfast {
namespace {

// Sums of two such sizes cannot overflow.
constexpr int64_t kMostFileBytes = int64_t{1} << 61;
// The greatest size of a header chunk. Chunks are read into memory as a whole. This is
// the limit of the safetensors format with room for padding.
constexpr int64_t kMaxHeader = int64_t{128} << 20;

int64_t bytes_of_piece(const ShardIndex& index, const StoredPiece& piece) {
  return piece.box.elements() * bytes_of(index.tensors[piece.tensor].dtype);
}

std::string crc_text(uint32_t crc) { return fmt::format("{:08x}", crc); }

Result<uint32_t> parse_crc(std::string_view digits) {
  const Bytes bytes = HOLDFAST_TRY(from_hex(digits));
  if (bytes.size() != 4) {
    return invalid("crc has {} digits; expected 8 hexadecimal digits", digits.size());
  }
  uint32_t crc = 0;
  for (const std::byte byte : bytes) crc = crc << 8 | std::to_integer<uint32_t>(byte);
  return crc;
}

struct TensorRow {
  Tensor tensor{};
};

// Gives chunks, in the file or compressed, their offsets.
void set_offsets(auto& chunks) {
  for (int64_t end = 0; auto& chunk : chunks) {
    chunk.offset = end;
    end += chunk.bytes;
  }
}

// Chunk 0 is the header and may be longer than other chunks.
Result<void> check_chunks(const ShardFile& file) {
  const int64_t room = file.packed.empty() ? file.bytes : kMostFileBytes;
  for (size_t i = 0; i < file.chunks.size(); ++i) {
    const Chunk& chunk = file.chunks[i];
    const int64_t most = std::min(room - chunk.offset, i == 0 ? kMaxHeader : kChunkBytes);
    if (chunk.bytes <= most) continue;
    return invalid("chunk {} has {} bytes; expected at most {}", i, chunk.bytes, most);
  }
  if (!file.packed.empty() || file.content_bytes() == file.bytes) return {};
  return invalid("chunks end at {}; expected {}", file.content_bytes(), file.bytes);
}

Result<void> check_packed(const ShardFile& file) {
  int64_t end = 0;
  if (file.packed.empty()) return {};
  for (size_t i = 0; i < std::min(file.packed.size(), file.chunks.size()); ++i) {
    // A compressed chunk is never longer than its contents: it would be stored as it
    // is then.
    const int64_t most = std::min(file.chunks[i].bytes, file.bytes - end);
    if (file.packed[i].bytes > most) {
      return invalid("compressed chunk {} has {} bytes; expected at most {}", i,
                     file.packed[i].bytes, most);
    }
    end += file.packed[i].bytes;
  }
  if (file.packed.size() == file.chunks.size() && end == file.bytes && end > 0) return {};
  return invalid("{} compressed chunks end at {}; expected {} that end at {}",
                 file.packed.size(), end, file.chunks.size(), file.bytes);
}

Result<void> check_distinct(const char* list, const auto& entries) {
  std::unordered_set<std::string_view> names;
  for (const auto& entry : entries) {
    if (names.insert(entry.name).second) continue;
    return invalid("{}: \"{}\" is listed twice; expected it once", list, entry.name);
  }
  return {};
}

// The piece is inside its tensor, and not in the header of its file unless it is empty.
Result<void> check_piece(const ShardIndex& index, const StoredPiece& piece) {
  if (piece.tensor >= index.tensors.size() || piece.file >= index.files.size()) {
    return invalid("tensor {} and file {}; expected less than {} and {}", piece.tensor,
                   piece.file, index.tensors.size(), index.files.size());
  }
  const Tensor& tensor = index.tensors[piece.tensor];
  if (!piece.box.inside(tensor.shape)) {
    return invalid("box {} is not inside {}, which has the shape {}",
                   to_string(piece.box), tensor.name, to_string(tensor.shape));
  }
  const ShardFile& file = index.files[piece.file];
  const int64_t bytes = bytes_of_piece(index, piece);
  const int64_t first = file.chunks.empty() ? 0 : file.chunks[0].bytes;
  const std::optional<int64_t> end = checked_add(piece.offset, bytes);
  const int64_t last = file.content_bytes();
  if (end && *end <= last && (piece.offset >= first || bytes == 0)) return {};
  return invalid("{} bytes at {}; expected them within {} to {}", bytes, piece.offset,
                 first, last);
}

Result<void> check_index(const ShardIndex& index) {
  if (index.files.empty()) return invalid("names no files; expected the shard");
  HOLDFAST_TRY(check_distinct("files", index.files));
  HOLDFAST_TRY(check_distinct("tensors", index.tensors));
  for (size_t i = 0; i < index.pieces.size(); ++i) {
    const Result<void> checked = check_piece(index, index.pieces[i]);
    if (!checked.ok()) return checked.error().within(fmt::format("pieces[{}]", i));
  }
  return {};
}

}  // namespace

template <>
inline constexpr bool kRow<Chunk> = true;
template <>
inline constexpr bool kRow<CompressedChunk> = true;
template <>
inline constexpr bool kRow<ShardFile> = true;
template <>
inline constexpr bool kRow<TensorRow> = true;
template <>
inline constexpr bool kRow<StoredPiece> = true;

void fields(Is<Chunk> auto& self, auto&& field) {
  field.integer("bytes", self.bytes, 1, kMaxHeader);
  field.text("crc", self.crc, crc_text, parse_crc);
}

void fields(Is<CompressedChunk> auto& self, auto&& field) {
  field.integer("bytes", self.bytes, 0, kMaxHeader);
  field.text("crc", self.crc, crc_text, parse_crc);
  field.integer("width", self.width, 0, kMaxPackWidth);
}

void fields(Is<ShardFile> auto& self, auto&& field) {
  field("name", self.name);
  field.integer("bytes", self.bytes, 0, kMostFileBytes);
  field("chunks", self.chunks);
  if (field.kReads ? field.size() > 3 : !self.packed.empty()) {
    field("packed", self.packed);
  }
  if constexpr (!std::is_const_v<std::remove_reference_t<decltype(self)>>) {
    set_offsets(self.chunks);
    set_offsets(self.packed);
  }
  field.check([&] { return check_file_name(self.name); });
  field.check([&] { return check_chunks(self); });
  field.check([&] { return check_packed(self); });
}

void fields(Is<TensorRow> auto& self, auto&& field) {
  auto& tensor = self.tensor;
  field("name", tensor.name);
  // An unknown dtype is no sign of a newer version here.
  field.text("dtype", tensor.dtype, [](Dtype dtype) { return name_of(dtype); },
             [](std::string_view name) -> Result<Dtype> {
               const Result<Dtype> dtype = parse_dtype(name);
               return dtype.ok() ? dtype : dtype.error().as(ErrorCode::kCorrupt);
             });
  field("shape", tensor.shape);
  field("role", tensor.role);
  field("of", tensor.of);
  field("aliases", tensor.aliases);
  field.integer("pad_multiple", tensor.pad_multiple, 0, int64_t{1} << 32);
  field.check([&]() -> Result<void> {
    if (!tensor.name.empty()) return {};
    return invalid("has an empty name; expected the name of a tensor");
  });
}

// The ends of a box are one flat list.
void put_json(JsonWriter& out, const Box& box) {
  out.open('[');
  for (const Extent& extent : box.extents()) {
    for (const int64_t end : {extent.lo, extent.hi}) {
      out.item();
      out.put(end);
    }
  }
  out.close();
}
Result<void> read_json(const JsonPlace& at, Box& box) {
  std::vector<int64_t> ends;
  HOLDFAST_TRY(read_json(at, ends));
  if (ends.size() % 2 != 0) return at.expected("two ends for each dimension");
  std::vector<Extent> extents;
  for (size_t k = 0; k < ends.size(); k += 2) extents.push_back({ends[k], ends[k + 1]});
  box = HOLDFAST_TRY(Box::create(extents).within(at.struct_text()));
  return {};
}

void put_json(JsonWriter& out, const Digest128& digest) { put_json(out, digest.hex()); }
Result<void> read_json(const JsonPlace& at, Digest128& digest) {
  return read_text(at, digest, Digest128::from_hex);
}

void fields(Is<StoredPiece> auto& self, auto&& field) {
  field.integer("tensor", self.tensor, 0, UINT32_MAX);
  field.integer("file", self.file, 0, UINT32_MAX);
  field("offset", self.offset);
  field("box", self.box);
  // A piece that was not sealed has no seal. That of 0 bytes is known by the lanes.
  std::optional<Digest128> lanes;
  if (self.seal != Seal()) lanes = {self.seal.lanes[0], self.seal.lanes[1]};
  field("seal", lanes);
  if constexpr (!std::is_const_v<std::remove_reference_t<decltype(self)>>) {
    if (lanes) self.seal = {.lanes = {lanes->high, lanes->low}, .bytes = UINT64_MAX};
  }
  field("xxh3", self.xxh3);
}

void fields(Is<ShardIndex> auto& self, auto&& field) {
  field.kind("shard index");
  field.version(1);
  std::vector<TensorRow> tensors;
  for (const Tensor& tensor : self.tensors) tensors.push_back({tensor});
  field.line();
  field("files", self.files);
  field.line();
  field("tensors", tensors);
  field.line();
  field("pieces", self.pieces);
  if constexpr (!std::is_const_v<std::remove_reference_t<decltype(self)>>) {
    for (TensorRow& row : tensors) self.tensors.push_back(std::move(row.tensor));
    field.check([&] { return check_index(self); });
  }
}

uint32_t combined_crc(const ShardFile& file) {
  Crc32c crc = 0;
  const auto add = [&](const auto& chunk) {
    crc = crc32c_combine(crc, chunk.crc, static_cast<uint64_t>(chunk.bytes));
  };
  if (file.packed.empty()) {
    for (const Chunk& chunk : file.chunks) add(chunk);
  } else {
    for (const CompressedChunk& chunk : file.packed) add(chunk);
  }
  return crc;
}

Bytes encode_shard_index(const ShardIndex& index) {
  for (const ShardFile& file : index.files) {
    for (int64_t end = 0; const Chunk& chunk : file.chunks) {
      HOLDFAST_CHECK(chunk.offset == end, "{}: a chunk at {}; expected {}", file.name,
                     chunk.offset, end);
      end += chunk.bytes;
    }
  }
  for (const StoredPiece& piece : index.pieces) {
    const auto bytes = static_cast<uint64_t>(bytes_of_piece(index, piece));
    HOLDFAST_CHECK(piece.seal == Seal() || piece.seal.bytes == bytes,
                   "a seal of {} bytes for a piece of {}", piece.seal.bytes, bytes);
  }
  return copy_of(bytes_of(to_json_text(index, kDigestedJson) + "\n"));
}

Result<ShardIndex> decode_shard_index(ByteView json, const std::string& where) {
  ShardIndex index = HOLDFAST_TRY(
      from_json<ShardIndex>(text_of(json), where, ErrorCode::kCorrupt));
  for (StoredPiece& piece : index.pieces) {
    if (piece.seal == Seal()) continue;
    piece.seal.bytes = static_cast<uint64_t>(bytes_of_piece(index, piece));
  }
  return index;
}

}  // namespace holdfast
