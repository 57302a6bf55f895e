// CRC-32 (IEEE 802.3; the CRC of zip, gzip and PNG): the checksum of records in
// archives that others wrote. Our own digests are CRC32C (crc32c.h).
//
// Values are the finished ones: crc32("123456789") is cbf43926, and the CRC of no bytes
// is 0. All functions are pure.
#pragma once

#include <cstdint>

#include "holdfast/base/bytes.h"

namespace holdfast {

using Crc32 = uint32_t;

// The CRC of bytes of any length, at memory speed.
Crc32 crc32(ByteView bytes);

// The CRC of the bytes a followed by the bytes b, given the CRC of a.
Crc32 crc32_extend(Crc32 of_a, ByteView b);

}  // namespace holdfast
