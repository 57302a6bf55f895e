#include "holdfast/store/step_check.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "holdfast/base/crc32c.h"
#include "holdfast/env/patient_env.h"
#include "holdfast/env/source_sink.h"
#include "holdfast/shard/chunk_reader.h"
#include "holdfast/shard/shard_index.h"

namespace holdfast {
namespace {

// The pieces in one shard, to find those that have bytes in a chunk.
class PiecesOfShard {
 public:
  void add(const StoredPiece& piece, const Tensor& tensor) {
    const int64_t bytes = piece.box.elements() * bytes_of(tensor.dtype);
    places_.push_back({piece.offset, piece.offset + bytes, 0, &tensor.name});
  }

  void sort() {
    std::ranges::sort(places_, {}, &Place::begin);
    int64_t reach = 0;
    for (Place& place : places_) {
      reach = std::max(reach, place.end);
      place.reach = reach;
    }
  }

  // Calls `visit` with the names of the tensors, until it returns false. Pieces do not
  // overlap unless somebody has forged the index, so few others are looked at.
  template <typename Visit>
  void for_each_in(const Chunk& chunk, Visit&& visit) const {
    auto at = std::ranges::lower_bound(places_, chunk.offset + chunk.bytes, {},
                                       &Place::begin);
    while (at != places_.begin() && std::prev(at)->reach > chunk.offset) {
      --at;
      if (!visit(at->end > chunk.offset ? at->tensor : nullptr)) return;
    }
  }

 private:
  struct Place {
    int64_t begin = 0, end = 0;
    int64_t reach = 0;  // the greatest end of this place and those before it
    const std::string* tensor = nullptr;
  };
  std::vector<Place> places_;
};

// How many pieces are looked at to name the tensors of damaged chunks. A step has fewer,
// unless its index is forged: then the time would be the square of its size.
constexpr int64_t kMostNamed = 4'000'000;

class Checker {
 public:
  Checker(Env& env, const Path& folder, Depth depth, const Progress& progress)
      : env_(env), folder_(folder), depth_(depth), progress_(progress) {}

  Result<StepReport> run() {
    const std::vector<std::string> names = HOLDFAST_TRY(env_.list(folder_));
    names_.insert(names.begin(), names.end());
    Result<Manifest> manifest = read_manifest(env_, folder_);
    if (!manifest.ok()) {
      add_failed({.file = std::string(kManifestName)}, manifest.error());
    } else {
      report_.manifest = *std::move(manifest);
      check_files();
      find_extra();
      if (depth_ == Depth::kFull) check_shards();
    }
    if (unknown_.has_value()) return *unknown_;
    // If retention has removed the step meanwhile, the step is not damaged, and listing
    // its folder fails.
    if (!report_.whole()) HOLDFAST_TRY(env_.list(folder_));
    return std::move(report_);
  }

 private:
  void add(Damage damage) { report_.damage.push_back(std::move(damage)); }

  // Records that a file could not be read.
  void add_failed(Damage damage, const Error& error) {
    if (cannot_tell(error) && !unknown_.has_value()) unknown_ = error;
    damage.what = error.message();
    add(std::move(damage));
  }

  void check_files() {
    for (const ManifestFile& file : report_.manifest->files) {
      manifest_files_.emplace(file.name, &file);
    }
    for (const ManifestFile& file : report_.manifest->files) {
      if (!has_its_size(file)) continue;
      // The digest has one of two known forms: this was checked when the manifest was
      // read.
      if (*parse_file_digest(file.digest) == DigestKind::kXxh3) {
        check_small(file);
      } else {
        shards_.push_back(&file);
        total_ += file.bytes;
      }
    }
  }

  bool has_its_size(const ManifestFile& file) {
    if (!names_.contains(file.name)) {
      add({.file = file.name, .bytes = file.bytes, .what = "is missing"});
      return false;
    }
    const Result<FileInfo> info = env_.info(folder_ / file.name);
    if (!info.ok()) {
      add_failed({.file = file.name, .bytes = file.bytes}, info.error());
      return false;
    }
    if (info->folder) {
      add({.file = file.name, .bytes = file.bytes, .what = "is a folder"});
      return false;
    }
    if (info->size == file.bytes) return true;
    const bool cut = info->size < file.bytes;
    add({.file = file.name,
         .offset = std::min(info->size, file.bytes),
         .bytes = cut ? file.bytes - info->size : info->size - file.bytes,
         .what = fmt::format("is {}: {} bytes; expected {}",
                             cut ? "cut short" : "too long", info->size, file.bytes)});
    return false;
  }

  void check_small(const ManifestFile& file) {
    const Result<Bytes> bytes = env_.read_file(folder_ / file.name);
    if (!bytes.ok()) {
      add_failed({.file = file.name, .bytes = file.bytes}, bytes.error());
      return;
    }
    report_.bytes_read += static_cast<int64_t>(bytes->size());
    const std::string digest = xxh3_digest(*bytes);
    if (digest != file.digest) {
      add({.file = file.name,
           .bytes = file.bytes,
           .what = fmt::format("has {}; expected {}", digest, file.digest)});
    } else if (depth_ == Depth::kFull && is_index_name(file.name)) {
      read_index(file, *bytes);
    }
  }

  void read_index(const ManifestFile& file, ByteView bytes) {
    Result<ShardIndex> index = decode_shard_index(bytes, file.name);
    if (!index.ok()) {
      add({.file = file.name, .bytes = file.bytes, .what = index.error().message()});
      return;
    }
    for (const ShardFile& shard : index->files) {
      const std::string digest = crc_digest(combined_crc(shard));
      const auto named = manifest_files_.find(shard.name);
      if (named != manifest_files_.end() && named->second->bytes == shard.bytes &&
          named->second->digest == digest) {
        continue;
      }
      add({.file = file.name,
           .bytes = file.bytes,
           .what = fmt::format("describes {} with {} bytes and {}, which the manifest "
                               "does not name",
                               shard.name, shard.bytes, digest)});
      return;
    }
    indexes_.push_back(*std::move(index));
  }

