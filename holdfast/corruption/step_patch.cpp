#include "holdfast/corruption/step_patch.h"

#include <algorithm>
#include <map>
#include <set>

#include "holdfast/base/crc32c.h"
#include "holdfast/contents/file_edit.h"
#include "holdfast/shard/chunk_reader.h"
#include "holdfast/shard/parity.h"
#include "holdfast/shard/shard_index.h"
#include "holdfast/shard/step_name.h"
#include "holdfast/shard/zstd.h"
#include "holdfast/state/element.h"
#include "holdfast/store/step_check.h"

namespace holdfast {
namespace {

// Of a compressed shard. A patch holds these bytes several times in memory.
constexpr int64_t kMostWrittenAgain = int64_t{1} << 30;

constexpr int kPatchLevel = 1;  // of zstd, for chunks that are compressed anew

size_t as_size(int64_t n) { return static_cast<size_t>(n); }

struct NamedIndex {
  std::string name;
  ShardIndex index;
};

bool has_name(const Tensor& tensor, const std::string& name) {
  return tensor.name == name || std::ranges::count(tensor.aliases, name) > 0;
}

// A shard whose contents are edited. Of a compressed shard, the chunks that change are
// kept in memory.
class ShardEdit {
 public:
  ShardEdit(FileEdit& edit, ShardFile file) : edit_(edit), file_(std::move(file)) {}

  const ShardFile& file() const { return file_; }
  bool compressed() const { return !file_.packed.empty(); }

  // Bytes of the contents, with all changes so far. They may cross chunks.
  Result<Bytes> read(int64_t offset, int64_t count) {
    Bytes bytes;
    HOLDFAST_TRY(for_each_part(offset, count, [&](size_t c, int64_t at, int64_t n) {
      return append(bytes, c, at, n);
    }));
    return bytes;
  }

  Result<void> flip(int64_t offset, ByteView mask) {
    return for_each_part(
        offset, std::ssize(mask), [&](size_t c, int64_t at, int64_t n) {
          const int64_t from = file_.chunks[c].offset + at - offset;
          return flip_in(c, at, mask.subspan(as_size(from), as_size(n)));
        });
  }

  // Compresses the chunks that have changed, and writes them and what follows again: a
  // chunk that is compressed anew seldom has its old size.
  Result<void> finish() {
    if (unpacked_.empty()) return {};
    const size_t first = unpacked_.begin()->first;
    const int64_t begin = place_of(file_, first).offset;
    if (file_.bytes - begin > kMostWrittenAgain) {
      return unsupported(
          "{}: {} bytes behind the change must be written again; expected at most {}, "
          "or "
          "a checkpoint that is not compressed",
          file_.name, file_.bytes - begin, kMostWrittenAgain);
    }
    Bytes tail;
    for (size_t c = first; c < file_.chunks.size(); ++c) {
      HOLDFAST_TRY(append_packed(tail, c));
    }
    HOLDFAST_TRY(edit_.write_tail(begin, tail));
    int64_t offset = 0;
    for (CompressedChunk& chunk : file_.packed) {
      chunk.offset = offset;
      offset += chunk.bytes;
    }
    file_.bytes = offset;
    return {};
  }

 private:
  // Calls visit(chunk, offset in the chunk, bytes) for each chunk of a range.
  template <typename Visit>
  Result<void> for_each_part(int64_t offset, int64_t count, Visit&& visit) {
    const ChunkRange range = chunks_of(file_, offset, offset + count);
    for (size_t c = range.first; c < range.last; ++c) {
      const Chunk& chunk = file_.chunks[c];
      const int64_t lo = std::max(offset, chunk.offset);
      const int64_t hi = std::min(offset + count, chunk.offset + chunk.bytes);
      HOLDFAST_TRY(visit(c, lo - chunk.offset, hi - lo));
    }
    return {};
  }

  Result<void> append(Bytes& bytes, size_t c, int64_t at, int64_t count) {
    if (!compressed()) {
      const Bytes part =
          HOLDFAST_TRY(edit_.read_bytes(file_.chunks[c].offset + at, count));
      bytes.insert(bytes.end(), part.begin(), part.end());
      return {};
    }
    const Bytes& chunk = *HOLDFAST_TRY(unpack(c));
    bytes.insert(bytes.end(), chunk.begin() + at, chunk.begin() + at + count);
    return {};
  }

  Result<void> flip_in(size_t c, int64_t at, ByteView mask) {
    Chunk& chunk = file_.chunks[c];
    const int64_t after = chunk.bytes - at - std::ssize(mask);
    chunk.crc ^= crc32c_change(mask, static_cast<uint64_t>(after));
    if (!compressed()) return edit_.flip(chunk.offset + at, mask);
    Bytes& bytes = *HOLDFAST_TRY(unpack(c));
    for (size_t i = 0; i < mask.size(); ++i) bytes[as_size(at) + i] ^= mask[i];
    return {};
  }

