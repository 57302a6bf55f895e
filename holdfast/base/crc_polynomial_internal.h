// The arithmetic behind combining and shifting CRCs, for any 32-bit polynomial. For
// crc32.cpp and crc32c.cpp.
//
// A CRC is a polynomial over GF(2) modulo P. Appending a byte multiplies it by x^8, so
// appending n zero bytes multiplies it by x^(8n), which takes log2(n) multiplications.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

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

  // The bits of a record of `bytes` bytes whose flip alone changes the CRC by
  // `difference`. Bit b of byte i is 8 * i + b.
  //
  // Let q count the bits from the end of the record, in the order in which the register
  // takes them in. The flip of bit q changes the CRC by P0 * x^q, where P0 belongs to the
  // last bit. Writing q = a * m - b, with m of about the square root of all bits, the
  // numbers difference * x^b for all b < m are compared with P0 * x^(a * m) for all a.
  static std::vector<uint64_t> find_flips(uint32_t difference, uint64_t bytes) {
    uint32_t step = 8;
    while (step < 1 << 16 && uint64_t{step} * step < 8 * bytes) step *= 2;
    std::vector<std::pair<uint32_t, uint32_t>> shifted;
    for (uint32_t b = 0, value = difference; b < step; ++b, value = times_x(value)) {
      shifted.emplace_back(value, b);
    }
    std::ranges::sort(shifted);
    const uint32_t jump = shift(kOne, step / 8);
    std::vector<uint64_t> found;
    uint32_t value = kPolynomial;
    for (uint64_t q = 0; q < 8 * bytes + step; q += step) {
      const std::pair first{value, uint32_t{0}};
      for (auto at = std::ranges::lower_bound(shifted, first);
           at != shifted.end() && at->first == value; ++at) {
        if (at->second > q || q - at->second >= 8 * bytes) continue;
        const uint64_t from_end = q - at->second;
        found.push_back(8 * (bytes - 1 - from_end / 8) + 7 - from_end % 8);
      }
      value = multiply(value, jump);
    }
    return found;
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
