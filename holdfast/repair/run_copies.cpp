// Other steps of a run, and other files of a step, as a source of right bytes.
#include <algorithm>
#include <map>

#include "holdfast/base/crc32c.h"
#include "holdfast/checkpoint/verified_source.h"
#include "holdfast/repair/copy_source.h"
#include "holdfast/shard/chunk_reader.h"
#include "holdfast/shard/step_name.h"

namespace holdfast {
namespace {

// What makes two pieces the same: a part of the same tensor with the same seal.
using PieceKey = std::tuple<std::string, Dtype, std::vector<int64_t>, Box,
                            std::array<uint64_t, 2>>;

PieceKey key_of(const PieceInShard& one) {
  const auto& sizes = one.tensor->shape.sizes();
  return {one.tensor->name, one.tensor->dtype, {sizes.begin(), sizes.end()},
          one.piece->box, one.piece->seal.lanes};
}

// Where a piece with a certain key lies.
struct Twin {
  const StepParts* step = nullptr;
  const ShardFile* file = nullptr;
  int64_t offset = 0;
};

bool has_stored_crc(const ShardFile& shard, size_t number, ByteView stored) {
  const uint32_t crc =
      shard.packed.empty() ? shard.chunks[number].crc : shard.packed[number].crc;
  return crc32c(stored) == crc;
}

class RunCopies : public CopySource {
 public:
  RunCopies(Env& env, Path run) : env_(env), run_(std::move(run)) {}

  std::string_view rung() const override { return "step"; }
  const std::string& name() const override { return name_; }

  Result<Bytes> read_chunk(const WantedChunk& wanted) override {
    load(wanted.step);
    if (auto bytes = from_same_file(wanted)) return *std::move(bytes);
    return assemble_chunk(
        wanted, [&](const PieceInShard& piece, int64_t first, ByteSpan into) {
          return read_twin(wanted, piece, first, into);
        });
  }

  Result<Bytes> read_file(const StepParts& step, const ManifestFile& file) override {
    load(step);
    for (const StepParts& other : steps_) {
      for (const ManifestFile& same : other.manifest.files) {
        if (same.digest != file.digest || same.bytes != file.bytes) continue;
        Result<Bytes> bytes = env_.read_file(other.folder / same.name);
        if (bytes.ok() && std::ssize(*bytes) == file.bytes) return bytes;
      }
    }
    return not_found("no other step has a file with this digest");
  }

 private:
  // Reads the manifests and indexes of all other steps, once, and notes where pieces are.
  void load(const StepParts& step) {
    if (loaded_) return;
    loaded_ = true;
    const Result<std::vector<std::string>> names = env_.list(run_);
    if (names.ok()) {
      for (const std::string& name : *names) {
        if (!parse_step_name(name) || run_ / name == step.folder) continue;
        if (auto parts = read_parts(env_, run_ / name)) steps_.push_back(*parts);
      }
    }
    for (const StepParts& other : steps_) note_pieces(other);
    note_pieces(step);
  }

  void note_pieces(const StepParts& step) {
    for (const ShardIndex& index : step.indexes) {
      for (const StoredPiece& piece : index.pieces) {
        const PieceInShard there{&index.tensors[piece.tensor], &piece};
        if (!there.sealed()) continue;
        twins_[key_of(there)].push_back(
            {&step, &index.files[piece.file], piece.offset});
      }
    }
  }

  // The chunk in a file that another step has under any name, with the same digest.
  std::optional<Bytes> from_same_file(const WantedChunk& wanted) {
    const auto& files = wanted.step.manifest.files;
    const auto own =
        std::ranges::find(files, wanted.shard.name, &ManifestFile::name);
    if (own == files.end()) return std::nullopt;
    const ByteExtent place = place_of(wanted.shard, wanted.number);
    for (const StepParts& other : steps_) {
      for (const ManifestFile& same : other.manifest.files) {
        if (same.digest != own->digest || same.bytes != own->bytes) continue;
        const auto source = FileSource::open(env_, other.folder / same.name);
        if (!source.ok()) continue;
        Result<Bytes> bytes = (*source)->read_bytes(place.offset, place.bytes);
        if (bytes.ok() && has_stored_crc(wanted.shard, wanted.number, *bytes)) {
          return *std::move(bytes);
        }
      }
    }
    return std::nullopt;
  }

  Result<void> read_twin(const WantedChunk& wanted, const PieceInShard& piece,
                         int64_t first, ByteSpan into) {
    if (!piece.sealed()) return not_found("{} has no seal", piece.tensor->name);
    for (const Twin& twin : twins_[key_of(piece)]) {
      const bool itself = twin.step->folder == wanted.step.folder &&
                          twin.file->name == wanted.shard.name;
      if (itself) continue;
      // What is read is checked against the digests of the other file.
      const auto source = VerifiedSource::open(
          env_, twin.step->folder / twin.file->name, *twin.file);
      if (source.ok() && (*source)->read(twin.offset + first, into).ok()) return {};
    }
    return not_found("nothing else in the run has a whole {} with this seal",
                     piece.tensor->name);
  }

  Env& env_;
  const Path run_;
  const std::string name_ = "another step of the run";
  bool loaded_ = false;
  std::vector<StepParts> steps_;
  std::map<PieceKey, std::vector<Twin>> twins_;
};

}  // namespace

std::unique_ptr<CopySource> copies_in_run(Env& env, const Path& run) {
  return std::make_unique<RunCopies>(env, run);
}

}  // namespace holdfast
