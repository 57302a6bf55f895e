#include "holdfast/repair/crc_repair.h"

#include <algorithm>

#include "holdfast/archive/zip_reader.h"
#include "holdfast/base/crc32.h"
#include "holdfast/base/crc32c.h"
#include "holdfast/env/source_sink.h"
#include "holdfast/formats/format.h"
#include "holdfast/repair/bit_search.h"
#include "holdfast/tensorflow/bundle_index.h"
#include "holdfast/tensorflow/masked_crc.h"

namespace holdfast {
namespace {

// A record with a wrong CRC.
struct BadRecord {
  std::string file;  // as in PlannedByte
  std::string name;
  int64_t offset = 0;
  int64_t size = 0;
  std::vector<uint64_t> flips{};  // the bits that explain the CRC
};

// Adds the flip of the record's only bit that explains its CRC.
Result<void> add_flip(const Source& source, const BadRecord& record,
                      const Confirm& confirm, CrcRepair& repair) {
  if (record.flips.size() != 1) {
    return corrupt(
        "{}: record {} has more damage than one flipped bit; expected seals "
        "or another copy to mend it",
        source.name(), record.name);
  }
  const uint64_t bit = record.flips[0];
  const int64_t offset = record.offset + static_cast<int64_t>(bit / 8);
  const std::byte seen = HOLDFAST_TRY(source.read_bytes(offset, 1))[0];
  const std::byte right = seen ^ static_cast<std::byte>(1 << (bit % 8));
  const PlannedByte byte{record.file, offset, seen, right};
  const double odds = odds_of_passing(record.size);
  const bool confirmed =
      odds <= kMostOdds || (confirm && HOLDFAST_TRY(confirm(byte)));
  if (!confirmed) {
    return corrupt(
        "{}: a flipped bit explains the crc of record {}, but in a record of {} bytes "
        "other damage looks like one flipped bit once in {:.0f} times; expected seals or "
        "a copy (--from) to confirm it",
        source.name(), record.name, record.size, 1 / odds);
  }
  repair.bytes.push_back(byte);
  repair.mended.push_back(
      {.file = record.file,
       .what = fmt::format("byte {}: {} -> {}, by the crc of {}", offset,
                           to_hex(seen), to_hex(right), record.name),
       .rung = "crc"});
  return {};
}

// Returns all places of a record's CRC: in the directory, in the local header and behind
// the bytes. (ZipArchive::find_crcs() finds only those that agree.)
Result<std::vector<int64_t>> places_of_crc(const Source& source,
                                           const ZipEntry& entry) {
  std::vector<int64_t> places{entry.listed_offset + 16, entry.header_offset + 14};
  if (!entry.has_descriptor) return places;
  const int64_t end = entry.offset + entry.packed_size;
  const Bytes mark = HOLDFAST_TRY(source.read_bytes(end, 4));
  places.push_back(text_of(mark) == "PK\x07\x08" ? end + 4 : end);
  return places;
}

// A zip archive has each CRC in two places. If one of them fits the bytes, the other one
// is damaged and not the record.
Result<bool> mend_crc(const ZipArchive& archive, const ZipEntry& entry, Crc32 computed,
                      const std::string& file, CrcRepair& repair) {
  const Source& source = archive.source();
  const std::vector<int64_t> places = HOLDFAST_TRY(places_of_crc(source, entry));
  std::vector<PlannedByte> bytes;
  bool any_right = false;
  std::array<std::byte, 4> right{};
  store_little_endian(computed, right);
  for (const int64_t at : places) {
    const Bytes stored = HOLDFAST_TRY(source.read_bytes(at, 4));
    const bool zero = load_little_endian<uint32_t>(stored) == 0;  // left out
    any_right = any_right || std::ranges::equal(stored, right);
    for (size_t i = 0; i < 4 && !zero; ++i) {
      if (stored[i] == right[i]) continue;
      bytes.push_back({file, at + static_cast<int64_t>(i), stored[i], right[i]});
    }
  }
  if (!any_right || bytes.empty()) return false;
  repair.bytes.insert(repair.bytes.end(), bytes.begin(), bytes.end());
  repair.mended.push_back(
      {.file = file,
       .what = fmt::format(
           "the crc of {}, which its bytes and its other crc contradict", entry.name),
       .rung = "crc"});
  return true;
}

Result<CrcRepair> mend_zip(Env& env, const Found& found, const Confirm& confirm) {
  const std::shared_ptr<const Source> source =
      HOLDFAST_TRY(FileSource::open(env, found.path));
  const ZipArchive archive = HOLDFAST_TRY(
      ZipArchive::open(source, {.deflated = found.format->name != "torch"}));
  const std::string file = found.path.filename().native();
  CrcRepair repair;
  for (const ZipEntry& entry : archive.entries()) {
    if (entry.crc == 0 && entry.size > 0) continue;
    const Result<Crc32> crc = archive.compute_crc(entry);
    if (crc.ok() && *crc == entry.crc) continue;
    if (!crc.ok() && crc.error().code() != ErrorCode::kCorrupt) return crc.error();
    if (entry.deflated || !crc.ok()) {
      return corrupt(
          "{}: record {} is compressed, so its crc does not find a flipped "
          "bit; expected another copy",
          source->name(), entry.name);
    }
    if (HOLDFAST_TRY(mend_crc(archive, entry, *crc, file, repair))) continue;
    HOLDFAST_TRY(add_flip(*source,
                          {.file = file,
                           .name = entry.name,
                           .offset = entry.offset,
                           .size = entry.size,
                           .flips = crc32_find_flips(
                               entry.crc ^ *crc, static_cast<uint64_t>(entry.size))},
                          confirm, repair));
  }
  return repair;
}

Result<CrcRepair> mend_bundle(Env& env, const Found& found,
                              const Confirm& confirm) {
  const Path index_path = HOLDFAST_TRY(bundle::find_index(env, found.path));
  const bundle::BundleIndex index = HOLDFAST_TRY(bundle::read_index(env, index_path));
  const bool folder = HOLDFAST_TRY(env.info(found.path)).folder;
  const std::string stem = index_path.stem().native();
  CrcRepair repair;
  for (const bundle::IndexedEntry& one : index.entries) {
    const bundle::BundleEntry& entry = one.entry;
    const bool plain = entry.slices.empty() && entry.type != bundle::kStringType;
    if (!plain || !entry.crc || entry.size == 0) continue;
    const Path shard = index.shard_path(entry.shard);
    const auto source = HOLDFAST_TRY(FileSource::open(env, shard));
    HOLDFAST_TRY(bundle::check_shard_range(index, one, *source));
    const Crc32c crc = HOLDFAST_TRY(crc32c_of(*source, entry.offset, entry.size));
    if (crc == *entry.crc) continue;
    const std::string name = shard.filename().native();
    HOLDFAST_TRY(add_flip(*source,
                          {.file = folder ? name : name.substr(stem.size()),
                           .name = one.key(),
                           .offset = entry.offset,
                           .size = entry.size,
                           .flips = crc32c_find_flips(
                               *entry.crc ^ crc, static_cast<uint64_t>(entry.size))},
                          confirm, repair));
  }
  return repair;
}

}  // namespace

Result<CrcRepair> find_by_crc(Env& env, const Found& found, const Confirm& confirm) {
  const std::string_view format = found.format->name;
  if (format == "torch" || format == "npz" || format == "keras") {
    return mend_zip(env, found, confirm);
  }
  if (format == "tensorflow") return mend_bundle(env, found, confirm);
  return unsupported(
      "{}: the format {} has no crc that finds a flipped bit; expected "
      "seals beside it (holdfast seal), made before the damage",
      found.path.native(), format);
}

}  // namespace holdfast
