#include "holdfast/repair/step_repair.h"

#include <algorithm>

#include "holdfast/base/checked.h"
#include "holdfast/base/crc32c.h"
#include "holdfast/env/patient_env.h"
#include "holdfast/env/source_sink.h"
#include "holdfast/repair/bit_search.h"
#include "holdfast/repair/digest_rungs.h"
#include "holdfast/shard/chunk_reader.h"
#include "holdfast/shard/step_name.h"
#include "holdfast/store/manifest.h"
#include "holdfast/store/step_check.h"

namespace holdfast {
namespace {

constexpr int kRereads = 2;

// Whether the stored bytes are those of the chunk.
bool fits(const ShardFile& shard, size_t number, ByteView stored) {
  if (std::ssize(stored) != place_of(shard, number).bytes) return false;
  Bytes unpacked;
  const Result<ByteView> chunk = open_chunk(shard, number, stored, unpacked);
  return chunk.ok() && crc32c(*chunk) == shard.chunks[number].crc;
}

// Whether the bytes are those of a file that is no shard, or of a parity file.
bool fits(const ManifestFile& file, ByteView bytes) {
  if (std::ssize(bytes) != file.bytes) return false;
  return file.digest == xxh3_digest(bytes) || file.digest == crc_digest(crc32c(bytes));
}

// All bytes of a file, read past the system's cache where the file system can.
Result<Bytes> read_past_cache(Env& env, const Path& path) {
  const auto file = env.open(path, {.direct = true});
  if (!file.ok()) return env.read_file(path);
  const int64_t size = HOLDFAST_TRY((*file)->size());
  AlignedBytes memory(
      static_cast<size_t>(divide_up(size, kDirectAlignment) * kDirectAlignment));
  const Result<size_t> count = (*file)->read_at(0, memory.span());
  if (!count.ok()) return env.read_file(path);
  return copy_of(memory.span().first(*count));
}

MakeBytes keep(Bytes bytes) {
  return [bytes = std::move(bytes)]() -> Result<Bytes> { return bytes; };
}

class Ladder {
 public:
  Ladder(Env& env, const Path& folder, CopySources sources, const Progress& progress)
      : env_(env),
        sources_(sources),
        progress_(progress),
        step_(std::make_shared<StepParts>()) {
    step_->folder = folder;
  }

  Result<StepRepair> run() {
    HOLDFAST_TRY(env_.list(step_->folder));
    repair_.step = step_;
    if (!mend_manifest()) return std::move(repair_);
    std::vector<const ManifestFile*> shards, parities;
    for (const ManifestFile& file : step_->manifest.files) {
      if (*parse_file_digest(file.digest) == DigestKind::kXxh3) {
        mend_small(file);
      } else {
        (shard_of_parity(file.name) ? parities : shards).push_back(&file);
        total_ += file.bytes;
      }
    }
    for (const ManifestFile* file : shards) HOLDFAST_TRY(mend_shard(*file));
    for (const ManifestFile* file : parities) mend_parity(*file);
    return std::move(repair_);
  }

 private:
  Path path_of(const std::string& file) const { return step_->folder / file; }

  void add_mended(Damage damage, std::string rung, std::string what) {
    repair_.mended.push_back({std::move(damage), std::move(rung), std::move(what)});
  }
  void add_lost(Damage damage, std::vector<LostPart::Said> said) {
    repair_.lost.push_back({std::move(damage), std::move(said)});
  }

  // Returns whether the manifest is known now.
  bool mend_manifest() {
    const std::string name(kManifestName);
    const Path path = path_of(name);
    std::vector<LostPart::Said> said;
    const auto accept = [&](ByteView bytes) {
      Result<Manifest> manifest = decode_manifest(bytes, name);
      const auto step = parse_step_name(step_->folder.filename().native());
      if (!manifest.ok() || (step && step->step != manifest->step)) return false;
      step_->manifest = *std::move(manifest);
      return true;
    };
    const Result<Bytes> first = PatientEnv(env_).read_file(path);
    if (first.ok() && accept(*first)) return true;
    const Result<Manifest> why =
        first.ok() ? decode_manifest(*first, name) : Result<Manifest>(first.error());
    Damage damage{.file = name,
                  .what = why.ok() ? "is that of another step" : why.error().message()};
    const Result<Bytes> again = read_past_cache(env_, path);
    if (again.ok() && accept(*again)) {
      add_mended(damage, "reread", "is right when it is read again");
      return true;
    }
    said.push_back({"reread", "is the same"});
    if (again.ok()) {
      Result<FoundBit> found = find_flipped_bit(*again, accept);
      if (found.ok()) {
        add_found_bit(damage, *std::move(found));
        return true;
      }
      said.push_back({"digest", found.error().message()});
    }
    for (const auto& source : sources_) {
      Result<Bytes> bytes = source->read_manifest(step_->folder);
      if (bytes.ok() && accept(*bytes) && has_our_indexes()) {
        add_mended(damage, std::string(source->rung()), "from " + source->name());
        repair_.files.push_back({.file = name, .whole = keep(*std::move(bytes))});
        return true;
      }
      said.push_back({source->name(), bytes.ok() ? "has the manifest of another save"
                                                 : bytes.error().message()});
    }
    add_lost(damage, std::move(said));
    return false;
  }

