#include "holdfast/checkpoint/reuse.h"

#include <fmt/format.h>

#include "holdfast/store/step_name.h"

namespace holdfast {

ReusableStep::ReusableStep(const Path& folder, uint64_t attempt,
                           const ShardIndex& index)
    : name_(folder.filename().native()) {
  for (size_t f = 0; f < index.files.size(); ++f) {
    ReusableFile& reusable = files_.emplace_back(
        ReusableFile{.path = folder / index.files[f].name, .file = index.files[f]});
    // Only its own shard has no origin in its name yet.
    if (f > 0) continue;
    reusable.file.name =
        fmt::format("{}.{}.{}", name_, hex64(attempt), reusable.file.name);
  }
  for (const StoredPiece& piece : index.pieces) {
    if (!piece.xxh3.has_value()) continue;
    pieces_.emplace(std::pair(index.tensors[piece.tensor].name, piece.box),
                    ReusablePiece{.file = piece.file,
                                  .offset = piece.offset,
                                  .seal = piece.seal,
                                  .digest = *piece.xxh3});
  }
}

const ReusablePiece* ReusableStep::find(const std::string& tensor, const Box& box,
                                        const Digest128& digest) const {
  const auto found = pieces_.find({tensor, box});
  if (found == pieces_.end() || found->second.digest != digest) return nullptr;
  return &found->second;
}

}  // namespace holdfast
