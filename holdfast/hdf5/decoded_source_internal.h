// An HDF5 file as a Source: first the bytes of the file, and behind them the elements
// of those datasets that do not lie in the file as tensors do, such as compressed ones.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "holdfast/base/mutex.h"
#include "holdfast/contents/chunked_source.h"
#include "holdfast/hdf5/dataset_internal.h"

namespace holdfast::hdf5 {

// The chunks that were decoded last, of all datasets of a file. Safe from several
// threads.
class ChunkCache {
 public:
  // A chunk of a dataset: the number of the dataset, and that of the chunk.
  using Key = std::pair<size_t, int64_t>;

  std::shared_ptr<const Bytes> find(const Key& key);
  void put(const Key& key, std::shared_ptr<const Bytes> bytes);

 private:
  struct Entry {
    Key key;
    std::shared_ptr<const Bytes> bytes;
  };

  Mutex mutex_;
  int64_t total_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  std::list<Entry> entries_ HOLDFAST_GUARDED_BY(mutex_);  // the last used one first
  std::map<Key, std::list<Entry>::iterator> places_ HOLDFAST_GUARDED_BY(mutex_);
};

// Decodes one chunk. Chunks that are not there have the fill value.
Result<Bytes> read_chunk(const Source& source, const Dataset& dataset, int64_t number);

// Reads all elements of a small chunked dataset.
Result<void> read_all_chunks(const Source& source, const Dataset& dataset,
                             ByteSpan into);

class DecodedSource : public ChunkedSource {
 public:
  // `file` are the bytes of the file. `plain` are the same with big-endian datasets
  // swapped, at the same offsets.
  DecodedSource(std::shared_ptr<const Source> file, std::shared_ptr<const Source> plain)
      : file_(std::move(file)), plain_(std::move(plain)), size_(plain_->size()) {}

  const std::string& name() const override { return file_->name(); }
  int64_t size() const override { return size_; }
  bool has_chunks(int64_t offset) const override;
  Result<void> read_chunks(int64_t offset, const Box& box, const Map& into,
                           ByteSpan memory) const override;
  int64_t best_part(int64_t offset) const override;
  bool is_stored(int64_t offset) const override;

  // Puts the elements of a dataset behind those that are there, and returns where they
  // begin. Fails with kCorrupt at more than 2^63 bytes. Not for several threads.
  Result<int64_t> add(std::shared_ptr<const Dataset> dataset);

  // The dataset whose elements are at this offset, and where they begin. Null inside
  // the file.
  struct Place {
    const Dataset* dataset = nullptr;
    int64_t begin = 0;
  };
  Place dataset_at(int64_t offset) const;

 protected:
  Result<void> read_inside(int64_t offset, ByteSpan into) const override;

 private:
  struct Region {
    size_t number = 0;
    std::shared_ptr<const Dataset> dataset;
  };

  Result<void> read_region(const Region& region, int64_t offset, ByteSpan into) const;
  Result<void> read_elements(const Region& region, int64_t first, ByteSpan into) const;
  // Reads a box of a chunked dataset. `target` says where its elements go in `into`.
  Result<void> read_box_of(const Region& region, const Box& box, const Map& target,
                           ByteSpan into) const;
  // A chunk that is used only once is not kept.
  Result<std::shared_ptr<const Bytes>> decoded(const Region& region, int64_t number,
                                               bool once) const;

  const std::shared_ptr<const Source> file_;
  const std::shared_ptr<const Source> plain_;
  int64_t size_;
  std::map<int64_t, Region> regions_;  // by where they begin
  mutable ChunkCache cache_;
};

}  // namespace holdfast::hdf5
