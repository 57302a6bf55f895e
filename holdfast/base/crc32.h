// CRC-32 (IEEE 802.3; the CRC of zip, gzip and PNG): the checksum of records in
// archives that others wrote. Our own digests are CRC32C (crc32c.h).
//
// Values are the finished ones: crc32("123456789") is cbf43926, and the CRC of no bytes
// is 0. All functions are pure.
#pragma once

#include <cstdint>
#include <vector>

#include "holdfast/base/bytes.h"

namespace holdfast {

using Crc32 = uint32_t;

// The CRC of bytes of any length, at memory speed.
Crc32 crc32(ByteView bytes);

// The CRC of the bytes a followed by the bytes b, given the CRC of a.
Crc32 crc32_extend(Crc32 of_a, ByteView b);

// What changes in the CRC of a longer record if some of its bytes are XORed with `mask`
// and `bytes_after` bytes follow them: the new CRC is the old one XOR this value. It needs
// neither the old bytes nor the others, so its time grows only with the logarithm of
// bytes_after.
Crc32 crc32_change(ByteView mask, uint64_t bytes_after);

// The bits of a record whose flip alone changes its CRC by `difference`, which is the
// CRC before XOR the CRC after. Bit b of byte i is 8 * i + b. There is at most one
// in a record of less than 512 MiB. Takes milliseconds for a gigabyte.
std::vector<uint64_t> crc32_find_flips(Crc32 difference, uint64_t bytes);

}  // namespace holdfast
