// The arithmetic behind combining and shifting CRCs, for any 32-bit polynomial. For
// crc32.cpp and crc32c.cpp.
//
// A CRC is a polynomial over GF(2) modulo P. Appending a byte multiplies it by x^8, so
// appending n zero bytes multiplies it by x^(8n), which takes log2(n) multiplications.
#pragma once

#include <array>
#include <cstdint>

namespace holdfast {

// kPolynomial is P without x^32. Polynomials are as CRC registers hold them: bit 31 is
// the coefficient of x^0, bit 0 is the coefficient of x^31.
template <uint32_t kPolynomial>
class CrcArithmetic {
 public:
  // The register after `count` zero bytes.
  static constexpr uint32_t shift(uint32_t reg, uint64_t count) {
    for (size_t k = 0; count != 0; ++k, count >>= 1) {
      if ((count & 1) != 0) reg = multiply(reg, kPowers[k]);
    }
    return reg;
  }

 private:
  static constexpr uint32_t kOne = 0x80000000;

  static constexpr uint32_t times_x(uint32_t p) {
    return (p >> 1) ^ ((p & 1) != 0 ? kPolynomial : 0);
  }

  static constexpr uint32_t multiply(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (; a != 0; a <<= 1, b = times_x(b)) {
      if ((a & kOne) != 0) product ^= b;
    }
    return product;
  }

  // Entry k is x^(8 * 2^k). Appending 2^k zero bytes multiplies a register by it.
  static constexpr std::array<uint32_t, 64> make_powers() {
    std::array<uint32_t, 64> powers{};
    uint32_t power = kOne >> 8;
    for (uint32_t& entry : powers) {
      entry = power;
      power = multiply(power, power);
    }
    return powers;
  }

  static const std::array<uint32_t, 64> kPowers;
};

template <uint32_t kPolynomial>
constexpr std::array<uint32_t, 64> CrcArithmetic<kPolynomial>::kPowers = make_powers();

}  // namespace holdfast