  Result<Bytes*> unpack(size_t c) {
    auto found = unpacked_.find(c);
    if (found == unpacked_.end()) {
      const ByteExtent place = place_of(file_, c);
      const Bytes stored = HOLDFAST_TRY(edit_.read_bytes(place.offset, place.bytes));
      Bytes memory;
      const ByteView chunk = HOLDFAST_TRY(open_chunk(file_, c, stored, memory));
      found = unpacked_.emplace(c, copy_of(chunk)).first;
    }
    return &found->second;
  }

  Result<void> append_packed(Bytes& tail, size_t c) {
    CompressedChunk& packed = file_.packed[c];
    const auto changed = unpacked_.find(c);
    if (changed == unpacked_.end()) {
      const Bytes stored = HOLDFAST_TRY(edit_.read_bytes(packed.offset, packed.bytes));
      tail.insert(tail.end(), stored.begin(), stored.end());
      return {};
    }
    const Compressed made =
        HOLDFAST_TRY(compress(changed->second, std::max(packed.width, 1), kPatchLevel));
    packed.bytes = std::ssize(made.bytes);
    packed.width = made.width;
    packed.crc = crc32c(made.bytes);
    tail.insert(tail.end(), made.bytes.begin(), made.bytes.end());
    return {};
  }

  FileEdit& edit_;
  ShardFile file_;
  std::map<size_t, Bytes> unpacked_;  // by the number of the chunk
};

class StepPatcher {
 public:
  StepPatcher(Env& env, const Path& folder, const StepPatchOptions& options)
      : env_(env), folder_(folder), options_(options), plan_(env, folder / "") {}

  Result<void> open() {
    manifest_ = HOLDFAST_TRY(read_manifest(env_, folder_));
    for (const ManifestFile& file : manifest_.files) {
      if (!is_index_name(file.name)) continue;
      const Path path = folder_ / file.name;
      const Bytes bytes = HOLDFAST_TRY(env_.read_file(path));
      if (xxh3_digest(bytes) != file.digest) {
        return corrupt("{}: has digest {}; expected {}", path.native(),
                       xxh3_digest(bytes), file.digest);
      }
      indexes_.push_back(
          {file.name, HOLDFAST_TRY(decode_shard_index(bytes, path.native()))});
    }
    return {};
  }

  Result<void> add(const Flip& flip) {
    done_.clear();
    bool named = false;
    for (NamedIndex& one : indexes_) {
      for (StoredPiece& piece : one.index.pieces) {
        const Tensor& tensor = one.index.tensors[piece.tensor];
        if (!has_name(tensor, flip.tensor)) continue;
        named = true;
        HOLDFAST_TRY(check(flip, tensor));
        const auto place = place_in_box(tensor.shape, piece.box, flip.element);
        if (place) HOLDFAST_TRY(flip_piece(one, piece, *place, flip));
      }
    }
    if (!done_.empty()) return {};
    return named
               ? not_found("{}: no file has the element {}", flip.tensor, flip.element)
               : not_found("{}: there is no tensor of this name", flip.tensor);
  }

  Result<Patch> finish() && {
    for (auto& [name, shard] : shards_) HOLDFAST_TRY(shard->finish());
    if (options_.checksums == Checksums::kConsistent) HOLDFAST_TRY(write_digests());
    return std::move(plan_).finish();
  }

 private:
  static Result<void> check(const Flip& flip, const Tensor& tensor) {
    if (flip.element < 0 || flip.element >= tensor.shape.elements()) {
      return invalid("{}: has no element {}; expected one of {}", flip.tensor,
                     flip.element, tensor.shape.elements());
    }
    const auto beyond = ByteView(flip.mask).subspan(as_size(bytes_of(tensor.dtype)));
    const auto zero = [](std::byte b) { return b == std::byte{0}; };
    if (std::ranges::all_of(beyond, zero)) return {};
    return invalid("{}: the mask is longer than an element; expected {} bytes for {}",
                   flip.tensor, bytes_of(tensor.dtype), name_of(tensor.dtype));
  }

  Result<ShardEdit*> shard_of(const ShardFile& file) {
    auto found = shards_.find(file.name);
    if (found == shards_.end()) {
      FileEdit& edit = *HOLDFAST_TRY(plan_.edit(folder_ / file.name));
      found = shards_.emplace(file.name, std::make_unique<ShardEdit>(edit, file)).first;
    }
    ShardEdit* shard = found->second.get();
    if (shard->compressed() && options_.checksums == Checksums::kRaw) {
      return unsupported(
          "{}: is compressed, so no bit of it stands for a bit of a tensor; expected "
          "consistent checksums, or flips anywhere in the file",
          (folder_ / file.name).native());
    }
    return shard;
  }