  // Whether the folder has an index that the manifest names, and none that is whole and
  // different. A manifest from elsewhere is used only then: the step may have been saved
  // several times, and by the manifest of another save all that is good here would look
  // damaged. An index has the digests of its tensors, so it tells the saves apart. Objects
  // do not: they are often the same again.
  bool has_our_indexes() const {
    bool found = false;
    for (const ManifestFile& file : step_->manifest.files) {
      if (!is_index_name(file.name)) continue;
      const Result<Bytes> bytes = env_.read_file(path_of(file.name));
      if (!bytes.ok()) continue;
      if (fits(file, *bytes)) {
        found = true;
      } else if (decode_shard_index(*bytes, file.name).ok()) {
        return false;
      }
    }
    return found;
  }

  void add_found_bit(const Damage& damage, FoundBit found) {
    add_mended(damage, "digest",
               fmt::format("byte {} bit {}, by its digest", found.offset, found.bit));
    repair_.files.push_back({.file = damage.file, .whole = keep(std::move(found.bytes))});
  }

  // A file that is read as a whole: an index, or objects.
  void mend_small(const ManifestFile& file) {
    Result<Bytes> bytes = PatientEnv(env_).read_file(path_of(file.name));
    if (bytes.ok() && fits(file, *bytes)) return use_index(file, *bytes);
    const Damage damage = damage_of(file, bytes);
    std::vector<LostPart::Said> said;
    for (int i = 0; i < kRereads && bytes.ok(); ++i) {
      bytes = read_past_cache(env_, path_of(file.name));
      if (!bytes.ok() || !fits(file, *bytes)) continue;
      add_mended(damage, "reread", "is right when it is read again");
      return use_index(file, *bytes);
    }
    said.push_back({"reread", bytes.ok() ? "is the same" : bytes.error().message()});
    if (bytes.ok() && std::ssize(*bytes) == file.bytes) {
      Result<FoundBit> found = find_flipped_bit(
          *bytes, [&](ByteView tried) { return xxh3_digest(tried) == file.digest; });
      if (found.ok()) {
        use_index(file, found->bytes);
        return add_found_bit(damage, *std::move(found));
      }
      said.push_back({"digest", found.error().message()});
    }
    mend_whole(file, damage, std::move(said));
  }

  static Damage damage_of(const ManifestFile& file, const Result<Bytes>& bytes) {
    Damage damage{.file = file.name, .bytes = file.bytes};
    if (!bytes.ok()) {
      const bool gone = bytes.error().code() == ErrorCode::kNotFound;
      damage.what = gone ? "is missing" : bytes.error().message();
    } else if (std::ssize(*bytes) != file.bytes) {
      damage.what = fmt::format("has {} bytes; expected {}", bytes->size(), file.bytes);
    } else {
      damage.what = "does not have its digest";
    }
    return damage;
  }

  void use_index(const ManifestFile& file, ByteView bytes) {
    if (!is_index_name(file.name)) return;
    Result<ShardIndex> index = decode_shard_index(bytes, file.name);
    if (index.ok()) return step_->indexes.push_back(*std::move(index));
    add_lost({.file = file.name, .bytes = file.bytes, .what = index.error().message()},
             {});
  }

