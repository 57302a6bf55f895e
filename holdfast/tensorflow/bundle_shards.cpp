#include "holdfast/tensorflow/bundle_shards.h"

#include "holdfast/base/json_text.h"

namespace holdfast::bundle {

Result<HolderId> Shards::open_for(const IndexedEntry& entry) {
  const int64_t shard = entry.entry.shard;
  if (shard >= index_.header.shards) {
    return corrupt("{}: {} is in shard {}; expected one of {}", index_.path.native(),
                   shown(entry.key()), shard, index_.header.shards);
  }
  auto at = opened_.find(shard);
  if (at == opened_.end()) {
    const Path path = index_.shard_path(shard);
    auto source = FileSource::open(env_, path);
    if (!source.ok() && is_missing(source.error())) {
      return corrupt("{}: {} is missing, but the index names it", index_.path.native(),
                     shown(path.filename().native()));
    }
    sources_.push_back(HOLDFAST_TRY(std::move(source)));
    at = opened_.emplace(shard, static_cast<HolderId>(sources_.size() - 1)).first;
  }
  HOLDFAST_TRY(check_shard_range(index_, entry, *sources_[at->second]));
  return at->second;
}

Result<Bytes> Shards::read_strings(const IndexedEntry& entry) {
  const HolderId holder = HOLDFAST_TRY(open_for(entry));
  const int64_t count = entry.entry.shape.elements();
  if (entry.entry.size > kMaxStringBytes - string_bytes_ ||
      count > kMaxStrings - strings_) {
    return unsupported("makes more than {} bytes or {} strings, the limit",
                       kMaxStringBytes, kMaxStrings);
  }
  string_bytes_ += entry.entry.size;
  strings_ += count;
  return sources_[holder]->read_bytes(entry.entry.offset, entry.entry.size);
}

Result<DecodedStrings> Shards::decode(const IndexedEntry& entry, ByteView bytes) const {
  const int64_t count = entry.entry.shape.elements();
  auto decoded = decode_strings(bytes, count, index_.header.big_endian);
  if (!decoded.ok()) {
    return decoded.error().within(shown(entry.key())).within(index_.path.native());
  }
  if (!entry.entry.crc || *entry.entry.crc == decoded->crc) return decoded;
  return corrupt("{}: {} has crc32c {:08x}; expected {:08x}", index_.path.native(),
                 shown(entry.key()), decoded->crc, *entry.entry.crc);
}

std::vector<Holder> Shards::holders() const {
  std::vector<Holder> holders;
  for (const auto& source : sources_) {
    holders.push_back({.name = source->name(), .kind = HolderKind::kFile});
  }
  return holders;
}

}  // namespace holdfast::bundle
