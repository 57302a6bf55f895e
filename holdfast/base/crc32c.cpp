#include "holdfast/base/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>

#include "holdfast/base/crc_polynomial_internal.h"

namespace holdfast {
namespace {

using Arithmetic32c = CrcArithmetic<0x82f63b78>;

// ISA-L counts bytes in an int, so longer input goes to it in parts of this size.
constexpr size_t kMostAtOnce = size_t{1} << 30;

}  // namespace

Crc32c crc32c(ByteView bytes) { return crc32c_extend(0, bytes); }

Crc32c crc32c_extend(Crc32c of_a, ByteView b) {
  uint32_t reg = ~of_a;
  while (!b.empty()) {
    const size_t count = std::min(b.size(), kMostAtOnce);
    // ISA-L only reads the bytes, although its parameter is not const.
    auto* data =
        const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(b.data()));
    reg = crc32_iscsi(data, static_cast<int>(count), reg);
    b = b.subspan(count);
  }
  return ~reg;
}

Crc32c crc32c_combine(Crc32c of_a, Crc32c of_b, uint64_t length_of_b) {
  // The inversions before and after cancel out, so finished values combine in the same
  // way as registers.
  return Arithmetic32c::shift(of_a, length_of_b) ^ of_b;
}

Crc32c crc32c_change(ByteView mask, uint64_t bytes_after) {
  // The CRC of the mask as a register that begins with 0 and is not inverted.
  const Crc32c reg =
      crc32c(mask) ^ Arithmetic32c::shift(~uint32_t{0}, mask.size()) ^ ~uint32_t{0};
  return Arithmetic32c::shift(reg, bytes_after);
}

std::vector<uint64_t> crc32c_find_flips(Crc32c difference, uint64_t bytes) {
  return Arithmetic32c::find_flips(difference, bytes);
}

}  // namespace holdfast
