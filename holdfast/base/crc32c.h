// CRC32C (Castagnoli; the CRC of iSCSI, RFC 3720): the digest of chunks and shards.
//
// Values are the finished ones: crc32c("123456789") is e3069283, that of no bytes is 0.
// Finds every burst of up to 32 bits; not a defence against an adversary. All functions
// are pure.
#pragma once

#include <cstdint>

#include "holdfast/base/bytes.h"

namespace holdfast {

using Crc32c = uint32_t;

// At memory speed, for any length.
Crc32c crc32c(ByteView bytes);

// The digest of a + b, given that of a.
Crc32c crc32c_extend(Crc32c of_a, ByteView b);

// The digest of a + b, given those of a and of b, without their bytes: time grows with
// the logarithm of b's length only.
Crc32c crc32c_combine(Crc32c of_a, Crc32c of_b, uint64_t length_of_b);

// The same as crc32c_extend by a table, on any machine. Slow: tests hold it against the
// fast one.
Crc32c crc32c_extend_portable(Crc32c of_a, ByteView b);

}  // namespace holdfast
