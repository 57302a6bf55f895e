// Datasets: their type and shape, and where their elements lie in the file.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "holdfast/hdf5/datatype_internal.h"
#include "holdfast/hdf5/filters_internal.h"
#include "holdfast/hdf5/object_header_internal.h"

namespace holdfast::hdf5 {

struct Chunk {
  int64_t offset = 0;  // in the source
  int64_t bytes = 0;   // as stored
  uint32_t mask = 0;   // which filters were not applied
  // The offsets of the two fields of the index that say how large the chunk is and where
  // it lies. The index has no sizes of chunks without filters.
  int64_t size_field = 0;
  uint64_t size_bytes = 0;
  int64_t address_field = 0;
  // The block of the index that has these fields and ends with a checksum. 0 bytes if
  // there is no checksum.
  int64_t index_block = 0;
  int64_t index_block_bytes = 0;
};

enum class Storage { kNone, kPlain, kChunked };

struct Dataset {
  std::string where{};  // for messages: "model.h5: /dense/kernel"
  Datatype type{};
  bool null = false;
  Shape shape{};
  Storage storage = Storage::kNone;  // kNone: all elements have the fill value
  // In plain storage, the elements begin at this byte of the source.
  int64_t offset = 0;
  // If the elements lie in an object header that has a checksum: where the block of the
  // header lies in the source, and its bytes with the checksum. 0 bytes if not.
  int64_t header_block = 0;
  int64_t header_block_bytes = 0;
  // Chunked storage has chunks of one shape, and filters that decode them. A chunk that
  // is not in the map was never written.
  Shape chunk_shape{};
  Filters filters{};
  std::unordered_map<int64_t, Chunk> chunks{};
  // One element, little-endian. Empty for zeros.
  Bytes fill{};

  int64_t element_bytes() const { return static_cast<int64_t>(type.bytes); }
  int64_t bytes() const { return shape.elements() * element_bytes(); }
  int64_t chunk_bytes() const { return chunk_shape.elements() * element_bytes(); }
  // How many chunks the grid has in dimension k.
  int64_t grid(int k) const;
};

bool is_dataset(const ObjectHeader& header);
// Reads all messages of a dataset, and the index of its chunks. Fails with
// kUnsupported, naming the structure, for what cannot be read. Elements that no tensor
// can hold are allowed here.
Result<Dataset> read_dataset(const File& file, const ObjectHeader& header,
                             const std::string& where);

// The place of an element in chunked storage: the number of its chunk, and the byte of
// the chunk at which the element begins.
struct InChunk {
  int64_t number = 0;
  int64_t inside = 0;
};
InChunk chunk_of(const Dataset& dataset, int64_t element);

}  // namespace holdfast::hdf5