  Result<void> flip_piece(NamedIndex& one, StoredPiece& piece, int64_t place,
                          const Flip& flip) {
    const Tensor& tensor = one.index.tensors[piece.tensor];
    const int64_t size = bytes_of(tensor.dtype);
    const ShardFile& file = one.index.files[piece.file];
    const int64_t offset = piece.offset + place * size;
    const bool first = done_.insert({file.name, offset}).second;
    ShardEdit& shard = *HOLDFAST_TRY(shard_of(file));
    const ByteView mask = ByteView(flip.mask).first(as_size(size));
    if (first) HOLDFAST_TRY(shard.flip(offset, mask));
    if (options_.seals) {
      HOLDFAST_TRY(
          reseal(piece, tensor, flip, HOLDFAST_TRY(shard.read(offset, size)), mask));
    }
    if (piece.xxh3) changed_.insert({&one, &piece});
    return {};
  }

  static Result<void> reseal(StoredPiece& piece, const Tensor& tensor, const Flip& flip,
                             const Bytes& after, ByteView mask) {
    if (piece.seal == Seal()) {
      return invalid(
          "{}: was not sealed, so its seal cannot change; expected raw or "
          "consistent checksums",
          tensor.name);
    }
    Bytes before = after;
    for (size_t i = 0; i < mask.size(); ++i) before[i] ^= mask[i];
    const auto at = static_cast<uint64_t>(flip.element * bytes_of(tensor.dtype));
    const Seal old = seal_bytes(before, at), now = seal_bytes(after, at);
    for (size_t j = 0; j < now.lanes.size(); ++j) {
      piece.seal.lanes[j] += now.lanes[j] - old.lanes[j];
    }
    return {};
  }

  // Puts the digests of all shards that have changed into the indexes and the manifest.
  Result<void> write_digests() {
    for (const auto& [one, piece] : changed_) {
      const ShardFile& file = one->index.files[piece->file];
      const int64_t bytes =
          piece->box.elements() * bytes_of(one->index.tensors[piece->tensor].dtype);
      piece->xxh3 =
          xxh3_128(HOLDFAST_TRY(shards_.at(file.name)->read(piece->offset, bytes)));
    }
    for (NamedIndex& one : indexes_) HOLDFAST_TRY(write_index(one));
    for (const auto& [name, shard] : shards_) {
      set_digest(name, shard->file().bytes, crc_digest(combined_crc(shard->file())));
      HOLDFAST_TRY(write_parity(name));
    }
    FileEdit& edit = *HOLDFAST_TRY(plan_.edit(folder_ / kManifestName));
    return edit.write_tail(0, encode_manifest(manifest_));
  }

  // Parity of the old bytes would bring them back. A parity file that is damaged stays as
  // it is, as its digest shows that.
  Result<void> write_parity(const std::string& shard) {
    const std::string name = parity_name(shard);
    if (std::ranges::count(manifest_.files, name, &ManifestFile::name) == 0) return {};
    Result<std::unique_ptr<FileSource>> file = FileSource::open(env_, folder_ / name);
    if (!file.ok()) return {};
    const Result<ParityReader> old = ParityReader::open(*std::move(file));
    if (!old.ok()) return {};
    const FileEdit& changed = *HOLDFAST_TRY(plan_.edit(folder_ / shard));
    ParityShape shape = old->shape();
    shape.file_bytes = changed.size();
    const Bytes parity = HOLDFAST_TRY(encode_parity(changed, shape));
    set_digest(name, std::ssize(parity), crc_digest(crc32c(parity)));
    FileEdit& edit = *HOLDFAST_TRY(plan_.edit(folder_ / name));
    return edit.write_tail(0, parity);
  }

  Result<void> write_index(NamedIndex& one) {
    for (ShardFile& file : one.index.files) {
      const auto changed = shards_.find(file.name);
      if (changed != shards_.end()) file = changed->second->file();
    }
    const Bytes bytes = encode_shard_index(one.index);
    set_digest(one.name, std::ssize(bytes), xxh3_digest(bytes));
    FileEdit& edit = *HOLDFAST_TRY(plan_.edit(folder_ / one.name));
    return edit.write_tail(0, bytes);
  }

  void set_digest(const std::string& name, int64_t bytes, std::string digest) {
    for (ManifestFile& file : manifest_.files) {
      if (file.name != name) continue;
      file.bytes = bytes;
      file.digest = std::move(digest);
      return;
    }
  }

  Env& env_;
  const Path& folder_;
  const StepPatchOptions options_;
  PatchPlan plan_;
  Manifest manifest_;
  std::vector<NamedIndex> indexes_;
  std::map<std::string, std::unique_ptr<ShardEdit>> shards_;
  // The places of the flip that is being added. Two indexes may name the same place.
  std::set<std::pair<std::string, int64_t>> done_;
  // Pieces whose XXH3 must be computed anew.
  std::set<std::pair<NamedIndex*, StoredPiece*>> changed_;
};

}  // namespace

Result<Patch> plan_step_patch(Env& env, const Path& folder, std::span<const Flip> flips,
                              const StepPatchOptions& options) {
  HOLDFAST_CHECK(!options.seals || options.checksums == Checksums::kConsistent,
                 "seals of raw flips");
  StepPatcher patcher(env, folder, options);
  HOLDFAST_TRY(patcher.open());
  for (const Flip& flip : flips) HOLDFAST_TRY(patcher.add(flip));
  return std::move(patcher).finish();
}

}  // namespace holdfast
