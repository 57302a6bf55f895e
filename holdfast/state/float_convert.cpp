#include "holdfast/state/float_convert.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "holdfast/base/result.h"

namespace holdfast {
namespace {

float from_bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

uint16_t to_bf16(float value) {
  if (std::isnan(value)) return 0x7FC0;
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t half_and_odd = 0x7FFF + ((bits >> 16) & 1);
  return static_cast<uint16_t>((bits + half_and_odd) >> 16);
}

// F16 has 5 bits of exponent with bias 15, and 10 bits of mantissa.
float from_f16(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000U} << 16;
  const uint32_t exponent = (bits >> 10) & 0x1F;
  const uint32_t mantissa = bits & 0x3FF;
  if (exponent == 0) {  // subnormal: a multiple of 2^-24
    const float value = std::ldexp(static_cast<float>(mantissa), -24);
    return sign != 0 ? -value : value;
  }
  const uint32_t wide = exponent == 0x1F ? 0xFF : exponent + (127 - 15);
  return std::bit_cast<float>(sign | (wide << 23) | (mantissa << 13));
}

// Shifts right and rounds to the nearest, and to the even one of two.
uint32_t round_shift(uint32_t value, uint32_t shift) {
  const uint32_t half = uint32_t{1} << (shift - 1);
  return (value + half - 1 + ((value >> shift) & 1)) >> shift;
}

uint16_t to_f16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t size = bits & 0x7FFF'FFFF;
  uint32_t rounded = 0;
  if (size > 0x7F80'0000) {
    rounded = 0x7E00;  // NaN
  } else if (size >= 0x4780'0000) {
    rounded = 0x7C00;  // at least 2^16, which is beyond the largest F16
  } else if (size >= 0x3880'0000) {
    // Normal. A mantissa that is rounded up to 2 carries into the exponent.
    rounded = round_shift(size - (uint32_t{127 - 15} << 23), 13);
  } else if (size >= 0x3300'0000) {
    // Subnormal: the mantissa with its leading bit, as a multiple of 2^-24.
    const uint32_t exponent = size >> 23;
    rounded = round_shift((size & 0x7F'FFFF) | 0x80'0000, 126 - exponent);
  }
  return static_cast<uint16_t>(sign | rounded);
}

// A float from which to_f16() gives the F16 that is nearest to `value`: inexact values
// are cut off and get an odd last bit, which no tie has.
float round_to_odd(double value) {
  const auto nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || std::isnan(value)) return nearest;
  auto bits = std::bit_cast<uint32_t>(nearest);
  if (std::fabs(static_cast<double>(nearest)) > std::fabs(value)) --bits;
  return std::bit_cast<float>(bits | 1);
}

template <typename T>
T load(ByteView bytes, size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

double load_number(Dtype dtype, ByteView bytes, size_t index) {
  switch (dtype) {
    case Dtype::kF16: return from_f16(load<uint16_t>(bytes, index));
    case Dtype::kBf16: return from_bf16(load<uint16_t>(bytes, index));
    case Dtype::kF32: return load<float>(bytes, index);
    default: return load<double>(bytes, index);
  }
}

template <typename T>
void store(T value, ByteSpan bytes, size_t index) {
  std::memcpy(bytes.data() + index * sizeof(T), &value, sizeof(T));
}

void store_number(double value, Dtype dtype, ByteSpan bytes, size_t index) {
  const auto single = static_cast<float>(value);
  switch (dtype) {
    case Dtype::kF16: return store(to_f16(round_to_odd(value)), bytes, index);
    case Dtype::kBf16: return store(to_bf16(single), bytes, index);
    case Dtype::kF32: return store(single, bytes, index);
    default: return store(value, bytes, index);
  }
}

}  // namespace

bool is_convertible(Dtype dtype) {
  return dtype == Dtype::kF16 || dtype == Dtype::kBf16 || dtype == Dtype::kF32 ||
         dtype == Dtype::kF64;
}

void convert_floats(Dtype from_dtype, ByteView from, Dtype into_dtype, ByteSpan into) {
  HOLDFAST_CHECK(is_convertible(from_dtype) && is_convertible(into_dtype), "{} to {}",
                 name_of(from_dtype), name_of(into_dtype));
  const size_t count = into.size() / static_cast<size_t>(bytes_of(into_dtype));
  HOLDFAST_CHECK(from.size() == count * static_cast<size_t>(bytes_of(from_dtype)),
                 "{} bytes to {}", from.size(), into.size());
  for (size_t i = 0; i < count; ++i) {
    store_number(load_number(from_dtype, from, i), into_dtype, into, i);
  }
}

}  // namespace holdfast