  // Takes a whole file from the first source that has it.
  void mend_whole(const ManifestFile& file, const Damage& damage,
                  std::vector<LostPart::Said> said) {
    for (const auto& source : sources_) {
      Result<Bytes> bytes = source->read_file(*step_, file);
      if (bytes.ok() && fits(file, *bytes)) {
        use_index(file, *bytes);
        add_mended(damage, std::string(source->rung()), "from " + source->name());
        repair_.files.push_back({.file = file.name, .whole = keep(*std::move(bytes))});
        return;
      }
      said.push_back({source->name(),
                      bytes.ok() ? "has other bytes" : bytes.error().message()});
    }
    add_lost(damage, std::move(said));
  }

  Result<void> mend_shard(const ManifestFile& file) {
    const ShardFile* shard = step_->find_shard(file.name);
    if (shard == nullptr || shard->bytes != file.bytes) {
      check_without_index(file);
      return {};
    }
    const Result<FileInfo> info = env_.info(path_of(file.name));
    if (!info.ok() && info.error().code() != ErrorCode::kNotFound) return info.error();
    // The first and the second look: what is bad both times is damaged.
    const std::vector<size_t> seen = HOLDFAST_TRY(find_bad(*shard, info.ok()));
    done_ += file.bytes;
    const bool too_long = info.ok() && info->size > file.bytes;
    if (seen.empty() && !too_long) return {};
    std::vector<size_t> bad = seen;
    for (int i = 0; i < kRereads && !bad.empty() && info.ok(); ++i) {
      bad = HOLDFAST_TRY(find_bad_again(*shard, bad));
    }
    for (const size_t number : seen) {
      if (std::ranges::count(bad, number) > 0) continue;
      add_mended(damage_of(*shard, number), "reread", "is right when it is read again");
    }
    if (bad.empty() && !too_long) return {};
    FileMend mend{.file = file.name};
    if (too_long) {
      add_mended({.file = file.name, .offset = file.bytes, .what = "is too long"}, "cut",
                 fmt::format("{} bytes behind its end are left out",
                             info->size - file.bytes));
    }
    mend_chunks(*shard, bad, mend);
    repair_.files.push_back(std::move(mend));
    return {};
  }

  Result<std::vector<size_t>> find_bad(const ShardFile& shard, bool there) {
    std::vector<size_t> all(shard.chunks.size());
    for (size_t i = 0; i < all.size(); ++i) all[i] = i;
    return there ? find_bad_again(shard, all) : Result(all);
  }

  Result<std::vector<size_t>> find_bad_again(const ShardFile& shard,
                                             const std::vector<size_t>& wanted) {
    std::vector<size_t> bad;
    PatientEnv patient(env_);
    const Result<void> read = read_chunks(
        patient, path_of(shard.name), shard, wanted,
        [&](const FoundChunk& found) -> Result<void> {
          if (found.crc != shard.chunks[found.number].crc) bad.push_back(found.number);
          if (progress_) progress_(done_ + place_of(shard, found.number).offset, total_);
          return {};
        });
    // What the disk does not return is damaged, wherever it is.
    if (!read.ok() && is_damage(read.error())) return wanted;
    if (!read.ok()) return read.error();
    return bad;
  }

  Damage damage_of(const ShardFile& shard, size_t number) const {
    const Chunk& chunk = shard.chunks[number];
    return {.file = shard.name,
            .tensors = tensors_in(*step_, shard.name, chunk.offset, chunk.bytes),
            .chunk = static_cast<int64_t>(number),
            .offset = place_of(shard, number).offset,
            .bytes = place_of(shard, number).bytes,
            .what = fmt::format("does not have the crc {:08x}", chunk.crc)};
  }

  void mend_chunks(const ShardFile& shard, const std::vector<size_t>& bad,
                   FileMend& mend) {
    Result<std::unique_ptr<FileSource>> opened =
        FileSource::open(env_, path_of(shard.name));
    // Shared by the functions that read the damaged file again.
    const std::shared_ptr<const Source> file =
        opened.ok() ? std::shared_ptr<const Source>(*std::move(opened)) : nullptr;
    std::optional<DigestRungs> rung;
    if (file != nullptr) rung.emplace(*step_, shard, *file, bad);
    for (const size_t number : bad) {
      std::vector<LostPart::Said> said;
      if (file == nullptr) {
        said.push_back({"reread", "the file is missing"});
      } else {
        said.push_back({"reread", "is the same"});
        if (mend_by_digests(shard, number, file, *rung, mend, said)) continue;
      }
      if (mend_by_sources(shard, number, mend, said)) continue;
      add_lost(damage_of(shard, number), std::move(said));
    }
  }

