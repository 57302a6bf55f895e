// TensorFlow stores CRC32Cs masked, because the CRC of bytes that contain their own CRC
// is a poor checksum.
#pragma once

#include <bit>

#include "holdfast/base/crc32c.h"

namespace holdfast::bundle {

inline constexpr uint32_t kMaskDelta = 0xa282ead8;

inline uint32_t mask_crc(Crc32c crc) { return std::rotr(crc, 15) + kMaskDelta; }
inline Crc32c unmask_crc(uint32_t masked) { return std::rotl(masked - kMaskDelta, 15); }

}  // namespace holdfast::bundle
