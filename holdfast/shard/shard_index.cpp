#include "holdfast/base/crc32c.h"
#include "holdfast/base/json_append.h"
#include "holdfast/shard/shard_index_internal.h"

namespace holdfast {
namespace {

// Appends a JSON array: calls put_one(i) for each i < count and puts commas between.
template <typename PutOne>
void put_list(std::string& out, size_t count, PutOne put_one) {
  out += '[';
  for (size_t i = 0; i < count; ++i) {
    if (i > 0) out += ',';
    put_one(i);
  }
  out += ']';
}

void put_file(std::string& out, const ShardFile& file) {
  out += "\n[";
  put_text(out, file.name);
  put(out, ",{},", file.bytes);
  int64_t offset = 0;
  put_list(out, file.chunks.size(), [&](size_t i) {
    const Chunk& chunk = file.chunks[i];
    HOLDFAST_CHECK(chunk.offset == offset, "{}: chunk {} at {}; expected {}", file.name,
                   i, chunk.offset, offset);
    offset += chunk.bytes;
    put(out, "[{},\"{:08x}\"]", chunk.bytes, chunk.crc);
  });
  if (!file.packed.empty()) {
    out += ',';
    put_list(out, file.packed.size(), [&](size_t i) {
      const CompressedChunk& chunk = file.packed[i];
      put(out, "[{},\"{:08x}\",{}]", chunk.bytes, chunk.crc, chunk.width);
    });
  }
  out += ']';
}

// Appends 16 hexadecimal digits. There are many seals, and fmt would take half of the
// time of the whole encoding.
void put_hex(std::string& out, uint64_t number) {
  for (int shift = 60; shift >= 0; shift -= 4) {
    out += "0123456789abcdef"[(number >> shift) & 15];
  }
}

void put_tensor(std::string& out, const Tensor& tensor) {
  out += "\n[";
  put_text(out, tensor.name);
  out.append(",\"").append(name_of(tensor.dtype)).append("\",");
  put_list(out, static_cast<size_t>(tensor.shape.rank()), [&](size_t k) {
    append_json_integer(out, tensor.shape[static_cast<int>(k)]);
  });
  out.append(",\"").append(name_of(tensor.role)).append("\",");
  put_text(out, tensor.of);
  out += ',';
  put_list(out, tensor.aliases.size(),
           [&](size_t i) { put_text(out, tensor.aliases[i]); });
  out += ',';
  append_json_integer(out, tensor.pad_multiple);
  out += ']';
}

void put_seal(std::string& out, const Seal& seal, int64_t bytes) {
  if (seal == Seal()) {
    out += "null";
    return;
  }
  HOLDFAST_CHECK(seal.bytes == static_cast<uint64_t>(bytes),
                 "a seal of {} bytes for a piece of {}", seal.bytes, bytes);
  out += '"';
  for (const uint64_t lane : seal.lanes) put_hex(out, lane);
  out += '"';
}

void put_piece(std::string& out, const StoredPiece& piece, int64_t bytes) {
  out += "\n[";
  for (const int64_t number :
       {int64_t{piece.tensor}, int64_t{piece.file}, piece.offset}) {
    append_json_integer(out, number);
    out += ',';
  }
  put_list(out, static_cast<size_t>(piece.box.rank()), [&](size_t k) {
    const Extent& extent = piece.box[static_cast<int>(k)];
    append_json_integer(out, extent.lo);
    out += ',';
    append_json_integer(out, extent.hi);
  });
  out += ',';
  put_seal(out, piece.seal, bytes);
  if (piece.xxh3) {
    put(out, ",\"{}\"]", piece.xxh3->hex());
  } else {
    out += ",null]";
  }
}

}  // namespace

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
  std::string out;
  put(out, "{{\"holdfast\":\"{}\",\"version\":{},\n\"files\":", kShardIndexKind,
      kShardIndexVersion);
  put_list(out, index.files.size(), [&](size_t i) { put_file(out, index.files[i]); });
  out += ",\n\"tensors\":";
  put_list(out, index.tensors.size(),
           [&](size_t i) { put_tensor(out, index.tensors[i]); });
  out += ",\n\"pieces\":";
  put_list(out, index.pieces.size(), [&](size_t i) {
    put_piece(out, index.pieces[i], bytes_of_piece(index, index.pieces[i]));
  });
  out += "}\n";
  return copy_of(bytes_of(out));
}

}  // namespace holdfast
