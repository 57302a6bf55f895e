#include <algorithm>
#include <array>

#include "holdfast/hdf5/datatype_internal.h"

namespace holdfast::hdf5 {
namespace {

constexpr std::string_view kDatatypeMessage = "datatype message";
// How deep compounds, enumerations and arrays may be nested.
constexpr int kMostNested = 8;
constexpr uint64_t kMostMembers = 1024;

constexpr std::array<std::string_view, 12> kClasses{
    "an integer type of a kind that no tensor has",
    "a floating-point type of a kind that no tensor has",
    "a time type",
    "strings",
    "a bit field",
    "an opaque type",
    "a compound type",
    "a reference type",
    "an enumeration",
    "a type of variable length",
    "an array type",
    "a complex type of a kind that no tensor has"};

// What the bits of a floating-point number mean: offset and size of exponent and
// mantissa, offset of the sign, and the bias.
struct FloatBits {
  uint16_t offset, precision;
  uint8_t exponent, exponent_bits, mantissa, mantissa_bits;
  uint32_t bias;
  uint8_t sign;
  friend bool operator==(const FloatBits&, const FloatBits&) = default;
};

struct KnownFloat {
  Dtype dtype;
  FloatBits bits;
};

constexpr std::array kFloats{
    KnownFloat{Dtype::kF16, {0, 16, 10, 5, 0, 10, 15, 15}},
    KnownFloat{Dtype::kBf16, {0, 16, 7, 8, 0, 7, 127, 15}},
    KnownFloat{Dtype::kF32, {0, 32, 23, 8, 0, 23, 127, 31}},
    KnownFloat{Dtype::kF64, {0, 64, 52, 11, 0, 52, 1023, 63}},
    KnownFloat{Dtype::kF8E4m3fn, {0, 8, 3, 4, 0, 3, 7, 7}},
    KnownFloat{Dtype::kF8E5m2, {0, 8, 2, 5, 0, 2, 15, 7}},
};

class TypeReader {
 public:
  TypeReader(Cursor& cursor, const std::string& where)
      : cursor_(cursor), where_(where) {}

  Result<Datatype> read(int depth) {
    if (depth > kMostNested) {
      return corrupt("{}: {} has more than {} types inside each other", where_,
                     kDatatypeMessage, kMostNested);
    }
    const uint8_t head = cursor_.u8();
    bits_ = static_cast<uint32_t>(cursor_.number(3));
    Datatype type;
    type.bytes = cursor_.u32();
    HOLDFAST_TRY(cursor_.check(where_, kDatatypeMessage));
    const int kind = head & 15, version = head >> 4;
    if (kind >= static_cast<int>(kClasses.size()) || version < 1 || version > 5 ||
        type.bytes == 0) {
      return corrupt(
          "{}: {} has class {}, version {} and {} bytes; expected a known one", where_,
          kDatatypeMessage, kind, version, type.bytes);
    }
    type.what = kClasses[static_cast<size_t>(kind)];
    HOLDFAST_TRY(read_properties(type, kind, version, depth));
    HOLDFAST_TRY(cursor_.check(where_, kDatatypeMessage));
    return type;
  }

 private:
  Result<void> read_properties(Datatype& type, int kind, int version, int depth) {
    switch (kind) {
      case 0: read_integer(type); return {};
      case 1: read_float(type); return {};
      case 3: type.kind = Datatype::Kind::kText; return {};
      case 5:
        type.kind = Datatype::Kind::kOpaque;
        cursor_.skip(bits_ & 0xff);
        return {};
      case 6: return read_compound(type, version, depth);
      case 7: type.refers = true; return {};
      case 8: return read_enumeration(type, version, depth);
      case 9:
        if ((bits_ & 15) == 1) {
          type.kind = Datatype::Kind::kHeapText;
        } else {
          type.refers = HOLDFAST_TRY(read(depth + 1)).refers;
        }
        return {};
      case 11: return read_complex(type, depth);
      default: return {};
    }
  }

