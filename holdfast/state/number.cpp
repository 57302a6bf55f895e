#include "holdfast/state/number.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace holdfast {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// What the largest exponent of a small float means.
enum class Top {
  kIeee,       // infinities and NaNs
  kOneNan,     // numbers, except that the largest mantissa is a NaN
  kUnsigned0,  // numbers; the only NaN has the bits that -0 would have
};

struct SmallFloat {
  int exponent_bits;
  int mantissa_bits;
  int bias;
  Top top;
};

double decode(const SmallFloat& kind, uint64_t bits) {
  const int width = 1 + kind.exponent_bits + kind.mantissa_bits;
  const uint64_t last_exponent = (uint64_t{1} << kind.exponent_bits) - 1;
  const uint64_t last_mantissa = (uint64_t{1} << kind.mantissa_bits) - 1;
  const uint64_t mantissa = bits & last_mantissa;
  const uint64_t exponent = (bits >> kind.mantissa_bits) & last_exponent;
  const bool negative = ((bits >> (width - 1)) & 1) != 0;
  if (kind.top == Top::kUnsigned0 && negative && exponent == 0 && mantissa == 0) {
    return kNan;
  }
  const bool last = exponent == last_exponent;
  if (kind.top == Top::kIeee && last) {
    if (mantissa != 0) return kNan;
    return negative ? -kInfinity : kInfinity;
  }
  if (kind.top == Top::kOneNan && last && mantissa == last_mantissa) return kNan;
  const uint64_t digits =
      exponent == 0 ? mantissa : mantissa | (uint64_t{1} << kind.mantissa_bits);
  const int power = std::max(static_cast<int>(exponent), 1) - kind.bias;
  const double size =
      std::ldexp(static_cast<double>(digits), power - kind.mantissa_bits);
  return negative ? -size : size;
}

int64_t to_signed(Dtype dtype, uint64_t bits) {
  const int unused = 64 - 8 * static_cast<int>(bytes_of(dtype));
  return static_cast<int64_t>(bits << unused) >> unused;
}

uint64_t to_unsigned(Dtype dtype, uint64_t bits) {
  const int unused = 64 - 8 * static_cast<int>(bytes_of(dtype));
  return bits << unused >> unused;
}

uint64_t load(ByteView bytes) {
  uint64_t bits = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    bits |= static_cast<uint64_t>(bytes[i]) << (8 * i);
  }
  return bits;
}

Gap gap_of(double distance, double largest) {
  if (std::isnan(distance) || std::isnan(largest)) return {kNan, kNan};
  if (std::isinf(distance)) return {kInfinity, kInfinity};
  return {distance, largest == 0 ? 0 : distance / largest};
}

Gap signed_gap(int64_t a, int64_t b) {
  const auto size = [](int64_t x) {
    return x < 0 ? -static_cast<uint64_t>(x) : static_cast<uint64_t>(x);
  };
  const uint64_t distance =
      static_cast<uint64_t>(std::max(a, b)) - static_cast<uint64_t>(std::min(a, b));
  return gap_of(static_cast<double>(distance),
                static_cast<double>(std::max(size(a), size(b))));
}

Gap float_gap(double a, double b) {
  if (a == b) return {};  // also for two equal infinities
  return gap_of(std::abs(a - b), std::max(std::abs(a), std::abs(b)));
}

Gap complex_gap(Dtype dtype, ByteView a, ByteView b) {
  const size_t half = a.size() / 2;
  const auto part = [&](ByteView x, size_t k) {
    return to_double(dtype, load(x.subspan(k * half, half)));
  };
  const double ar = part(a, 0), ai = part(a, 1), br = part(b, 0), bi = part(b, 1);
  if (std::isnan(ar) || std::isnan(ai) || std::isnan(br) || std::isnan(bi)) {
    return {kNan, kNan};  // hypot() would ignore a NaN beside an infinity
  }
  const double real = ar == br ? 0 : ar - br, imaginary = ai == bi ? 0 : ai - bi;
  if (real == 0 && imaginary == 0) return {};
  return gap_of(std::hypot(real, imaginary),
                std::max(std::hypot(ar, ai), std::hypot(br, bi)));
}

}  // namespace

double to_double(Dtype dtype, uint64_t bits) {
  switch (dtype) {
    case Dtype::kF32:
    case Dtype::kC64: return std::bit_cast<float>(static_cast<uint32_t>(bits));
    case Dtype::kF64:
    case Dtype::kC128: return std::bit_cast<double>(bits);
    case Dtype::kF16: return decode({5, 10, 15, Top::kIeee}, bits);
    case Dtype::kBf16:
      return std::bit_cast<float>(static_cast<uint32_t>(bits & 0xffff) << 16);
    case Dtype::kF8E4m3fn: return decode({4, 3, 7, Top::kOneNan}, bits);
    case Dtype::kF8E5m2: return decode({5, 2, 15, Top::kIeee}, bits);
    case Dtype::kF8E4m3fnuz: return decode({4, 3, 8, Top::kUnsigned0}, bits);
    case Dtype::kF8E5m2fnuz: return decode({5, 2, 16, Top::kUnsigned0}, bits);
    case Dtype::kF8E8m0: {
      const int exponent = static_cast<int>(bits & 0xff);
      return exponent == 0xff ? kNan : std::ldexp(1.0, exponent - 127);
    }
    case Dtype::kBool: return (bits & 0xff) != 0 ? 1 : 0;
    default: break;
  }
  return info(dtype).kind == DtypeKind::kSigned
             ? static_cast<double>(to_signed(dtype, bits))
             : static_cast<double>(to_unsigned(dtype, bits));
}

Gap gap_between(Dtype dtype, ByteView a, ByteView b) {
  switch (info(dtype).kind) {
    case DtypeKind::kSigned:
      return signed_gap(to_signed(dtype, load(a)), to_signed(dtype, load(b)));
    case DtypeKind::kUnsigned: {
      const uint64_t x = load(a), y = load(b);
      return gap_of(static_cast<double>(std::max(x, y) - std::min(x, y)),
                    static_cast<double>(std::max(x, y)));
    }
    case DtypeKind::kComplex: return complex_gap(dtype, a, b);
    default: return float_gap(to_double(dtype, load(a)), to_double(dtype, load(b)));
  }
}

}  // namespace holdfast
