#include "holdfast/base/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>
#include <array>

namespace holdfast {
namespace {

// Polynomials over GF(2) modulo P, as CRC registers hold them: bit 31 is the
// coefficient of x^0, bit 0 is the coefficient of x^31. kPolynomial is P without x^32.
using Polynomial = uint32_t;
constexpr Polynomial kPolynomial = 0x82f63b78;
constexpr Polynomial kOne = 0x80000000;

constexpr Polynomial times_x(Polynomial p) {
  return (p >> 1) ^ ((p & 1) != 0 ? kPolynomial : 0);
}

constexpr Polynomial multiply(Polynomial a, Polynomial b) {
  Polynomial product = 0;
  for (; a != 0; a <<= 1, b = times_x(b)) {
    if ((a & kOne) != 0) product ^= b;
  }
  return product;
}

// Entry k is x^(8 * 2^k). Appending 2^k zero bytes multiplies a register by it.
constexpr std::array<Polynomial, 64> make_powers() {
  std::array<Polynomial, 64> powers{};
  Polynomial power = kOne >> 8;
  for (Polynomial& entry : powers) {
    entry = power;
    power = multiply(power, power);
  }
  return powers;
}

constexpr auto kPowers = make_powers();

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
  for (size_t k = 0; length_of_b != 0; ++k, length_of_b >>= 1) {
    if ((length_of_b & 1) != 0) of_a = multiply(of_a, kPowers[k]);
  }
  return of_a ^ of_b;
}

}  // namespace holdfast
