// CRC32C (Castagnoli; the CRC of iSCSI, RFC 3720): the digest of chunks and shards.
//
// Values are the finished ones: crc32c("123456789") is e3069283, and the digest of no
// bytes is 0. The digest finds every burst of up to 32 wrong bits; it is no defence
// against an adversary. All functions are pure.
#pragma once

#include <cstdint>
#include <vector>

#include "holdfast/base/bytes.h"

namespace holdfast {

using Crc32c = uint32_t;

// The digest of bytes of any length, at memory speed.
Crc32c crc32c(ByteView bytes);

// The digest of the bytes a followed by the bytes b, given the digest of a.
Crc32c crc32c_extend(Crc32c of_a, ByteView b);

// The digest of the bytes a followed by the bytes b, given the digest of each. It needs
// no bytes, so its time grows only with the logarithm of b's length.
Crc32c crc32c_combine(Crc32c of_a, Crc32c of_b, uint64_t length_of_b);

// What changes in the digest of a longer record if some of its bytes are XORed with `mask`
// and `bytes_after` bytes follow them: the new digest is the old one XOR this value. It needs
// neither the old bytes nor the others, so its time grows only with the logarithm of
// bytes_after.
Crc32c crc32c_change(ByteView mask, uint64_t bytes_after);

// The bits of a record whose flip alone changes its digest by `difference`, which is the
// digest before XOR the digest after. Bit b of byte i is 8 * i + b. There is at most one
// in a record of less than 256 MiB. Takes milliseconds for a gigabyte.
std::vector<uint64_t> crc32c_find_flips(Crc32c difference, uint64_t bytes);

}  // namespace holdfast