  void read_integer(Datatype& type) {
    const bool is_big = (bits_ & 1) != 0, is_signed = (bits_ & 8) != 0;
    const uint16_t offset = cursor_.u16(), precision = cursor_.u16();
    if (offset != 0 || precision != 8 * type.bytes) return;
    const auto pick = [&](Dtype with_sign, Dtype without) {
      type.kind = Datatype::Kind::kNumber;
      type.dtype = is_signed ? with_sign : without;
      type.swapped = is_big && type.bytes > 1 ? static_cast<int64_t>(type.bytes) : 0;
    };
    if (type.bytes == 1) pick(Dtype::kI8, Dtype::kU8);
    if (type.bytes == 2) pick(Dtype::kI16, Dtype::kU16);
    if (type.bytes == 4) pick(Dtype::kI32, Dtype::kU32);
    if (type.bytes == 8) pick(Dtype::kI64, Dtype::kU64);
  }

  void read_float(Datatype& type) {
    const bool is_big = (bits_ & 1) != 0, is_vax = (bits_ & 0x40) != 0;
    FloatBits bits{};
    bits.offset = cursor_.u16();
    bits.precision = cursor_.u16();
    bits.exponent = cursor_.u8();
    bits.exponent_bits = cursor_.u8();
    bits.mantissa = cursor_.u8();
    bits.mantissa_bits = cursor_.u8();
    bits.bias = cursor_.u32();
    bits.sign = static_cast<uint8_t>(bits_ >> 8);
    const bool implied = (bits_ >> 4 & 3) == 2;  // the first bit of the mantissa
    for (const KnownFloat& known : kFloats) {
      if (is_vax || !implied || bits != known.bits) continue;
      if (type.bytes != static_cast<uint64_t>(bytes_of(known.dtype))) continue;
      type.kind = Datatype::Kind::kNumber;
      type.dtype = known.dtype;
      type.swapped = is_big && type.bytes > 1 ? static_cast<int64_t>(type.bytes) : 0;
    }
  }

  // Returns the name of a member, which old versions pad to a multiple of 8.
  std::string_view read_member_name(int version) {
    const size_t before = cursor_.at();
    const std::string_view name = cursor_.text();
    const size_t used = cursor_.at() - before;
    if (version < 3) cursor_.skip((8 - used % 8) % 8);
    return name;
  }

  // h5py stores a complex number as a compound of "r" and "i".
  Result<void> read_compound(Datatype& type, int version, int depth) {
    const uint64_t members = bits_ & 0xffff;
    if (members != 2) return {};
    std::array<Datatype, 2> parts;
    bool is_complex = true;
    for (size_t i = 0; i < parts.size(); ++i) {
      const std::string_view name = read_member_name(version);
      const uint64_t offset = read_member_offset(type, version);
      if (version == 1) {
        is_complex = is_complex && cursor_.u8() == 0;
        cursor_.skip(27);
      }
      parts[i] = HOLDFAST_TRY(read(depth + 1));
      type.refers = type.refers || parts[i].refers;
      is_complex = is_complex && parts[i].kind == Datatype::Kind::kNumber &&
                   name == (i == 0 ? "r" : "i") && offset == i * parts[i].bytes;
      if (!is_complex) return {};
    }
    set_complex(type, parts[0], parts[1]);
    return {};
  }

  uint64_t read_member_offset(const Datatype& type, int version) {
    if (version < 3) return cursor_.u32();
    size_t bytes = 1;
    while (bytes < 4 && type.bytes >> (8 * bytes) != 0) ++bytes;
    return cursor_.number(bytes);
  }

  Result<void> read_complex(Datatype& type, int depth) {
    const Datatype part = HOLDFAST_TRY(read(depth + 1));
    set_complex(type, part, part);
    return {};
  }

  static void set_complex(Datatype& type, const Datatype& real, const Datatype& imag) {
    if (real.kind != Datatype::Kind::kNumber || imag.kind != real.kind) return;
    if (real.dtype != imag.dtype || real.swapped != imag.swapped) return;
    if (real.dtype != Dtype::kF32 && real.dtype != Dtype::kF64) return;
    if (type.bytes != 2 * real.bytes) return;
    type.kind = Datatype::Kind::kNumber;
    type.dtype = real.dtype == Dtype::kF32 ? Dtype::kC64 : Dtype::kC128;
    type.swapped = real.swapped;
  }

