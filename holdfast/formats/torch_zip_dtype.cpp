// Maps dtypes to their names in torch and to torch's typed storages.
#include <algorithm>

#include "holdfast/formats/torch_zip_internal.h"

namespace holdfast::torch_zip {
namespace {

struct Row {
  Dtype dtype;
  std::string_view name;     // the name of the dtype is torch.<name>
  std::string_view storage;  // torch.<storage>; empty for newer dtypes, which have none
};

constexpr std::array kRows{
    Row{Dtype::kBool, "bool", "BoolStorage"},
    Row{Dtype::kU8, "uint8", "ByteStorage"},
    Row{Dtype::kU16, "uint16", ""},
    Row{Dtype::kU32, "uint32", ""},
    Row{Dtype::kU64, "uint64", ""},
    Row{Dtype::kI8, "int8", "CharStorage"},
    Row{Dtype::kI16, "int16", "ShortStorage"},
    Row{Dtype::kI32, "int32", "IntStorage"},
    Row{Dtype::kI64, "int64", "LongStorage"},
    Row{Dtype::kF16, "float16", "HalfStorage"},
    Row{Dtype::kBf16, "bfloat16", "BFloat16Storage"},
    Row{Dtype::kF32, "float32", "FloatStorage"},
    Row{Dtype::kF64, "float64", "DoubleStorage"},
    Row{Dtype::kF8E4m3fn, "float8_e4m3fn", ""},
    Row{Dtype::kF8E5m2, "float8_e5m2", ""},
    Row{Dtype::kF8E4m3fnuz, "float8_e4m3fnuz", ""},
    Row{Dtype::kF8E5m2fnuz, "float8_e5m2fnuz", ""},
    Row{Dtype::kF8E8m0, "float8_e8m0fnu", ""},
    Row{Dtype::kC64, "complex64", "ComplexFloatStorage"},
    Row{Dtype::kC128, "complex128", "ComplexDoubleStorage"},
};

constexpr std::string_view kTorch = "torch.";

const Row& row_of(Dtype dtype) { return *std::ranges::find(kRows, dtype, &Row::dtype); }

std::optional<Dtype> find(std::string_view global, std::string_view Row::*column) {
  if (!global.starts_with(kTorch)) return std::nullopt;
  global.remove_prefix(kTorch.size());
  const auto* row = std::ranges::find(kRows, global, column);
  if (global.empty() || row == kRows.end()) return std::nullopt;
  return row->dtype;
}

}  // namespace

std::optional<Dtype> dtype_of_storage(std::string_view global) {
  if (global == "torch.QInt8Storage") return Dtype::kI8;
  if (global == "torch.QUInt8Storage") return Dtype::kU8;
  if (global == "torch.QInt32Storage") return Dtype::kI32;
  return find(global, &Row::storage);
}

std::string_view storage_of_dtype(Dtype dtype) { return row_of(dtype).storage; }

std::string global_of_dtype(Dtype dtype) {
  return std::string(kTorch) + std::string(row_of(dtype).name);
}

std::optional<Dtype> dtype_of_global(std::string_view global) {
  return find(global, &Row::name);
}

}  // namespace holdfast::torch_zip
