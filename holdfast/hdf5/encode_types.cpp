// Makes the messages of HDF5 that say of which type and shape a value is.
#include "holdfast/base/checked.h"
#include "holdfast/hdf5/encode_internal.h"

namespace holdfast::hdf5 {
namespace {

Bytes integer_type(int bytes, bool is_signed) {
  return Fields()
      .number(0x10, 1)
      .number(is_signed ? 8 : 0, 3)
      .number(static_cast<uint64_t>(bytes), 4)
      .number(0, 2)
      .number(static_cast<uint64_t>(8 * bytes), 2)
      .take();
}

Bytes float_type(int bytes, int exponent_bits, int mantissa_bits) {
  const auto sign = static_cast<uint64_t>(8 * bytes - 1);
  return Fields()
      .number(0x11, 1)
      .number(0x20 | sign << 8, 3)
      .number(static_cast<uint64_t>(bytes), 4)
      .number(0, 2)
      .number(static_cast<uint64_t>(8 * bytes), 2)
      .number(static_cast<uint64_t>(mantissa_bits), 1)
      .number(static_cast<uint64_t>(exponent_bits), 1)
      .number(0, 1)
      .number(static_cast<uint64_t>(mantissa_bits), 1)
      .number((uint64_t{1} << (exponent_bits - 1)) - 1, 4)
      .take();
}

// As h5py has booleans: an enumeration of FALSE and TRUE.
Bytes bool_type() {
  return Fields()
      .number(0x18, 1)
      .number(2, 3)
      .number(1, 4)
      .append(integer_type(1, true))
      .text("FALSE", 8)
      .text("TRUE", 8)
      .number(0, 1)
      .number(1, 1)
      .take();
}

// As h5py has complex numbers: a compound of "r" and "i".
Bytes complex_type(int bytes, ByteView part) {
  Fields fields;
  fields.number(0x16, 1).number(2, 3).number(static_cast<uint64_t>(bytes), 4);
  for (const char* name : {"r", "i"}) {
    fields.text(name, 8).number(*name == 'r' ? 0 : static_cast<uint64_t>(bytes) / 2, 4);
    fields.number(0, 28).append(part);  // no array
  }
  return fields.take();
}

// Bytes without a meaning, as Keras stores bf16.
Bytes opaque_type(int bytes) {
  return Fields()
      .number(0x15, 1)
      .number(0, 3)
      .number(static_cast<uint64_t>(bytes), 4)
      .take();
}

}  // namespace

size_t rounded(size_t size) { return divide_up(size, size_t{8}) * 8; }

Bytes type_of(Dtype dtype) {
  const DtypeInfo& of = info(dtype);
  if (dtype == Dtype::kBf16) return opaque_type(of.bytes);
  switch (of.kind) {
    case DtypeKind::kBool: return bool_type();
    case DtypeKind::kComplex:
      return complex_type(of.bytes,
                          float_type(of.bytes / 2, of.exponent_bits, of.mantissa_bits));
    case DtypeKind::kFloat:
      return float_type(of.bytes, of.exponent_bits, of.mantissa_bits);
    default: return integer_type(of.bytes, of.kind == DtypeKind::kSigned);
  }
}

Bytes text_type(size_t bytes) {
  return Fields().number(0x13, 1).number(1, 3).number(bytes, 4).take();  // padded by 0
}

Bytes heap_text_type() {
  return Fields()
      .number(0x19, 1)
      .number(0x101, 3)  // a string in UTF-8
      .number(kHeapTextBytes, 4)
      .append(integer_type(1, false))
      .take();
}

Bytes enumeration_type(Dtype dtype, const EnumNames& names) {
  const auto bytes = static_cast<size_t>(bytes_of(dtype));
  Fields fields;
  fields.number(0x18, 1).number(names.size(), 3).number(bytes, 4);
  fields.append(type_of(dtype));
  for (const auto& [name, value] : names) fields.text(name, rounded(name.size() + 1));
  for (const auto& [name, value] : names) {
    fields.number(static_cast<uint64_t>(value), bytes);
  }
  return fields.take();
}

Bytes space_of(std::span<const int64_t> sizes) {
  Fields fields;
  fields.number(1, 1).number(sizes.size(), 1).number(0, 6);
  for (const int64_t size : sizes) fields.number(static_cast<uint64_t>(size), 8);
  return fields.take();
}

Bytes null_space() { return Fields().number(2, 1).number(0, 2).number(2, 1).take(); }

Bytes attribute_message(std::string_view name, const StoredValue& value) {
  const auto padded = [](Fields& fields, const Bytes& part) {
    fields.append(part).append(Bytes(rounded(part.size()) - part.size()));
  };
  Fields fields;
  fields.number(1, 2).number(name.size() + 1, 2).number(value.type.size(), 2);
  fields.number(value.space.size(), 2).text(name, rounded(name.size() + 1));
  padded(fields, value.type);
  padded(fields, value.space);
  return fields.append(value.data).take();
}

}  // namespace holdfast::hdf5
