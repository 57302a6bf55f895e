#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <set>
#include <string>

#include "holdfast/state/tensor.h"

namespace holdfast {
namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

TEST(DtypeTest, TableIsInTheOrderOfTheEnum) {
  const auto types = all_dtypes();
  ASSERT_EQ(types.size(), static_cast<size_t>(Dtype::kC128) + 1);
  for (size_t i = 0; i < types.size(); ++i) {
    EXPECT_EQ(static_cast<size_t>(types[i].dtype), i) << types[i].name;
    EXPECT_EQ(&info(types[i].dtype), &types[i]);
    EXPECT_EQ(name_of(types[i].dtype), types[i].name);
    EXPECT_EQ(bytes_of(types[i].dtype), types[i].bytes);
  }
}

TEST(DtypeTest, BitFieldsAddUpToTheSize) {
  for (const DtypeInfo& type : all_dtypes()) {
    const int component = type.sign_bits + type.exponent_bits + type.mantissa_bits;
    EXPECT_EQ(component * type.components, 8 * type.bytes) << type.name;
  }
}

TEST(DtypeTest, FieldsFitTheirKind) {
  for (const DtypeInfo& type : all_dtypes()) {
    const bool floating =
        type.kind == DtypeKind::kFloat || type.kind == DtypeKind::kComplex;
    EXPECT_EQ(type.exponent_bits > 0, floating) << type.name;
    EXPECT_EQ(type.components, type.kind == DtypeKind::kComplex ? 2 : 1) << type.name;
    const bool no_sign = type.kind == DtypeKind::kBool ||
                         type.kind == DtypeKind::kUnsigned ||
                         type.dtype == Dtype::kF8E8m0;
    EXPECT_EQ(type.sign_bits, no_sign ? 0 : 1) << type.name;
  }
}

TEST(DtypeTest, SizesAreThoseThatTheNamesSay) {
  for (const DtypeInfo& type : all_dtypes()) {
    if (type.dtype == Dtype::kBool) {
      EXPECT_EQ(type.bytes, 1);
      continue;
    }
    const size_t digits = type.name.find_first_of("0123456789");
    ASSERT_NE(digits, std::string_view::npos) << type.name;
    EXPECT_EQ(std::stoi(std::string(type.name.substr(digits))), 8 * type.bytes);
  }
}

TEST(DtypeTest, FloatsDivideAsTheHardwareDoes) {
  EXPECT_EQ(info(Dtype::kF32).mantissa_bits, std::numeric_limits<float>::digits - 1);
  EXPECT_EQ(info(Dtype::kF64).mantissa_bits, std::numeric_limits<double>::digits - 1);
  EXPECT_EQ(info(Dtype::kBf16).exponent_bits, info(Dtype::kF32).exponent_bits);
  EXPECT_EQ(info(Dtype::kF16).exponent_bits, 5);
  EXPECT_EQ(info(Dtype::kC64).mantissa_bits, info(Dtype::kF32).mantissa_bits);
  EXPECT_EQ(info(Dtype::kC128).mantissa_bits, info(Dtype::kF64).mantissa_bits);
}

TEST(DtypeTest, NamesAreUniqueAndRoundTripInAnyCase) {
  std::set<std::string> seen;
  for (const DtypeInfo& type : all_dtypes()) {
    EXPECT_TRUE(seen.insert(lower(type.name)).second) << type.name;
    EXPECT_EQ(parse_dtype(type.name).value(), type.dtype);
    EXPECT_EQ(parse_dtype(lower(type.name)).value(), type.dtype);
  }
}

TEST(DtypeTest, NamesOfTorchAndNumpyAreUnderstood) {
  const std::vector<std::pair<std::string_view, Dtype>> names{
      {"bool", Dtype::kBool},
      {"uint8", Dtype::kU8},
      {"uint16", Dtype::kU16},
      {"uint32", Dtype::kU32},
      {"uint64", Dtype::kU64},
      {"int8", Dtype::kI8},
      {"int16", Dtype::kI16},
      {"int32", Dtype::kI32},
      {"int64", Dtype::kI64},
      {"float16", Dtype::kF16},
      {"half", Dtype::kF16},
      {"bfloat16", Dtype::kBf16},
      {"float32", Dtype::kF32},
      {"float", Dtype::kF32},
      {"float64", Dtype::kF64},
      {"double", Dtype::kF64},
      {"float8_e4m3fn", Dtype::kF8E4m3fn},
      {"float8_e5m2", Dtype::kF8E5m2},
      {"float8_e4m3fnuz", Dtype::kF8E4m3fnuz},
      {"float8_e5m2fnuz", Dtype::kF8E5m2fnuz},
      {"float8_e8m0fnu", Dtype::kF8E8m0},
      {"complex64", Dtype::kC64},
      {"complex128", Dtype::kC128}};
  std::set<Dtype> reached;
  for (const auto& [name, dtype] : names) {
    ASSERT_TRUE(parse_dtype(name).ok()) << name;
    EXPECT_EQ(*parse_dtype(name), dtype) << name;
    reached.insert(dtype);
  }
  EXPECT_EQ(reached.size(), all_dtypes().size()) << "a dtype has no name in torch";
}

TEST(DtypeTest, UnknownNamesAreRefusedByName) {
  for (const std::string_view name : {"F31", "F3", "F322", "F32 ", "float8", "int4"}) {
    const auto parsed = parse_dtype(name);
    ASSERT_FALSE(parsed.ok()) << name;
    EXPECT_EQ(parsed.error().code(), ErrorCode::kUnsupported);
    EXPECT_NE(parsed.error().message().find('"' + std::string(name) + '"'),
              std::string::npos)
        << parsed.error().message();
  }
  EXPECT_FALSE(parse_dtype("").ok());
}

}  // namespace
}  // namespace holdfast