  // An enumeration counts as its integers, and one of FALSE and TRUE as booleans.
  Result<void> read_enumeration(Datatype& type, int version, int depth) {
    const uint64_t members = bits_ & 0xffff;
    const Datatype base = HOLDFAST_TRY(read(depth + 1));
    if (members > kMostMembers || base.kind != Datatype::Kind::kNumber) return {};
    std::vector<std::string_view> names;
    for (uint64_t i = 0; i < members && !cursor_.cut(); ++i) {
      names.push_back(read_member_name(version));
    }
    const ByteView values = cursor_.take(members * base.bytes);
    if (type.bytes != base.bytes || cursor_.cut()) return {};
    type.kind = Datatype::Kind::kNumber;
    type.dtype = base.dtype;
    type.swapped = base.swapped;
    const bool is_bool = base.bytes == 1 && names.size() == 2 && names[0] == "FALSE" &&
                         names[1] == "TRUE" && values[0] == std::byte{0} &&
                         values[1] == std::byte{1};
    if (is_bool) type.dtype = Dtype::kBool;
    if (!is_bool) set_names(type, names, values);
    return {};
  }

  // Keeps the names of integers. The values have the sign of their dtype.
  static void set_names(Datatype& type, std::span<const std::string_view> names,
                        ByteView values) {
    const DtypeKind kind = info(type.dtype).kind;
    if (kind != DtypeKind::kSigned && kind != DtypeKind::kUnsigned) return;
    Bytes turned = copy_of(values);
    swap_numbers(turned, type.swapped);
    const auto bytes = static_cast<size_t>(type.bytes), unused = 64 - 8 * bytes;
    for (size_t i = 0; i < names.size(); ++i) {
      const uint64_t bits =
          Cursor(ByteView(turned).subspan(i * bytes, bytes), {}).number(bytes);
      const auto extended = static_cast<int64_t>(bits << unused) >> unused;
      type.names.emplace_back(
          names[i], kind == DtypeKind::kSigned ? extended : signed_of(bits));
    }
  }

  Cursor& cursor_;
  const std::string& where_;
  uint32_t bits_ = 0;
};

}  // namespace

void swap_numbers(ByteSpan bytes, int64_t width) {
  if (width < 2) return;
  const auto step = static_cast<size_t>(width);
  for (size_t i = 0; i + step <= bytes.size(); i += step) {
    std::ranges::reverse(bytes.subspan(i, step));
  }
}

Result<Datatype> read_datatype(const File& file, ByteView data,
                               const std::string& where) {
  Cursor cursor = file.cursor(data);
  Datatype type = HOLDFAST_TRY(TypeReader(cursor, where).read(0));
  type.message = copy_of(data);
  return type;
}

Result<Dataspace> read_dataspace(const File& file, ByteView data,
                                 const std::string& where) {
  Cursor cursor = file.cursor(data);
  const uint8_t version = cursor.u8(), rank = cursor.u8();
  const uint8_t flags = cursor.u8();
  const uint8_t kind = cursor.u8();
  if (version == 1) cursor.skip(4);
  Dataspace space{.null = version == 2 && kind == 2};
  if (version < 1 || version > 2) {
    return corrupt("{}: dataspace message has the version {}; expected 1 or 2", where,
                   version);
  }
  for (int k = 0; k < rank && !cursor.cut(); ++k) {
    const uint64_t size = cursor.length();
    if (size > uint64_t{INT64_MAX}) {
      return corrupt("{}: dataspace message has a dimension of {}; expected less",
                     where, size);
    }
    space.sizes.push_back(static_cast<int64_t>(size));
  }
  space.most_sizes = space.sizes;
  for (int k = 0; k < rank && (flags & 1) != 0 && !cursor.cut(); ++k) {
    const uint64_t ones = UINT64_MAX >> (64 - 8 * file.sizes().length);
    const uint64_t size = cursor.length();
    const uint64_t most =
        size == ones ? kUnlimited : std::min<uint64_t>(size, kUnlimited);
    space.most_sizes[static_cast<size_t>(k)] = static_cast<int64_t>(most);
  }
  HOLDFAST_TRY(cursor.check(where, "dataspace message"));
  return space;
}

}  // namespace holdfast::hdf5
