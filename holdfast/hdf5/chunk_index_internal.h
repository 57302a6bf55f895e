// Where the chunks of a dataset lie: the six indexes in which HDF5 keeps their addresses.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "holdfast/hdf5/dataset_internal.h"

namespace holdfast::hdf5 {

// By its number in a layout message of version 4. Older messages always have kTree.
enum class IndexKind : uint8_t {
  kTree = 0,  // a B-tree of version 1
  kSingle = 1,
  kImplicit = 2,
  kFixedArray = 3,
  kExtensibleArray = 4,
  kNewTree = 5,  // a B-tree of version 2
};

struct ChunkIndex {
  IndexKind kind = IndexKind::kTree;
  uint64_t address = kUndefined;
  // The largest size of each dimension. kUnlimited if it has none.
  std::vector<int64_t> most_sizes{};
  // Whether chunks that reach beyond the dataset are stored without filters.
  bool plain_edges = false;
  // The chunk of a single-chunk index. Its offset is not known yet.
  Chunk single{};
};

// Adds all chunks of the index to the dataset, whose shapes and filters are known. Fails
// with kCorrupt for indexes that contradict themselves or the dataset.
Result<void> read_chunks(const File& file, const ChunkIndex& index, Dataset& dataset);

// A record of an index, and where it lies. The block around it ends with a checksum.
struct IndexRecord {
  uint64_t number = 0;  // of the element of an array
  ByteView bytes{};
  uint64_t address = 0;
  uint64_t block = 0;
  uint64_t block_bytes = 0;
};
using VisitRecord = std::function<Result<void>(const IndexRecord& record)>;

// Calls `visit` for each element of an array that the file has. Elements are of
// `element_bytes` bytes or more. `filtered` says which of the two kinds of elements is
// expected.
struct ArrayKind {
  bool filtered = false;
  uint64_t element_bytes = 0;
};
Result<void> visit_fixed_array(const File& file, uint64_t header, const ArrayKind& kind,
                               const std::string& where, const VisitRecord& visit);
Result<void> visit_extensible_array(const File& file, uint64_t header,
                                    const ArrayKind& kind, const std::string& where,
                                    const VisitRecord& visit);

// Calls `visit` for each record of a B-tree of version 2 of this type.
Result<void> visit_new_tree(const File& file, uint64_t header, uint8_t type,
                            const std::string& where, const VisitRecord& visit);

}  // namespace holdfast::hdf5
