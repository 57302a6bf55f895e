#include "holdfast/repair/step_parts.h"

#include <algorithm>

#include "holdfast/shard/step_name.h"
#include "holdfast/store/manifest.h"
#include "holdfast/store/step_check.h"

namespace holdfast {

const ShardFile* StepParts::find_shard(const std::string& name) const {
  for (const ShardIndex& index : indexes) {
    for (const ShardFile& file : index.files) {
      if (file.name == name) return &file;
    }
  }
  return nullptr;
}

std::vector<PieceInShard> pieces_in(const StepParts& step, const std::string& shard,
                                  int64_t offset, int64_t bytes) {
  std::vector<PieceInShard> pieces;
  for (const ShardIndex& index : step.indexes) {
    for (const StoredPiece& piece : index.pieces) {
      if (index.files[piece.file].name != shard) continue;
      const PieceInShard there{&index.tensors[piece.tensor], &piece};
      if (piece.offset < offset + bytes && piece.offset + there.bytes() > offset) {
        pieces.push_back(there);
      }
    }
  }
  std::ranges::stable_sort(
      pieces, {}, [](const PieceInShard& one) { return one.piece->offset; });
  const auto same = [](const PieceInShard& one, const PieceInShard& other) {
    return one.piece->offset == other.piece->offset;
  };
  pieces.erase(std::unique(pieces.begin(), pieces.end(), same), pieces.end());
  return pieces;
}

std::vector<std::string> tensors_in(const StepParts& step, const std::string& shard,
                                    int64_t offset, int64_t bytes) {
  std::vector<std::string> names;
  for (const PieceInShard& one : pieces_in(step, shard, offset, bytes)) {
    const bool known = std::ranges::count(names, one.tensor->name) > 0;
    if (!known) names.push_back(one.tensor->name);
  }
  return names;
}

std::optional<StepParts> read_parts(Env& env, const Path& folder) {
  Result<Manifest> manifest = read_manifest(env, folder);
  if (!manifest.ok()) return std::nullopt;
  StepParts parts{.folder = folder, .manifest = *std::move(manifest)};
  for (const ManifestFile& file : parts.manifest.files) {
    if (!is_index_name(file.name)) continue;
    const Result<Bytes> bytes = env.read_file(folder / file.name);
    if (!bytes.ok() || xxh3_digest(*bytes) != file.digest) continue;
    Result<ShardIndex> index = decode_shard_index(*bytes, file.name);
    if (index.ok()) parts.indexes.push_back(*std::move(index));
  }
  return parts;
}

}  // namespace holdfast
