// Plans which bytes of a TensorFlow checkpoint change with flipped bits: those in the
// shards, the checksums of the tensors in the index, and the checksums of the blocks of
// the index that have these.
#include <algorithm>
#include <array>
#include <map>

#include "holdfast/base/json_text.h"
#include "holdfast/contents/file_edit.h"
#include "holdfast/tensorflow/bundle_index.h"
#include "holdfast/tensorflow/masked_crc.h"
#include "holdfast/tensorflow/tensor_bundle.h"

namespace holdfast {
namespace bundle {
namespace {

class BundlePatcher {
 public:
  BundlePatcher(Env& env, const Path& path, const BundleIndex& index,
                const Contents& contents)
      : index_(index), contents_(contents), plan_(env, path) {}

  Result<void> open() {
    for (const auto& source : contents_.sources) {
      shards_.push_back({.edit = HOLDFAST_TRY(plan_.edit(source->name()))});
    }
    for (const IndexedEntry& entry : index_.entries) {
      if (!entry.entry.slices.empty() || entry.entry.size == 0) continue;
      const std::string name = index_.shard_path(entry.entry.shard).native();
      for (Shard& shard : shards_) {
        if (shard.edit->name() == name) shard.entries.push_back(&entry);
      }
    }
    for (Shard& shard : shards_) {
      std::ranges::sort(shard.entries, {}, offset_of);
    }
    return {};
  }

  Result<void> flip(const PlacedFlip& at) {
    std::array<std::byte, 16> bytes{};
    const ByteSpan mask = ByteSpan(bytes).first(at.mask.size());
    std::ranges::copy(at.mask, mask.begin());
    if (index_.header.big_endian) swap(mask, at.tensor);
    const Shard& shard = shards_[at.holder];
    const IndexedEntry& entry = entry_at(shard, at.offset);
    const int64_t after =
        entry.entry.offset + entry.entry.size - at.offset - std::ssize(mask);
    changes_[&entry] ^= crc32c_change(mask, static_cast<uint64_t>(after));
    return shard.edit->flip(at.offset, mask);
  }

  // Makes the checksums right.
  Result<void> update_checksums() {
    FileEdit& edit = *HOLDFAST_TRY(plan_.edit(index_.path));
    std::map<int64_t, BlockHandle> blocks;
    for (const auto& [entry, change] : changes_) {
      if (!entry->entry.crc) continue;
      HOLDFAST_TRY(write_crc(edit, entry->at->offset + entry->entry.crc_offset,
                             *entry->entry.crc ^ change));
      blocks.emplace(entry->at->block.offset, entry->at->block);
    }
    for (const auto& [offset, block] : blocks) {
      const Bytes bytes = HOLDFAST_TRY(edit.read_bytes(offset, block.size + 1));
      HOLDFAST_TRY(write_crc(edit, offset + block.size + 1, crc32c(bytes)));
    }
    return {};
  }

  Patch finish() && { return std::move(plan_).finish(); }

 private:
  struct Shard {
    FileEdit* edit = nullptr;
    std::vector<const IndexedEntry*> entries{};  // in order of offset
  };

  static int64_t offset_of(const IndexedEntry* entry) { return entry->entry.offset; }

  static const IndexedEntry& entry_at(const Shard& shard, int64_t offset) {
    const auto next = std::ranges::upper_bound(shard.entries, offset, {}, offset_of);
    HOLDFAST_CHECK(next != shard.entries.begin(), "no entry has byte {}", offset);
    return **std::prev(next);
  }

  // Turns each number of an element around.
  void swap(ByteSpan mask, TensorId tensor) const {
    const DtypeInfo& of = info(contents_.collection.tensor(tensor).dtype);
    const auto width = static_cast<size_t>(of.bytes / of.components);
    for (size_t i = 0; i < mask.size(); i += width) {
      std::ranges::reverse(mask.subspan(i, width));
    }
  }

  static Result<void> write_crc(FileEdit& edit, int64_t offset, Crc32c crc) {
    std::array<std::byte, 4> bytes{};
    store_little_endian(mask_crc(crc), bytes);
    return edit.write(offset, bytes);
  }

  const BundleIndex& index_;
  const Contents& contents_;
  PatchPlan plan_;
  std::vector<Shard> shards_;  // as the sources of the contents
  // How the CRC of each changed entry changes.
  std::map<const IndexedEntry*, Crc32c> changes_;
};

Result<void> refuse_strings(const BundleIndex& index, const Contents& contents,
                            std::span<const Flip> flips) {
  for (const Flip& flip : flips) {
    if (contents.collection.find(flip.tensor)) continue;
    const IndexedEntry* entry = index.find(flip.tensor);
    if (entry == nullptr || entry->entry.type != kStringType) continue;
    return unsupported("{}: {} has strings; expected a tensor of numbers",
                       index.path.native(), shown(flip.tensor));
  }
  return {};
}

}  // namespace
}  // namespace bundle

Result<Patch> plan_patch_tensor_bundle(Env& env, const Path& path,
                                       std::span<const Flip> flips,
                                       Checksums checksums) {
  const Path at = HOLDFAST_TRY(bundle::find_index(env, path));
  const bundle::BundleIndex index = HOLDFAST_TRY(bundle::read_index(env, at));
  const Contents contents = HOLDFAST_TRY(bundle::open_indexed(env, index));
  HOLDFAST_TRY(bundle::refuse_strings(index, contents, flips));
  bundle::BundlePatcher patcher(env, path, index, contents);
  HOLDFAST_TRY(patcher.open());
  HOLDFAST_TRY(place_flips(
      contents, flips, [&](const PlacedFlip& placed) { return patcher.flip(placed); }));
  if (checksums == Checksums::kConsistent) HOLDFAST_TRY(patcher.update_checksums());
  return std::move(patcher).finish();
}

}  // namespace holdfast
