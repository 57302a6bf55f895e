// Verifies NumPy's files and plans patches of them.
#include <map>

#include "holdfast/archive/zip_tail.h"
#include "holdfast/base/deflate.h"
#include "holdfast/contents/file_edit.h"
#include "holdfast/formats/npz_internal.h"
#include "holdfast/formats/zip_patch.h"
#include "holdfast/formats/zip_verify.h"

namespace holdfast {
namespace {

// A deflated array is decoded in memory to be patched.
constexpr int64_t kMaxPatchedArray = int64_t{1} << 30;

// Deflated records that change, decoded.
class DecodedRecords {
 public:
  explicit DecodedRecords(const ZipArchive& archive) : archive_(archive) {}

  Result<void> flip(size_t record, int64_t offset, ByteView mask) {
    auto found = decoded_.find(record);
    if (found == decoded_.end()) {
      const ZipEntry& entry = archive_.entries()[record];
      Bytes bytes = HOLDFAST_TRY(archive_.read(entry, kMaxPatchedArray));
      found = decoded_.emplace(record, std::move(bytes)).first;
    }
    for (size_t i = 0; i < mask.size(); ++i) {
      found->second[static_cast<size_t>(offset) + i] ^= mask[i];
    }
    return {};
  }

  bool empty() const { return decoded_.empty(); }

  // Encodes the records. A raw patch and a CRC that was left out keep the old CRC.
  std::vector<ReplacedRecord> encode(Checksums checksums) const {
    std::vector<ReplacedRecord> records;
    for (const auto& [record, bytes] : decoded_) {
      const ZipEntry& entry = archive_.entries()[record];
      const bool keep = checksums == Checksums::kRaw || entry.crc == 0;
      records.push_back({.entry = &entry,
                         .packed = deflate(bytes, DeflateWrapper::kNone),
                         .crc = keep ? entry.crc : crc32(bytes)});
    }
    return records;
  }

 private:
  const ZipArchive& archive_;
  std::map<size_t, Bytes> decoded_;
};

}  // namespace

Result<FormatReport> verify_npz(std::shared_ptr<const Source> source,
                                const Progress& progress) {
  const ZipArchive archive = HOLDFAST_TRY(ZipArchive::open(source, npz::kZipOptions));
  const Result<Contents> contents = open_npz(std::move(source));
  return verify_zip(archive, contents.ok() ? &*contents : nullptr, progress);
}

Result<Patch> plan_npz_patch(Env& env, const Path& path, std::span<const Flip> flips,
                             Checksums checksums) {
  const npz::Opened opened =
      HOLDFAST_TRY(npz::open_archive(HOLDFAST_TRY(FileSource::open(env, path))));
  PatchPlan plan(env, path);
  FileEdit& edit = *HOLDFAST_TRY(plan.edit(path));
  ZipCrcEdit crcs(opened.archive, edit);
  DecodedRecords decoded(opened.archive);
  HOLDFAST_TRY(
      place_flips(opened.contents, flips, [&](const PlacedFlip& at) -> Result<void> {
        const npz::Array& array = opened.arrays[at.tensor];
        const Bytes mask = npz::stored_mask(array.header, array.header.dtype, at.mask);
        if (array.holder != 0) return decoded.flip(array.record, at.offset, mask);
        crcs.add(at.offset, mask);
        return edit.flip(at.offset, mask);
      }));
  if (checksums == Checksums::kConsistent) HOLDFAST_TRY(crcs.write());
  if (!decoded.empty()) {
    const Bytes tail =
        HOLDFAST_TRY(make_zip_tail(edit, opened.archive, decoded.encode(checksums)));
    HOLDFAST_TRY(edit.write_tail(opened.archive.directory_offset(), tail));
  }
  return std::move(plan).finish();
}

Result<Patch> plan_npy_patch(Env& env, const Path& path, std::span<const Flip> flips,
                             Checksums) {
  const std::shared_ptr<const Source> source =
      HOLDFAST_TRY(FileSource::open(env, path));
  const NpyHeader header = HOLDFAST_TRY(read_npy_header(*source));
  const Contents contents = HOLDFAST_TRY(open_npy(source));
  PatchPlan plan(env, path);
  FileEdit& edit = *HOLDFAST_TRY(plan.edit(path));
  HOLDFAST_TRY(place_flips(contents, flips, [&](const PlacedFlip& at) {
    return edit.flip(at.offset, npz::stored_mask(header, header.dtype, at.mask));
  }));
  return std::move(plan).finish();
}

}  // namespace holdfast
