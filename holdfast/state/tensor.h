// A tensor of the job's state as the whole job sees it, however it is cut and wherever
// its pieces are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/state/box.h"

namespace holdfast {

// Element types: name, size and bit fields. Names are those of safetensors, as far as
// it has the type. The bit fields are for code that changes or interprets single bits.
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

// The dtype of elements that have this C++ type. A type that has none does not compile.
template <typename T>
constexpr Dtype dtype_for() = delete;
// clang-format off
template <> constexpr Dtype dtype_for<bool>() { return Dtype::kBool; }
template <> constexpr Dtype dtype_for<std::byte>() { return Dtype::kU8; }
template <> constexpr Dtype dtype_for<uint8_t>() { return Dtype::kU8; }
template <> constexpr Dtype dtype_for<uint16_t>() { return Dtype::kU16; }
template <> constexpr Dtype dtype_for<uint32_t>() { return Dtype::kU32; }
template <> constexpr Dtype dtype_for<uint64_t>() { return Dtype::kU64; }
template <> constexpr Dtype dtype_for<int8_t>() { return Dtype::kI8; }
template <> constexpr Dtype dtype_for<int16_t>() { return Dtype::kI16; }
template <> constexpr Dtype dtype_for<int32_t>() { return Dtype::kI32; }
template <> constexpr Dtype dtype_for<int64_t>() { return Dtype::kI64; }
template <> constexpr Dtype dtype_for<float>() { return Dtype::kF32; }
template <> constexpr Dtype dtype_for<double>() { return Dtype::kF64; }
// clang-format on

// Accepts the safetensors name in any case ("bf16") and torch's name ("bfloat16").
Result<Dtype> parse_dtype(std::string_view name);

enum class Role : uint8_t {
  kParameter,
  kSlot,     // optimizer state with its parameter's shape: moments, momentum
  kMaster,   // full-precision copy of a parameter
  kBuffer,   // BatchNorm statistics and the like
  kCounter,  // step counts, other scalars, states of random generators
};

std::string_view name_of(Role role);  // "parameter", "slot", ...
Result<Role> parse_role(std::string_view name);

struct Tensor {
  std::string name{};
  Dtype dtype = Dtype::kF32;
  // The canonical shape: without vocabulary padding, and with an axis of its own for
  // packed components (a fused SwiGLU weight is [2, F, H], a fused QKV is [groups,
  // heads + 2, dim, H]).
  Shape shape{};
  Role role = Role::kParameter;
  // The name of the parameter that a slot or master belongs to; empty otherwise. It is
  // a name and not a position, because positions change with the parallel
  // configuration.
  std::string of{};
  // Aliases: other names of the same tensor, such as a tied output head. It stays one
  // tensor, which may have many holders.
  std::vector<std::string> aliases{};
  // If not 0: ranks that cut dimension 0 (a vocabulary) in T parts first pad it to a
  // multiple of pad_multiple * T. Padding exists only in a rank's memory. It is not
  // state and has no box.
  int64_t pad_multiple = 0;

  int64_t bytes() const { return shape.elements() * bytes_of(dtype); }
  friend bool operator==(const Tensor&, const Tensor&) = default;
};

}  // namespace holdfast
