// Element types: name, size and bit fields. Names are those of safetensors, as far as
// it has the type. The bit fields are for code that changes or interprets single bits.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "holdfast/base/result.h"

namespace holdfast {

enum class Dtype : uint8_t {
  kBool,
  kU8,
  kU16,
  kU32,
  kU64,
  kI8,
  kI16,
  kI32,
  kI64,
  kF16,
  kBf16,
  kF32,
  kF64,
  kF8E4m3fn,
  kF8E5m2,
  kF8E4m3fnuz,
  kF8E5m2fnuz,
  kF8E8m0,
  kC64,
  kC128,
};

enum class DtypeKind : uint8_t { kBool, kUnsigned, kSigned, kFloat, kComplex };

// What the bits of one element mean, from the lowest up: mantissa, exponent, sign. An
// integer is all mantissa, with its sign bit, if it has one, at the top. A complex
// number is two components.
struct DtypeInfo {
  Dtype dtype;
  std::string_view name;  // "BF16"
  DtypeKind kind;
  int bytes;      // one element
  int sign_bits;  // of one component
  int exponent_bits;
  int mantissa_bits;
  int components;  // 2 for complex, else 1
};

// All dtypes, in the order of the enum.
std::span<const DtypeInfo> all_dtypes();
const DtypeInfo& info(Dtype dtype);

inline std::string_view name_of(Dtype dtype) { return info(dtype).name; }
inline int64_t bytes_of(Dtype dtype) { return info(dtype).bytes; }

// Accepts the safetensors name in any case ("bf16") and torch's name ("bfloat16").
Result<Dtype> parse_dtype(std::string_view name);

}  // namespace holdfast
