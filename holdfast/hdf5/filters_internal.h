// The filters of chunks: what makes the stored bytes of a chunk from its elements.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "holdfast/hdf5/file_internal.h"

namespace holdfast::hdf5 {

enum class FilterId : uint16_t {
  kDeflate = 1,
  kShuffle = 2,
  kFletcher32 = 3,
  kLzf = 32000,
};

struct Filter {
  FilterId id{};
  uint64_t element_bytes = 1;  // of shuffle
};

// The filters of a dataset in the order in which they are applied to write a chunk.
using Filters = std::vector<Filter>;

// Fails with kUnsupported, naming the filter, if one is not known.
Result<Filters> read_filters(const File& file, ByteView data, const std::string& where);

// Whether filter i was applied to a chunk with this mask.
inline bool is_applied(uint32_t mask, size_t i) { return (mask >> i & 1) == 0; }
// Whether a chunk has a checksum. A deflate stream has one.
bool has_check(const Filters& filters, uint32_t mask);

// Decodes a chunk of `bytes` bytes. Fails with kCorrupt, saying which filter found
// what.
Result<Bytes> decode_chunk(const Filters& filters, uint32_t mask, Bytes stored,
                           int64_t bytes);
// Fails with kCorrupt unless so few stored bytes can be a chunk of `bytes` bytes.
Result<void> check_stored_size(const Filters& filters, uint32_t mask, int64_t stored,
                               int64_t bytes);

// Encodes a chunk. If `sums_of` is not null, all checksums are those of these elements
// and so are wrong for `elements`.
Bytes encode_chunk(const Filters& filters, uint32_t mask, ByteView elements,
                   const Bytes* sums_of);

// HDF5's fletcher32: over 16-bit words, the first byte being the high one.
uint32_t fletcher32(ByteView bytes);

}  // namespace holdfast::hdf5
