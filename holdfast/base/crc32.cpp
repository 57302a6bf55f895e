#include "holdfast/base/crc32.h"

#include <isa-l/crc.h>

#include "holdfast/base/crc_polynomial_internal.h"

namespace holdfast {
namespace {

using Arithmetic32 = CrcArithmetic<0xedb88320>;

}  // namespace

Crc32 crc32(ByteView bytes) { return crc32_extend(0, bytes); }

Crc32 crc32_extend(Crc32 of_a, ByteView b) {
  // ISA-L inverts the register before and after, so we do not.
  return crc32_gzip_refl(of_a, reinterpret_cast<const unsigned char*>(b.data()),
                         b.size());
}

Crc32 crc32_change(ByteView mask, uint64_t bytes_after) {
  // The CRC of the mask as a register that begins with 0 and is not inverted.
  const Crc32 reg =
      crc32(mask) ^ Arithmetic32::shift(~uint32_t{0}, mask.size()) ^ ~uint32_t{0};
  return Arithmetic32::shift(reg, bytes_after);
}

std::vector<uint64_t> crc32_find_flips(Crc32 difference, uint64_t bytes) {
  return Arithmetic32::find_flips(difference, bytes);
}

}  // namespace holdfast
