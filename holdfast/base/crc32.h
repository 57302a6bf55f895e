// CRC-32 (IEEE 802.3; the CRC of zip, gzip and PNG): what archives keep of their records.
// Our own digests are CRC32C (crc32c.h).
//
// Values are the finished ones: crc32("123456789") is cbf43926, that of no bytes is 0.
// All functions are pure.
#pragma once

#include <cstdint>

#include "holdfast/base/bytes.h"

namespace holdfast {

using Crc32 = uint32_t;

// At memory speed, for any length.
Crc32 crc32(ByteView bytes);

// The value of a + b, given that of a.
Crc32 crc32_extend(Crc32 of_a, ByteView b);

}  // namespace holdfast
