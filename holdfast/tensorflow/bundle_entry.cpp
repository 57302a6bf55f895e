#include "holdfast/tensorflow/bundle_entry.h"

#include <array>

#include "holdfast/tensorflow/masked_crc.h"
#include "holdfast/tensorflow/wire_format.h"

namespace holdfast::bundle {
namespace {

// The version of the format that TensorFlow 2 writes.
constexpr uint64_t kVersion = 1;
// More slices of one variable are taken for an attack.
constexpr size_t kMaxSlices = size_t{1} << 16;

struct TypeName {
  uint64_t type;
  std::optional<Dtype> dtype;
  std::string_view name;
};

// All types of TensorFlow 2.21 that have a number.
constexpr std::array kTypes{
    TypeName{1, Dtype::kF32, "float"},
    TypeName{2, Dtype::kF64, "double"},
    TypeName{3, Dtype::kI32, "int32"},
    TypeName{4, Dtype::kU8, "uint8"},
    TypeName{5, Dtype::kI16, "int16"},
    TypeName{6, Dtype::kI8, "int8"},
    TypeName{kStringType, std::nullopt, "string"},
    TypeName{8, Dtype::kC64, "complex64"},
    TypeName{9, Dtype::kI64, "int64"},
    TypeName{10, Dtype::kBool, "bool"},
    TypeName{11, std::nullopt, "qint8"},
    TypeName{12, std::nullopt, "quint8"},
    TypeName{13, std::nullopt, "qint32"},
    TypeName{14, Dtype::kBf16, "bfloat16"},
    TypeName{15, std::nullopt, "qint16"},
    TypeName{16, std::nullopt, "quint16"},
    TypeName{17, Dtype::kU16, "uint16"},
    TypeName{18, Dtype::kC128, "complex128"},
    TypeName{19, Dtype::kF16, "half"},
    TypeName{20, std::nullopt, "resource"},
    TypeName{kVariantType, std::nullopt, "variant"},
    TypeName{22, Dtype::kU32, "uint32"},
    TypeName{23, Dtype::kU64, "uint64"},
    TypeName{24, Dtype::kF8E5m2, "float8_e5m2"},
    TypeName{25, Dtype::kF8E4m3fn, "float8_e4m3fn"},
    TypeName{26, Dtype::kF8E4m3fnuz, "float8_e4m3fnuz"},
    TypeName{27, std::nullopt, "float8_e4m3b11fnuz"},
    TypeName{28, Dtype::kF8E5m2fnuz, "float8_e5m2fnuz"},
    TypeName{29, std::nullopt, "int4"},
    TypeName{30, std::nullopt, "uint4"},
    TypeName{31, std::nullopt, "int2"},
    TypeName{32, std::nullopt, "uint2"},
};

Error not_this(std::string_view what) {
  return corrupt("the {} is damaged; expected the protocol buffer of TensorFlow", what);
}

// Calls `apply` with each field. Fails with kCorrupt if the bytes are not fields, or if
// `apply` returns false.
template <typename Apply>
Result<void> for_each_field(ByteView message, std::string_view what,
                            const Apply& apply) {
  for (WireReader reader(message); !reader.done();) {
    const auto field = reader.next();
    if (!field || !apply(*field)) return not_this(what);
  }
  return {};
}

// Stores a varint that must be a number of 63 bits.
bool store(const WireField& field, int64_t& into) {
  into = static_cast<int64_t>(field.value);
  return field.type == WireType::kVarint && into >= 0;
}

bool is_bytes(const WireField& field) { return field.type == WireType::kBytes; }

// TensorShapeProto: 2 dim {1 size, 2 name}, 3 unknown_rank.
Result<void> decode_shape(ByteView message, BundleEntry& entry) {
  std::vector<int64_t> sizes;
  const auto read_size = [&](const WireField& field) {
    return field.number != 1 || store(field, sizes.back());
  };
  HOLDFAST_TRY(for_each_field(message, "shape", [&](const WireField& field) {
    if (field.number == 3) return field.value == 0;
    if (field.number != 2) return true;
    sizes.push_back(0);
    return is_bytes(field) && for_each_field(field.bytes, "shape", read_size).ok();
  }));
  if (std::ssize(sizes) > kMaxRank) {
    entry.odd_shape = fmt::format("has {} dimensions, limit {}", sizes.size(), kMaxRank);
    entry.shape = Shape();
    return {};
  }
  const Result<Shape> shape = Shape::create(sizes);
  if (!shape.ok()) return shape.error().as(ErrorCode::kCorrupt);
  entry.shape = *shape;
  entry.odd_shape.clear();
  return {};
}

// TensorSliceProto: 1 extent {1 start, 2 length}. A length that is not there means the
// whole dimension; one that is there may be 0.
Result<void> decode_slice(ByteView message, std::vector<SliceExtent>& extents) {
  const auto read_extent = [&](const WireField& field) {
    if (field.number == 1) return store(field, extents.back().start);
    return field.number != 2 || store(field, extents.back().length);
  };
  HOLDFAST_TRY(for_each_field(message, "slice", [&](const WireField& field) {
    if (field.number != 1) return true;
    extents.emplace_back();
    return is_bytes(field) && std::ssize(extents) <= kMaxRank &&
           for_each_field(field.bytes, "slice", read_extent).ok();
  }));
  return {};
}

bool store_crc(const WireField& field, BundleEntry& entry) {
  if (field.type != WireType::kFixed32) return false;
  entry.crc_offset = field.offset;
  if (field.value != 0) entry.crc = unmask_crc(static_cast<uint32_t>(field.value));
  return true;
}

std::string encode_shape(const Shape& shape) {
  std::string message;
  for (const int64_t size : shape.sizes()) {
    std::string dimension;
    append_number(dimension, 1, static_cast<uint64_t>(size));
    append_bytes(message, 2, dimension);
  }
  return message;
}

}  // namespace

Result<BundleHeader> decode_header(ByteView bytes) {
  BundleHeader header{.shards = 0};
  int64_t oldest_reader = 0;
  const auto read_version = [&](const WireField& field) {
    return field.number != 2 || store(field, oldest_reader);
  };
  HOLDFAST_TRY(for_each_field(bytes, "header", [&](const WireField& field) {
    if (field.number == 1) return store(field, header.shards);
    if (field.number == 2) header.big_endian = field.value == 1;
    if (field.number == 2) return field.type == WireType::kVarint && field.value <= 1;
    return field.number != 3 ||
           (is_bytes(field) && for_each_field(field.bytes, "", read_version).ok());
  }));
  if (oldest_reader > int64_t{kVersion}) {
    return unsupported("the header asks for a reader of version {}; expected {}",
                       oldest_reader, kVersion);
  }
  if (header.shards < 1 || header.shards > INT32_MAX) {
    return corrupt("the header names {} shards; expected at least 1", header.shards);
  }
  return header;
}

std::string encode_header(const BundleHeader& header) {
  std::string version, message;
  append_number(version, 1, kVersion);
  append_number(message, 1, static_cast<uint64_t>(header.shards));
  append_number(message, 2, header.big_endian ? 1 : 0);
  append_bytes(message, 3, version);
  return message;
}

Result<BundleEntry> decode_entry(ByteView bytes) {
  BundleEntry entry;
  std::optional<Error> inner;
  const auto keep = [&](const Result<void>& read) {
    if (!read.ok()) inner = read.error();
    return read.ok();
  };
  const auto apply = [&](const WireField& field) {
    switch (field.number) {
      case 1: entry.type = field.value; return field.type == WireType::kVarint;
      case 2: return is_bytes(field) && keep(decode_shape(field.bytes, entry));
      case 3: return store(field, entry.shard);
      case 4: return store(field, entry.offset);
      case 5: return store(field, entry.size);
      case 6: return store_crc(field, entry);
      case 7:
        entry.slices.emplace_back();
        return is_bytes(field) && entry.slices.size() <= kMaxSlices &&
               keep(decode_slice(field.bytes, entry.slices.back()));
      default: return true;
    }
  };
  const Result<void> read = for_each_field(bytes, "entry", apply);
  if (inner) return *inner;
  if (!read.ok()) return read.error();
  return entry;
}

std::string encode_entry(const BundleEntry& entry) {
  std::string message;
  append_number(message, 1, entry.type);
  append_bytes(message, 2, encode_shape(entry.shape));
  append_number(message, 3, static_cast<uint64_t>(entry.shard));
  append_number(message, 4, static_cast<uint64_t>(entry.offset));
  append_number(message, 5, static_cast<uint64_t>(entry.size));
  append_fixed32_field(message, 6, mask_crc(entry.crc.value_or(0)));
  return message;
}

Result<Dtype> dtype_of(uint64_t type) {
  for (const TypeName& known : kTypes) {
    if (known.type != type) continue;
    if (known.dtype) return *known.dtype;
    return unsupported("has the dtype {}, which is not supported", known.name);
  }
  return unsupported("has the dtype number {}, which is not known", type);
}

std::optional<uint64_t> type_of(Dtype dtype) {
  for (const TypeName& known : kTypes) {
    if (known.dtype == dtype) return known.type;
  }
  return std::nullopt;
}

}  // namespace holdfast::bundle
