#include <algorithm>
#include <array>
#include <cctype>

#include "holdfast/state/tensor.h"

namespace holdfast {
namespace {

using enum DtypeKind;

//                                                        bytes sign exp mantissa parts
constexpr std::array kInfos{
    DtypeInfo{Dtype::kBool, "BOOL", kBool, 1, 0, 0, 8, 1},
    DtypeInfo{Dtype::kU8, "U8", kUnsigned, 1, 0, 0, 8, 1},
    DtypeInfo{Dtype::kU16, "U16", kUnsigned, 2, 0, 0, 16, 1},
    DtypeInfo{Dtype::kU32, "U32", kUnsigned, 4, 0, 0, 32, 1},
    DtypeInfo{Dtype::kU64, "U64", kUnsigned, 8, 0, 0, 64, 1},
    DtypeInfo{Dtype::kI8, "I8", kSigned, 1, 1, 0, 7, 1},
    DtypeInfo{Dtype::kI16, "I16", kSigned, 2, 1, 0, 15, 1},
    DtypeInfo{Dtype::kI32, "I32", kSigned, 4, 1, 0, 31, 1},
    DtypeInfo{Dtype::kI64, "I64", kSigned, 8, 1, 0, 63, 1},
    DtypeInfo{Dtype::kF16, "F16", kFloat, 2, 1, 5, 10, 1},
    DtypeInfo{Dtype::kBf16, "BF16", kFloat, 2, 1, 8, 7, 1},
    DtypeInfo{Dtype::kF32, "F32", kFloat, 4, 1, 8, 23, 1},
    DtypeInfo{Dtype::kF64, "F64", kFloat, 8, 1, 11, 52, 1},
    DtypeInfo{Dtype::kF8E4m3fn, "F8_E4M3", kFloat, 1, 1, 4, 3, 1},
    DtypeInfo{Dtype::kF8E5m2, "F8_E5M2", kFloat, 1, 1, 5, 2, 1},
    DtypeInfo{Dtype::kF8E4m3fnuz, "F8_E4M3FNUZ", kFloat, 1, 1, 4, 3, 1},
    DtypeInfo{Dtype::kF8E5m2fnuz, "F8_E5M2FNUZ", kFloat, 1, 1, 5, 2, 1},
    DtypeInfo{Dtype::kF8E8m0, "F8_E8M0", kFloat, 1, 0, 8, 0, 1},
    DtypeInfo{Dtype::kC64, "C64", kComplex, 8, 1, 8, 23, 2},
    DtypeInfo{Dtype::kC128, "C128", kComplex, 16, 1, 11, 52, 2},
};

struct Alias {
  std::string_view name;
  Dtype dtype;
};

// The names that torch and NumPy use.
constexpr std::array kAliases{
    Alias{"uint8", Dtype::kU8},
    Alias{"uint16", Dtype::kU16},
    Alias{"uint32", Dtype::kU32},
    Alias{"uint64", Dtype::kU64},
    Alias{"int8", Dtype::kI8},
    Alias{"int16", Dtype::kI16},
    Alias{"int32", Dtype::kI32},
    Alias{"int64", Dtype::kI64},
    Alias{"float16", Dtype::kF16},
    Alias{"half", Dtype::kF16},
    Alias{"bfloat16", Dtype::kBf16},
    Alias{"float32", Dtype::kF32},
    Alias{"float", Dtype::kF32},
    Alias{"float64", Dtype::kF64},
    Alias{"double", Dtype::kF64},
    Alias{"float8_e4m3fn", Dtype::kF8E4m3fn},
    Alias{"float8_e5m2", Dtype::kF8E5m2},
    Alias{"float8_e4m3fnuz", Dtype::kF8E4m3fnuz},
    Alias{"float8_e5m2fnuz", Dtype::kF8E5m2fnuz},
    Alias{"float8_e8m0fnu", Dtype::kF8E8m0},
    Alias{"complex64", Dtype::kC64},
    Alias{"complex128", Dtype::kC128},
};

bool same_word(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, [](unsigned char x, unsigned char y) {
    return std::tolower(x) == std::tolower(y);
  });
}

}  // namespace

std::span<const DtypeInfo> all_dtypes() { return kInfos; }

const DtypeInfo& info(Dtype dtype) { return kInfos[static_cast<size_t>(dtype)]; }

Result<Dtype> parse_dtype(std::string_view name) {
  for (const DtypeInfo& known : kInfos) {
    if (same_word(known.name, name)) return known.dtype;
  }
  for (const Alias& alias : kAliases) {
    if (same_word(alias.name, name)) return alias.dtype;
  }
  return unsupported("dtype \"{}\": not known; expected one like BF16 or F32", name);
}

}  // namespace holdfast
