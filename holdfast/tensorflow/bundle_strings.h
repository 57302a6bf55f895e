// String tensors of TensorFlow. They are no tensors to us but objects: a scalar is
// bytes, and a tensor with dimensions is a list of them, nested as the shape says.
//
// They are stored as: a varint for the length of each string, the masked CRC32C of the
// lengths (as numbers of 4 bytes, or of 8 if they need it), then the bytes of all
// strings. The CRC of the whole covers the lengths in the same way, the CRC of the
// lengths, and the bytes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "holdfast/base/crc32c.h"
#include "holdfast/state/box.h"
#include "holdfast/state/object.h"

namespace holdfast::bundle {

// Limits what the strings of one checkpoint may take in memory.
inline constexpr int64_t kMaxStringBytes = int64_t{256} << 20;
inline constexpr int64_t kMaxStrings = int64_t{1} << 22;

struct StringTensor {
  Shape shape{};
  std::vector<ByteView> strings{};  // row-major
};

struct DecodedStrings {
  std::vector<ByteView> strings{};  // in the bytes that were decoded
  Crc32c crc = 0;
};

// Decodes `count` strings. Fails with kCorrupt if the bytes are not so many strings, or
// if the checksum of their lengths is wrong.
Result<DecodedStrings> decode_strings(ByteView bytes, int64_t count, bool big_endian);

// Computes the CRC of a tensor of variants, of which nothing else is read. Each variant is a
// varint for its length, its bytes, and the masked CRC32C of all before it, with lengths as
// numbers of 8 bytes. Fails with kCorrupt if the bytes are no variants, or if one of these
// checksums is wrong.
Result<Crc32c> crc_of_variants(ByteView bytes, bool big_endian);

struct EncodedStrings {
  std::string bytes{};
  Crc32c crc = 0;
};
EncodedStrings encode_strings(const std::vector<ByteView>& strings);

// A shape such as [0, 3] cannot be told from nested lists. It is a dict with the shape.
Object object_of(const StringTensor& tensor);
// The string tensor that object_of() makes this object of; nullopt if there is none.
// The strings are in the object.
std::optional<StringTensor> strings_in(const Object& object);

}  // namespace holdfast::bundle
