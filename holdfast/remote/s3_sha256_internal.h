// SHA-256 (FIPS 180-4) and HMAC-SHA-256 (RFC 2104), for signatures. Pure functions.
#pragma once

#include <array>

#include "holdfast/base/bytes.h"

namespace holdfast {

using Sha256 = std::array<std::byte, 32>;

Sha256 sha256(ByteView bytes);
Sha256 hmac_sha256(ByteView key, ByteView message);

}  // namespace holdfast
