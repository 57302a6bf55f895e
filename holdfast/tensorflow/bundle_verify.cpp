// Checks every checksum of a TensorFlow checkpoint: those of the blocks of its index, and
// those of its tensors.
#include <algorithm>
#include <tuple>
#include <unordered_map>

#include "holdfast/base/json_text.h"
#include "holdfast/tensorflow/bundle_shards.h"
#include "holdfast/tensorflow/tensor_bundle.h"

namespace holdfast {
namespace bundle {
namespace {


// Names the tensor that an entry belongs to, also for the entries of slices.
using Owners = std::unordered_map<std::string, std::string>;

Owners owners_of_slices(const BundleIndex& index) {
  Owners owners;
  for (const IndexedEntry& tensor : index.entries) {
    for (const auto& slice : tensor.entry.slices) {
      owners.emplace(slice_key(tensor.key(), slice), tensor.key());
    }
  }
  return owners;
}

class BundleVerifier {
 public:
  BundleVerifier(Env& env, const BundleIndex& index, const Progress& progress)
      : index_(index),
        shards_(env, index),
        progress_(progress),
        owners_(owners_of_slices(index)) {
    for (const IndexedEntry& entry : index.entries) total_ += entry.entry.size;
    report_.bytes_read = std::ssize(index.table->bytes());
    total_ += report_.bytes_read;
    report_.checked = true;
  }

  void add_bad_blocks(const std::vector<BadBlock>& blocks) {
    for (const BadBlock& bad : blocks) {
      report_.damage.push_back({.file = index_.path.filename().native(),
                                .offset = bad.block.offset,
                                .bytes = bad.block.size + kTrailerBytes,
                                .what = bad.what});
    }
  }

  // Checks one entry. Fails only if it cannot be told whether the entry is damaged.
  Result<void> check(const IndexedEntry& entry) {
    if (!entry.entry.slices.empty()) return {};
    report_.checked = report_.checked && (entry.entry.crc || entry.entry.size == 0);
    const Result<void> checked = read_and_compare(entry);
    if (checked.ok()) return {};
    if (checked.error().code() == ErrorCode::kUnsupported) {
      // Too many strings, or a string tensor of too many dimensions: it is left out of the
      // contents, too.
      report_.checked = false;
      return {};
    }
    if (checked.error().code() != ErrorCode::kCorrupt) return checked.error();
    const auto owner = owners_.find(entry.key());
    const Path shard = index_.shard_path(entry.entry.shard);
    report_.damage.push_back(
        {.file = shard.filename().native(),
         .tensors = {owner == owners_.end() ? entry.key() : owner->second},
         .offset = entry.entry.offset,
         .bytes = entry.entry.size,
         .what = checked.error().message()});
    return {};
  }

  FormatReport take_report() {
    std::ranges::sort(report_.damage, {}, [](const Damage& damage) {
      return std::tie(damage.file, damage.offset);
    });
    return std::move(report_);
  }

 private:
  Result<void> read_and_compare(const IndexedEntry& entry) {
    const HolderId holder = HOLDFAST_TRY(shards_.open_for(entry));
    if (entry.entry.type == kStringType) return check_strings(entry);
    if (entry.entry.type == kVariantType) return check_variants(entry);
    const Source& shard = *shards_.sources()[holder];
    const Crc32c crc =
        HOLDFAST_TRY(crc32c_of(shard, entry.entry.offset, entry.entry.size,
                               [&](int64_t bytes) { count_read(bytes); }));
    return compare(entry, crc);
  }

  Result<void> check_strings(const IndexedEntry& entry) {
    if (!entry.entry.odd_shape.empty()) return unsupported("{}", entry.entry.odd_shape);
    const Bytes bytes = HOLDFAST_TRY(shards_.read_strings(entry));
    count_read(std::ssize(bytes));
    const DecodedStrings decoded = HOLDFAST_TRY(
        decode_strings(bytes, entry.entry.shape.elements(), index_.header.big_endian));
    return compare(entry, decoded.crc);
  }

  Result<void> check_variants(const IndexedEntry& entry) {
    const Bytes bytes = HOLDFAST_TRY(shards_.read_strings(entry));
    count_read(std::ssize(bytes));
    return compare(entry,
                   HOLDFAST_TRY(crc_of_variants(bytes, index_.header.big_endian)));
  }

  static Result<void> compare(const IndexedEntry& entry, Crc32c crc) {
    if (!entry.entry.crc || *entry.entry.crc == crc) return {};
    return corrupt("has crc32c {:08x}; expected {:08x}", crc, *entry.entry.crc);
  }

  void count_read(int64_t bytes) {
    report_.bytes_read += bytes;
    if (progress_) progress_(report_.bytes_read, total_);
  }

  const BundleIndex& index_;
  Shards shards_;
  const Progress& progress_;
  const Owners owners_;
  int64_t total_ = 0;
  FormatReport report_;
};

// The report of a file that cannot be read at all.
FormatReport damaged(const Path& file, const Error& error) {
  FormatReport report;
  report.damage.push_back({.file = file.filename().native(), .what = error.message()});
  return report;
}

Result<FormatReport> verify_entries(Env& env, const BundleIndex& index,
                                    const std::vector<BadBlock>& bad,
                                    const Progress& progress) {
  BundleVerifier verifier(env, index, progress);
  verifier.add_bad_blocks(bad);
  for (const IndexedEntry& entry : index.entries) HOLDFAST_TRY(verifier.check(entry));
  return verifier.take_report();
}

}  // namespace
}  // namespace bundle

Result<FormatReport> verify_tensor_bundle(Env& env, const Path& path,
                                          const Progress& progress) {
  const Path at = HOLDFAST_TRY(bundle::find_index(env, path));
  std::vector<bundle::BadBlock> bad;
  const Result<bundle::BundleIndex> index = bundle::read_index(env, at, &bad);
  if (!index.ok()) {
    if (index.error().code() != ErrorCode::kCorrupt) return index.error();
    return bundle::damaged(at, index.error());
  }
  FormatReport report =
      HOLDFAST_TRY(bundle::verify_entries(env, *index, bad, progress));
  if (!report.damage.empty()) return report;
  // The checksums are right, but the index may still contradict itself.
  const Result<Contents> opened = bundle::open_indexed(env, *index);
  if (opened.ok()) return report;
  if (opened.error().code() != ErrorCode::kCorrupt) return opened.error();
  report.damage = bundle::damaged(at, opened.error()).damage;
  return report;
}

}  // namespace holdfast
