#include "holdfast/checkpoint/step_files.h"

#include <algorithm>
#include <unordered_map>

#include "holdfast/checkpoint/verified_source.h"
#include "holdfast/checkpoint/write_plan.h"
#include "holdfast/state/object_json.h"
#include "holdfast/store/step_check.h"

namespace holdfast {
namespace {

Result<Bytes> read_checked(Env& env, const Path& folder, const ManifestFile& file) {
  const Path path = folder / file.name;
  Bytes bytes = HOLDFAST_TRY(env.read_file(path));
  if (xxh3_digest(bytes) == file.digest) return bytes;
  return corrupt("{}: has digest {}; expected {}", path.native(), xxh3_digest(bytes),
                 file.digest);
}

const ManifestFile* find_file(const Manifest& manifest, std::string_view name) {
  for (const ManifestFile& file : manifest.files) {
    if (file.name == name) return &file;
  }
  return nullptr;
}

// Merges the indexes of all ranks into one collection.
class Merger {
 public:
  explicit Merger(const Path& folder) : folder_(folder) {}

  Result<void> add(const ShardIndex& index) {
    const auto first_file = static_cast<uint32_t>(files_.size());
    for (const ShardFile& file : index.files) files_.push_back(file);
    piece_seals_.resize(files_.size());
    for (const StoredPiece& piece : index.pieces) {
      const TensorId tensor = HOLDFAST_TRY(number_of(index.tensors[piece.tensor]));
      pieces_.push_back({tensor, piece.box, first_file + piece.file, piece.offset});
      seals_[tensor] += piece.seal;
      if (piece.seal.bytes > 0) {
        piece_seals_[first_file + piece.file][piece.offset] = piece.seal;
      }
    }
    // A tensor without elements has no pieces, but it is a tensor of the step too.
    for (const Tensor& tensor : index.tensors) HOLDFAST_TRY(number_of(tensor));
    return {};
  }

  Result<StepFiles> finish(Manifest manifest) && {
    std::vector<Holder> holders;
    for (const ShardFile& file : files_) {
      holders.push_back({.name = file.name, .kind = HolderKind::kFile});
    }
    LayoutBuilder builder(tensors_, std::move(holders));
    for (const Piece& piece : pieces_) {
      builder.add(piece.tensor, piece.box, piece.file, piece.offset);
    }
    Result<Layout> layout = std::move(builder).build();
    if (!layout.ok()) return damaged(layout.error());
    Result<Collection> made =
        Collection::create(std::move(tensors_), *std::move(layout));
    if (!made.ok()) return damaged(made.error());
    if (Result<void> covered = made->check_covered(); !covered.ok()) {
      return damaged(covered.error());
    }
    return StepFiles{.folder = folder_,
                     .manifest = std::move(manifest),
                     .collection = *std::move(made),
                     .files = std::move(files_),
                     .seals = std::move(seals_),
                     .piece_seals = std::move(piece_seals_)};
  }

 private:
  struct Piece {
    TensorId tensor;
    Box box;
    uint32_t file;
    int64_t offset;
  };

  Error damaged(const Error& error) const {
    return error.within(folder_.native()).as(ErrorCode::kCorrupt);
  }

  Result<TensorId> number_of(const Tensor& tensor) {
    const auto [entry, added] =
        numbers_.emplace(tensor.name, static_cast<TensorId>(tensors_.size()));
    if (added) {
      tensors_.push_back(tensor);
      seals_.emplace_back();
    } else if (tensors_[entry->second] != tensor) {
      return corrupt("{}: two shards disagree on tensor \"{}\"", folder_.native(),
                     tensor.name);
    }
    return entry->second;
  }

  const Path folder_;
  std::vector<ShardFile> files_;
  std::vector<Tensor> tensors_;
  std::vector<Seal> seals_;
  std::vector<std::unordered_map<int64_t, Seal>> piece_seals_;
  std::vector<Piece> pieces_;
  std::unordered_map<std::string, TensorId> numbers_;
};

}  // namespace

Result<StepFiles> open_step(Env& env, const Path& folder) {
  Manifest manifest = HOLDFAST_TRY(read_manifest(env, folder));
  Merger merger(folder);
  for (const ManifestFile& file : manifest.files) {
    if (!is_index_name(file.name)) continue;
    const Bytes bytes = HOLDFAST_TRY(read_checked(env, folder, file));
    HOLDFAST_TRY(merger.add(
        HOLDFAST_TRY(decode_shard_index(bytes, (folder / file.name).native()))));
  }
  return std::move(merger).finish(std::move(manifest));
}

Result<Object> read_objects(Env& env, const StepFiles& step, std::optional<int> rank) {
  const std::string name = objects_name(rank);
  const ManifestFile* file = find_file(step.manifest, name);
  if (file == nullptr) return Object();
  const Bytes bytes = HOLDFAST_TRY(read_checked(env, step.folder, *file));
  return decode_object(bytes, (step.folder / name).native());
}

Result<Contents> open_step_contents(Env& env, const Path& folder) {
  StepFiles step = HOLDFAST_TRY(open_step(env, folder));
  Object objects = HOLDFAST_TRY(read_objects(env, step));
  std::vector<std::shared_ptr<const Source>> sources;
  for (ShardFile& file : step.files) {
    const Path path = folder / file.name;
    sources.push_back(HOLDFAST_TRY(VerifiedSource::open(env, path, std::move(file))));
  }
  return Contents{.collection = std::move(step.collection),
                  .sources = std::move(sources),
                  .objects = std::move(objects),
                  .metadata = {}};
}

}  // namespace holdfast
