// The shards of a TensorFlow checkpoint, which are opened when an entry needs them.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "holdfast/env/source_sink.h"
#include "holdfast/state/layout.h"
#include "holdfast/tensorflow/bundle_index.h"
#include "holdfast/tensorflow/bundle_strings.h"

namespace holdfast::bundle {

class Shards {
 public:
  // `env` and `index` must outlive the shards.
  Shards(Env& env, const BundleIndex& index) : env_(env), index_(index) {}

  // Opens the shard that has the entry, unless it is open, and returns its number among
  // the opened ones. Fails with kCorrupt if the shard does not exist or is too short for
  // the entry.
  Result<HolderId> open_for(const IndexedEntry& entry);
  // Reads the bytes of an entry with strings or variants. Fails with kUnsupported if the strings of
  // the checkpoint take more than kMaxStringBytes or are more than kMaxStrings.
  Result<Bytes> read_strings(const IndexedEntry& entry);
  // Decodes these bytes and checks their checksum.
  Result<DecodedStrings> decode(const IndexedEntry& entry, ByteView bytes) const;

  // The opened shards, in the order of their numbers. Shared, because contents read
  // from them.
  const std::vector<std::shared_ptr<const Source>>& sources() const { return sources_; }
  std::vector<Holder> holders() const;

 private:
  Env& env_;
  const BundleIndex& index_;
  std::map<int64_t, HolderId> opened_;
  std::vector<std::shared_ptr<const Source>> sources_;
  int64_t string_bytes_ = 0;
  int64_t strings_ = 0;
};

}  // namespace holdfast::bundle
