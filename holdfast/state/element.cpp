#include "holdfast/state/element.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "holdfast/base/json_text.h"
#include "holdfast/state/float_convert.h"
#include "holdfast/state/number.h"

namespace holdfast {
namespace {

size_t as_size(int64_t n) { return static_cast<size_t>(n); }

size_t bytes_of_component(Dtype dtype) {
  return as_size(bytes_of(dtype) / info(dtype).components);
}

uint64_t component(Dtype dtype, const ElementBits& bits, int number) {
  const size_t size = bytes_of_component(dtype);
  uint64_t value = 0;
  for (size_t i = 0; i < size; ++i) {
    value |= static_cast<uint64_t>(bits[as_size(number) * size + i]) << (8 * i);
  }
  return value;
}

void set_component(Dtype dtype, ElementBits& bits, int number, uint64_t value) {
  const size_t size = bytes_of_component(dtype);
  for (size_t i = 0; i < size; ++i) {
    bits[as_size(number) * size + i] = static_cast<std::byte>(value >> (8 * i));
  }
}

// Larger than every number of one byte. Seen from far larger numbers, all of them would
// be equally near.
constexpr double kBeyondAll = 1e39;

// The code of the nearest number, found by trying all 256. Of two that are equally near,
// the even code. An infinity is infinity, if the dtype has one.
uint64_t nearest_code(Dtype dtype, double number) {
  for (uint64_t code = 0; std::isinf(number) && code < 256; ++code) {
    if (to_double(dtype, code) == number) return code;
  }
  number = std::clamp(number, -kBeyondAll, kBeyondAll);
  uint64_t best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (uint64_t code = 0; code < 256; ++code) {
    const double value = to_double(dtype, code);
    const double distance = std::abs(value - number);
    if (!std::isfinite(value) || std::signbit(value) != std::signbit(number)) continue;
    if (distance < least || (distance == least && code % 2 == 0)) {
      best = code;
      least = distance;
    }
  }
  return best;
}

// A NaN of the dtype, or its nearest number if it has none.
uint64_t nan_code(Dtype dtype) {
  for (uint64_t code = 0; code < 256; ++code) {
    if (std::isnan(to_double(dtype, code))) return code;
  }
  return 0;
}

Result<uint64_t> encode_float(Dtype dtype, double number) {
  const DtypeInfo& type = info(dtype);
  if (type.bytes == 1) {
    return std::isnan(number) ? nan_code(dtype) : nearest_code(dtype, number);
  }
  const Dtype part = dtype == Dtype::kC64    ? Dtype::kF32
                     : dtype == Dtype::kC128 ? Dtype::kF64
                                             : dtype;
  ElementBits from{}, into{};
  store_little_endian(std::bit_cast<uint64_t>(number), from);
  const size_t size = as_size(bytes_of(part));
  convert_floats(Dtype::kF64, ByteView(from).first(8), part,
                 ByteSpan(into).first(size));
  return component(part, into, 0);
}

Result<uint64_t> encode_integer(Dtype dtype, double number) {
  const DtypeInfo& type = info(dtype);
  const bool is_signed = type.kind == DtypeKind::kSigned;
  const int bits = type.kind == DtypeKind::kBool ? 1 : 8 * type.bytes;
  const double most = std::ldexp(1.0, is_signed ? bits - 1 : bits);
  const double least = is_signed ? -most : 0;
  if (number != std::floor(number) || number < least || number >= most) {
    return invalid("{}: is no {}; expected an integer from {} to below {}", number,
                   type.name, least, most);
  }
  return is_signed ? static_cast<uint64_t>(static_cast<int64_t>(number))
                   : static_cast<uint64_t>(number);
}

Result<uint64_t> encode_component(Dtype dtype, double number) {
  const DtypeKind kind = info(dtype).kind;
  const bool is_float = kind == DtypeKind::kFloat || kind == DtypeKind::kComplex;
  return is_float ? encode_float(dtype, number) : encode_integer(dtype, number);
}

std::string integer_text(Dtype dtype, uint64_t bits) {
  const int unused = 64 - 8 * static_cast<int>(bytes_of(dtype));
  if (info(dtype).kind == DtypeKind::kSigned) {
    return fmt::format("{}", static_cast<int64_t>(bits << unused) >> unused);
  }
  return fmt::format("{}", bits);
}

}  // namespace

ElementBits element_bits(ByteView bytes) {
  ElementBits bits{};
  HOLDFAST_CHECK(bytes.size() <= bits.size(), "an element of {} bytes", bytes.size());
  std::ranges::copy(bytes, bits.begin());
  return bits;
}

bool has_bit(const ElementBits& bits, int bit) {
  return (bits[as_size(bit / 8)] & static_cast<std::byte>(1 << (bit % 8))) !=
         std::byte{0};
}

ElementBits with_flipped(ElementBits bits, int bit) {
  bits[as_size(bit / 8)] ^= static_cast<std::byte>(1 << (bit % 8));
  return bits;
}

ElementBits difference(const ElementBits& a, const ElementBits& b) {
  ElementBits bits{};
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = a[i] ^ b[i];
  return bits;
}

std::vector<int> set_bits(const ElementBits& bits) {
  std::vector<int> numbers;
  for (int bit = 0; bit < 8 * static_cast<int>(bits.size()); ++bit) {
    if (has_bit(bits, bit)) numbers.push_back(bit);
  }
  return numbers;
}

std::string bits_text(Dtype dtype, const ElementBits& bits) {
  Bytes highest_first(bits.begin(), bits.begin() + bytes_of(dtype));
  std::ranges::reverse(highest_first);
  return to_hex(highest_first);
}

Result<ElementBits> parse_bits(Dtype dtype, std::string_view text) {
  Result<Bytes> bytes = from_hex(text);
  if (!bytes.ok() || std::ssize(*bytes) != bytes_of(dtype)) {
    return invalid("{}: are no bits of an element; expected {} hexadecimal digits",
                   shown(text), 2 * bytes_of(dtype));
  }
  std::ranges::reverse(*bytes);
  return element_bits(*bytes);
}

std::string value_text(Dtype dtype, const ElementBits& bits, int digits) {
  switch (info(dtype).kind) {
    case DtypeKind::kSigned:
    case DtypeKind::kUnsigned:
    case DtypeKind::kBool: return integer_text(dtype, component(dtype, bits, 0));
    case DtypeKind::kFloat:
      return fmt::format("{:.{}g}", to_double(dtype, component(dtype, bits, 0)),
                         digits);
    case DtypeKind::kComplex: break;
  }
  return fmt::format("{:.{}g}{:+.{}g}i", to_double(dtype, component(dtype, bits, 0)),
                     digits, to_double(dtype, component(dtype, bits, 1)), digits);
}

std::string change_text(Dtype dtype, const ElementBits& before,
                        const ElementBits& after) {
  std::string a = value_text(dtype, before), b = value_text(dtype, after);
  if (a == b && before != after) {  // a few digits do not show the change
    a = value_text(dtype, before, kAllDigits);
    b = value_text(dtype, after, kAllDigits);
  }
  return fmt::format("{} -> {}", a, b);
}

std::string bits_in_words(const ElementBits& mask) {
  const std::vector<int> bits = set_bits(mask);
  if (bits.empty()) return "no bit";
  return fmt::format("{} {}", bits.size() == 1 ? "bit" : "bits", fmt::join(bits, ", "));
}

bool is_finite(Dtype dtype, const ElementBits& bits) {
  for (int k = 0; k < info(dtype).components; ++k) {
    if (!std::isfinite(to_double(dtype, component(dtype, bits, k)))) return false;
  }
  return true;
}

Result<ElementBits> element_of(Dtype dtype, double number) {
  ElementBits bits{};
  set_component(dtype, bits, 0, HOLDFAST_TRY(encode_component(dtype, number)));
  return bits;
}

Result<ElementBits> scaled(Dtype dtype, const ElementBits& bits, double factor) {
  const bool integer = info(dtype).exponent_bits == 0;
  ElementBits made{};
  for (int k = 0; k < info(dtype).components; ++k) {
    const double product = to_double(dtype, component(dtype, bits, k)) * factor;
    const double number = integer ? std::nearbyint(product) : product;
    set_component(dtype, made, k, HOLDFAST_TRY(encode_component(dtype, number)));
  }
  return made;
}

std::vector<int64_t> index_of(const Shape& shape, int64_t element) {
  std::vector<int64_t> index(as_size(shape.rank()));
  for (int k = shape.rank() - 1; k >= 0; --k) {
    index[as_size(k)] = element % shape[k];
    element /= shape[k];
  }
  return index;
}

std::optional<int64_t> place_in_box(const Shape& shape, const Box& box,
                                    int64_t element) {
  int64_t place = 0, step = 1;
  for (int k = shape.rank() - 1; k >= 0; --k) {
    const int64_t at = element % shape[k];
    if (at < box[k].lo || at >= box[k].hi) return std::nullopt;
    place += (at - box[k].lo) * step;
    step *= box.size(k);
    element /= shape[k];
  }
  return place;
}

std::string index_text(const Shape& shape, int64_t element) {
  return fmt::format("[{}]", fmt::join(index_of(shape, element), ", "));
}

}  // namespace holdfast