  void find_extra() {
    std::set<std::string> known = {std::string(kManifestName)};
    for (const ManifestFile& file : report_.manifest->files) known.insert(file.name);
    std::set_difference(names_.begin(), names_.end(), known.begin(), known.end(),
                        std::back_inserter(report_.extra));
  }

  void index_pieces() {
    for (const ShardIndex& index : indexes_) {
      for (const ShardFile& shard : index.files) shard_files_.emplace(shard.name, &shard);
      for (const StoredPiece& piece : index.pieces) {
        pieces_[index.files[piece.file].name].add(piece, index.tensors[piece.tensor]);
      }
    }
    for (auto& [shard, pieces] : pieces_) pieces.sort();
  }

  void check_shards() {
    index_pieces();
    for (const ManifestFile* file : shards_) {
      check_shard(*file);
      done_ += file->bytes;
      report_.bytes_read += file->bytes;
    }
  }

  void check_shard(const ManifestFile& file) {
    const auto shard = shard_files_.find(file.name);
    const Result<void> read = shard == shard_files_.end()
                                  ? check_without_index(file)
                                  : check_chunks(*shard->second);
    if (read.ok()) return;
    add_failed({.file = file.name, .bytes = file.bytes}, read.error());
  }

  Result<void> check_chunks(const ShardFile& shard) {
    return read_all_chunks(env_, folder_ / shard.name, shard,
                           [&](const FoundChunk& found) -> Result<void> {
                             const Chunk& chunk = shard.chunks[found.number];
                             if (found.crc != chunk.crc) add(damage_of(shard, found));
                             const ByteExtent place = place_of(shard, found.number);
                             tell_progress(place.offset + place.bytes);
                             return {};
                           });
  }

  // Checks the digest of the whole file. Used if no index of the shard could be read,
  // so that the chunks are not known.
  Result<void> check_without_index(const ManifestFile& file) {
    const auto source = HOLDFAST_TRY(FileSource::open(env_, folder_ / file.name));
    int64_t at = 0;
    const Crc32c crc =
        HOLDFAST_TRY(crc32c_of(*source, 0, file.bytes,
                               [&](int64_t bytes) { tell_progress(at += bytes); }));
    if (crc_digest(crc) == file.digest) return {};
    return corrupt("has {}; expected {}", crc_digest(crc), file.digest);
  }

  void tell_progress(int64_t done) {
    if (progress_) progress_(done_ + done, total_);
  }

  Damage damage_of(const ShardFile& shard, const FoundChunk& found) {
    const Chunk& chunk = shard.chunks[found.number];
    return {
        .file = shard.name,
        .tensors = tensors_in(shard.name, chunk),
        .chunk = static_cast<int64_t>(found.number),
        .offset = place_of(shard, found.number).offset,
        .bytes = place_of(shard, found.number).bytes,
        .what = fmt::format("has crc {:08x}; expected {:08x}", found.crc, chunk.crc)};
  }

  std::vector<std::string> tensors_in(const std::string& file, const Chunk& chunk) {
    std::set<std::string> names;
    const auto pieces = pieces_.find(file);
    if (pieces == pieces_.end()) return {};
    pieces->second.for_each_in(chunk, [&](const std::string* name) {
      if (name != nullptr) names.insert(*name);
      return --naming_left_ > 0;
    });
    return {names.begin(), names.end()};
  }

  Env& env_;
  const Path& folder_;
  const Depth depth_;
  const Progress& progress_;
  std::set<std::string> names_;
  // The shards that are there with the right size.
  std::vector<const ManifestFile*> shards_;
  std::vector<ShardIndex> indexes_;
  // By name. The first of equal names counts.
  std::map<std::string_view, const ManifestFile*> manifest_files_;
  std::map<std::string_view, const ShardFile*> shard_files_;
  std::map<std::string_view, PiecesOfShard> pieces_;
  int64_t naming_left_ = kMostNamed;
  int64_t done_ = 0, total_ = 0;
  // The first failure that does not tell whether the step is whole.
  std::optional<Error> unknown_;
  StepReport report_;
};

}  // namespace

Error StepReport::error() const {
  HOLDFAST_CHECK(!whole(), "error of a whole step");
  return corrupt("{} of its files or chunks are damaged; {}", damage.size(),
                 to_string(damage.front()));
}

bool cannot_tell(const Error& error) {
  switch (error.code()) {
    case ErrorCode::kUnavailable:
    case ErrorCode::kTimeout:
    case ErrorCode::kDenied: return true;
    default: return false;
  }
}

Result<StepReport> check_step(Env& env, const Path& folder, Depth depth,
                              const Progress& progress) {
  PatientEnv patient(env);
  return Checker(patient, folder, depth, progress).run();
}

Result<Manifest> read_manifest(Env& env, const Path& folder) {
  const Path path = folder / kManifestName;
  const Result<Bytes> bytes = PatientEnv(env).read_file(path);
  if (bytes.ok()) return decode_manifest(*bytes, path.native());
  // kInvalid means that the path is a folder or that the file is too large.
  const bool odd = bytes.error().code() == ErrorCode::kInvalid;
  return odd ? bytes.error().as(ErrorCode::kCorrupt) : bytes.error();
}

}  // namespace holdfast
