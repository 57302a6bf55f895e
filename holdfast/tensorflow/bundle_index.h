// The index of a TensorFlow checkpoint, decoded.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "holdfast/contents/contents.h"
#include "holdfast/env/env.h"
#include "holdfast/tensorflow/bundle_entry.h"
#include "holdfast/tensorflow/table_reader.h"
#include "holdfast/tensorflow/tensor_bundle.h"

namespace holdfast::bundle {

struct IndexedEntry {
  const TableEntry* at = nullptr;  // in the table
  BundleEntry entry{};

  const std::string& key() const { return at->key; }
};

struct BundleIndex {
  Path path{};  // of the index file
  // Shared, because the entries point into it wherever the index is moved.
  std::shared_ptr<const Table> table{};
  BundleHeader header{};
  std::vector<IndexedEntry> entries{};  // in order of key, without the header
  std::unordered_map<std::string_view, size_t> by_key{};

  // The path of a shard: ckpt.data-00000-of-00002.
  Path shard_path(int64_t shard) const;
  const IndexedEntry* find(std::string_view key) const;
};

// A part of a tensor that is stored in one run of bytes.
struct StoredBox {
  const IndexedEntry* entry = nullptr;
  Box box{};
};

// The boxes of a tensor: its slices, or all of it. Fails with kCorrupt if a slice is not
// in the index, or differs from the tensor in dtype or shape.
Result<std::vector<StoredBox>> boxes_of(const BundleIndex& index,
                                        const IndexedEntry& tensor);

// Finds the index file. The path may be that of the index, the prefix that TensorFlow
// calls the checkpoint (ckpt/ck-12), or a folder. In a folder it is the one that the
// file "checkpoint" names, or the only one if there is no such file.
Result<Path> find_index(Env& env, const Path& path);

// Reads the index. If `bad` is not null, blocks that cannot be read are added to it and
// skipped.
Result<BundleIndex> read_index(Env& env, const Path& index,
                               std::vector<BadBlock>* bad = nullptr);

// Opens the checkpoint whose index was read (tensor_bundle.h).
Result<Contents> open_indexed(Env& env, const BundleIndex& index);

// Fails with kCorrupt unless the entry's bytes are in the shard, which must be one that
// the header knows.
Result<void> check_shard_range(const BundleIndex& index, const IndexedEntry& entry,
                               const Source& shard);

}  // namespace holdfast::bundle