  bool mend_by_digests(const ShardFile& shard, size_t number,
                       const std::shared_ptr<const Source>& file, DigestRungs& rung,
                       FileMend& mend, std::vector<LostPart::Said>& said) {
    for (const bool seal : {true, false}) {
      const Result<FoundBytes> found = seal ? rung.by_seal(number) : rung.by_crc(number);
      const std::string name = seal ? "seal" : "crc";
      if (!found.ok()) {
        said.push_back({name, found.error().message()});
        continue;
      }
      const ByteExtent place = place_of(shard, number);
      const MakeBytes make = [file, place, bytes = found->bytes]() -> Result<Bytes> {
        Bytes stored = HOLDFAST_TRY(file->read_bytes(place.offset, place.bytes));
        for (const RightByte& one : bytes) {
          const int64_t at = one.offset - place.offset;
          if (at >= 0 && at < place.bytes) stored[static_cast<size_t>(at)] = one.right;
        }
        return stored;
      };
      const Result<Bytes> made = make();
      if (made.ok() && fits(shard, number, *made)) {
        add_mended(damage_of(shard, number), name, found->what);
        mend.chunks[number] = make;
        return true;
      }
      said.push_back({name, found->what + ", which does not give the chunk its crc"});
    }
    return false;
  }

  bool mend_by_sources(const ShardFile& shard, size_t number, FileMend& mend,
                       std::vector<LostPart::Said>& said) {
    for (const auto& source : sources_) {
      const MakeBytes make = [from = source.get(), step = step_, &shard, number] {
        return from->read_chunk({*step, shard, number});
      };
      const Result<Bytes> bytes = make();
      if (bytes.ok() && fits(shard, number, *bytes)) {
        add_mended(damage_of(shard, number), std::string(source->rung()),
                   "from " + source->name());
        mend.chunks[number] = make;
        return true;
      }
      said.push_back({source->name(),
                      bytes.ok() ? "has other bytes" : bytes.error().message()});
    }
    return false;
  }

  // A shard whose index is lost: nobody knows its chunks.
  void check_without_index(const ManifestFile& file) {
    const auto source = FileSource::open(env_, path_of(file.name));
    if (source.ok() && (*source)->size() == file.bytes && has_digest(file, **source)) {
      return;
    }
    add_lost({.file = file.name, .bytes = file.bytes, .what = "does not have its digest"},
             {{"index", "what the file should hold is not known without its index"}});
  }

  static bool has_digest(const ManifestFile& file, const Source& source) {
    const auto crc = crc32c_of(source, 0, source.size());
    return crc.ok() && crc_digest(*crc) == file.digest;
  }

  // Parity is computed from its shard. If that is damaged, too, it is mended first, so
  // whether the result is right shows only then.
  void mend_parity(const ManifestFile& file) {
    const auto source = FileSource::open(env_, path_of(file.name));
    if (source.ok() && (*source)->size() == file.bytes && has_digest(file, **source)) {
      return;
    }
    const Damage damage{.file = file.name,
                        .bytes = file.bytes,
                        .what = source.ok() ? "does not have its digest" : "is missing"};
    const std::string shard = *shard_of_parity(file.name);
    const bool hurt = std::ranges::count(repair_.files, shard, &FileMend::file) > 0;
    for (const auto& one : sources_) {
      if (!hurt || one->rung() != "parity") continue;
      add_mended(damage, "parity", "is to be computed from " + shard + " when that is mended");
      repair_.files.push_back(
          {.file = file.name, .whole = [from = one.get(), step = step_, file] {
             return from->read_file(*step, file);
           }});
      return;
    }
    mend_whole(file, damage, {});
  }

  Env& env_;
  const CopySources sources_;
  const Progress& progress_;
  // Shared with the functions of the repair.
  const std::shared_ptr<StepParts> step_;
  int64_t done_ = 0, total_ = 0;
  StepRepair repair_;
};

}  // namespace

std::string to_string(const LostPart& lost) {
  std::string text = to_string(lost.damage);
  for (const LostPart::Said& said : lost.rungs) {
    text += fmt::format("; {}: {}", said.rung, said.why);
  }
  return text;
}

Result<StepRepair> plan_step_repair(Env& env, const Path& folder, CopySources sources,
                                    const Progress& progress) {
  return Ladder(env, folder, sources, progress).run();
}

}  // namespace holdfast
