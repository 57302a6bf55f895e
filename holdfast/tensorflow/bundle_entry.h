// The values in the index of a TensorFlow checkpoint: the header, and where each tensor
// or slice lies.
//
//   BundleHeaderProto: 1 num_shards, 2 endianness (1 is big), 3 version
//   BundleEntryProto:  1 dtype, 2 shape, 3 shard_id, 4 offset, 5 size,
//                      6 crc32c (fixed32, masked), 7 slices
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "holdfast/base/bytes.h"
#include "holdfast/base/crc32c.h"
#include "holdfast/state/tensor.h"
#include "holdfast/tensorflow/slice_key.h"

namespace holdfast::bundle {

struct BundleHeader {
  int64_t shards = 1;
  bool big_endian = false;
};

// Fails with kCorrupt if the bytes are no header, and with kUnsupported if the header
// asks for a newer reader.
Result<BundleHeader> decode_header(ByteView bytes);
std::string encode_header(const BundleHeader& header);

// TensorFlow's number of the dtype of strings.
inline constexpr uint64_t kStringType = 7;
// And that of variants: lists, sets and other values that an operation of TensorFlow encodes.
inline constexpr uint64_t kVariantType = 21;

struct BundleEntry {
  uint64_t type = 0;  // TensorFlow's number of the dtype
  Shape shape{};
  // Why the shape cannot be read, and so is not set: it has too many dimensions. Empty if
  // it can be read.
  std::string odd_shape{};
  int64_t shard = 0;
  int64_t offset = 0;
  int64_t size = 0;
  // The CRC of the stored bytes. nullopt if the writer left it out.
  std::optional<Crc32c> crc{};
  // The offset of the 4 bytes of the CRC in the encoded entry.
  int64_t crc_offset = 0;
  // If there are any, the entry stands for a partitioned variable and has no bytes of
  // its own.
  std::vector<std::vector<SliceExtent>> slices{};
};

// Fails with kCorrupt if the bytes are no entry.
Result<BundleEntry> decode_entry(ByteView bytes);
std::string encode_entry(const BundleEntry& entry);

// The dtype that TensorFlow calls by this number. Fails with kUnsupported, giving
// TensorFlow's name, for those that state/tensor.h does not have.
Result<Dtype> dtype_of(uint64_t type);
// TensorFlow's number of the dtype, or nullopt if it does not have the dtype (F8_E8M0).
std::optional<uint64_t> type_of(Dtype dtype);

}  // namespace holdfast::bundle
