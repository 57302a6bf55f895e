// SHA-256 (FIPS 180-4) and HMAC-SHA-256 (RFC 2104) for signatures, computed by OpenSSL.
//
// Both fail with kUnsupported where OpenSSL is configured to provide no SHA-256. Safe from
// all threads.
#pragma once

#include <array>

#include "holdfast/base/bytes.h"
#include "holdfast/base/result.h"

namespace holdfast {

using Sha256 = std::array<std::byte, 32>;

Result<Sha256> sha256(ByteView bytes);
Result<Sha256> hmac_sha256(ByteView key, ByteView message);

}  // namespace holdfast
