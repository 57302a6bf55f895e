// The tensors of another file or step, as a source of right bytes, and how a chunk is put
// together from pieces of tensors.
#include <algorithm>

#include "holdfast/base/crc32c.h"
#include "holdfast/repair/copy_source.h"
#include "holdfast/shard/chunk_reader.h"
#include "holdfast/shard/zstd.h"

namespace holdfast {
namespace {

// Nobody has recorded the level with which a chunk was compressed. The CRC tells which it
// was. Higher levels take too long for a guess.
constexpr int kMostLevel = 12;

Result<Bytes> compress_again(const WantedChunk& wanted, ByteView chunk) {
  const CompressedChunk& packed = wanted.shard.packed[wanted.number];
  if (crc32c(chunk) != wanted.shard.chunks[wanted.number].crc) {
    return corrupt("has other bytes");
  }
  if (packed.width == 0) return copy_of(chunk);
  for (int level = 1; level <= kMostLevel; ++level) {
    Compressed made = HOLDFAST_TRY(compress(chunk, packed.width, level));
    if (std::ssize(made.bytes) == packed.bytes && crc32c(made.bytes) == packed.crc) {
      return std::move(made.bytes);
    }
  }
  return unsupported(
      "has the bytes, but this version of zstd does not compress them as before");
}

class ContentsCopies : public CopySource {
 public:
  ContentsCopies(const Contents& contents, std::string name)
      : contents_(contents), name_(std::move(name)) {}

  std::string_view rung() const override { return "copy"; }
  const std::string& name() const override { return name_; }

  Result<Bytes> read_chunk(const WantedChunk& wanted) override {
    return assemble_chunk(wanted, [&](const PieceInShard& piece, int64_t first,
                                      ByteSpan into) -> Result<void> {
      const Tensor& tensor = *piece.tensor;
      const auto id = contents_.collection.find(tensor.name);
      if (!id) return not_found("has no tensor {}", tensor.name);
      const Tensor& other = contents_.collection.tensor(*id);
      if (other.dtype != tensor.dtype || other.shape != tensor.shape) {
        return conflict("has {} as {} {}; expected {} {}", tensor.name,
                        name_of(other.dtype), to_string(other.shape),
                        name_of(tensor.dtype), to_string(tensor.shape));
      }
      return read_stream(contents_, *id, piece.piece->box, first, into);
    });
  }

  Result<Bytes> read_file(const StepParts&, const ManifestFile&) override {
    return not_found("has only tensors");
  }

 private:
  const Contents& contents_;
  const std::string name_;
};

}  // namespace

Result<Bytes> assemble_chunk(const WantedChunk& wanted, const ReadPiece& read) {
  const Chunk& chunk = wanted.shard.chunks[wanted.number];
  Bytes bytes(static_cast<size_t>(chunk.bytes));
  int64_t done = chunk.offset;
  for (const PieceInShard& one :
       pieces_in(wanted.step, wanted.shard.name, chunk.offset, chunk.bytes)) {
    const int64_t begin = std::max(one.piece->offset, chunk.offset);
    const int64_t end =
        std::min(one.piece->offset + one.bytes(), chunk.offset + chunk.bytes);
    if (begin != done) break;
    HOLDFAST_TRY(read(one, begin - one.piece->offset,
                      ByteSpan(bytes).subspan(static_cast<size_t>(begin - chunk.offset),
                                              static_cast<size_t>(end - begin))));
    done = end;
  }
  if (done != chunk.offset + chunk.bytes) {
    return not_found("has no tensor with these bytes");
  }
  if (wanted.shard.packed.empty()) return bytes;
  return compress_again(wanted, bytes);
}

std::unique_ptr<CopySource> copies_in_contents(const Contents& contents,
                                               std::string name) {
  return std::make_unique<ContentsCopies>(contents, std::move(name));
}

}  // namespace holdfast
