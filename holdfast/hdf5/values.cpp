#include <algorithm>

#include "holdfast/base/checked.h"
#include "holdfast/base/json_text.h"
#include "holdfast/hdf5/chunk_index_internal.h"
#include "holdfast/hdf5/decoded_source_internal.h"
#include "holdfast/hdf5/fractal_heap_internal.h"
#include "holdfast/hdf5/values_internal.h"
#include "holdfast/state/number.h"

namespace holdfast::hdf5 {
namespace {

constexpr std::string_view kAttributeMessage = "attribute message";
constexpr std::string_view kGlobalHeap = "global heap";
constexpr uint8_t kTreeOfAttributeNames = 8;
// Keras writes lists of names, and models as JSON. An attribute of more elements is not
// for people.
constexpr int64_t kMostElements = int64_t{1} << 20;
// What all values of a small file may take in memory, and of a large one for each byte.
constexpr int64_t kFewValueBytes = int64_t{128} << 20;
constexpr int64_t kMostValueBytes = 64;

// Text that is not UTF-8 becomes bytes, so that nothing of it is lost.
Object text_or_bytes(std::string_view text) {
  if (is_utf8(text)) return Object(std::string(text));
  return Object(copy_of(bytes_of(text)));
}

Object number_of_bits(Dtype dtype, uint64_t bits) {
  switch (info(dtype).kind) {
    case DtypeKind::kBool: return Object(bits != 0);
    case DtypeKind::kFloat: return Object(to_double(dtype, bits));
    case DtypeKind::kUnsigned:
      if (bits > uint64_t{INT64_MAX}) {
        return Object(Object::BigInteger{std::to_string(bits)});
      }
      return Object(static_cast<int64_t>(bits));
    default: {
      const int unused = 64 - 8 * info(dtype).bytes;
      return Object(static_cast<int64_t>(bits << unused) >> unused);
    }
  }
}

// The value as it is stored. Not for texts in the heap of this file.
std::optional<Hdf5Value> stored_as(const Datatype& type, const Shape& shape,
                                   ByteView data) {
  const bool in_heap = type.kind == Datatype::Kind::kHeapText;
  if (in_heap && shape.elements() > 0) return std::nullopt;
  const auto bytes = static_cast<size_t>(shape.elements()) * type.bytes;
  return Hdf5Value{.type = type.message,
                   .sizes = {shape.sizes().begin(), shape.sizes().end()},
                   .data = copy_of(data.first(bytes))};
}

}  // namespace

Result<ByteView> GlobalHeap::find(uint64_t address, uint32_t number,
                                  const std::string& where) {
  const auto known = collections_.find(address);
  const Collection* collection = known == collections_.end()
                                     ? HOLDFAST_TRY(read_collection(address, where))
                                     : &known->second;
  const auto found = collection->objects.find(number);
  if (found != collection->objects.end()) return found->second;
  return corrupt("{}: {} at {} has no object {}", where, kGlobalHeap, address, number);
}

Result<GlobalHeap::Collection*> GlobalHeap::read_collection(uint64_t address,
                                                            const std::string& where) {
  const uint64_t head_bytes = 8 + uint64_t{file_.sizes().length};
  const Bytes head =
      HOLDFAST_TRY(file_.read_block(address, head_bytes, "GCOL", where, kGlobalHeap));
  Cursor sizes = file_.cursor(head);
  sizes.skip(8);
  const uint64_t bytes = sizes.length();
  Collection collection;
  collection.bytes = HOLDFAST_TRY(file_.read(address, bytes, where, kGlobalHeap));
  total_ += bytes;
  if (total_ > static_cast<uint64_t>(file_.source()->size())) {
    return corrupt("{}: {} has collections that overlap", where, kGlobalHeap);
  }
  Cursor cursor = file_.cursor(collection.bytes);
  cursor.skip(head_bytes);
  while (cursor.left() >= head_bytes) {
    const uint16_t number = cursor.u16();
    cursor.skip(6);
    const uint64_t size = cursor.length();
    if (number == 0) break;  // the rest is free
    collection.objects[number] = cursor.take(size);
    if (cursor.left() == 0) break;
    cursor.align();
  }
  HOLDFAST_TRY(cursor.check(where, kGlobalHeap));
  return &(collections_[address] = std::move(collection));
}

std::string place_of_path(const File& file, std::string_view path) {
  return fmt::format("{}: /{}", file.name(), printable(path));
}

ValueReader::ValueReader(const File& file)
    : file_(file),
      heap_(file),
      spendable_(kFewValueBytes + kMostValueBytes * file.source()->size()) {}

Result<std::vector<Attribute>> ValueReader::read_attributes(const ObjectHeader& header,
                                                            const std::string& path) {
  const Owner owner{path, place_of_path(file_, path)};
  std::vector<Attribute> attributes;
  for (const Message& message : header.messages) {
    if (message.type != MessageType::kAttribute) continue;
    if (message.shared()) {
      leave_out(owner, "?", "lies in the heap of shared messages");
      continue;
    }
    HOLDFAST_TRY(add_attribute(message.data, owner, attributes));
  }
  if (const Message* info = header.find(MessageType::kAttributeInfo)) {
    HOLDFAST_TRY(add_heap_attributes(*info, owner, attributes));
  }
  std::ranges::sort(attributes, {}, &Attribute::name);
  for (size_t i = 1; i < attributes.size(); ++i) {
    if (attributes[i].name != attributes[i - 1].name) continue;
    return corrupt("{}: has the attribute {} twice", owner.where,
                   printable(attributes[i].name));
  }
  return attributes;
}

void ValueReader::leave_out(const Owner& owner, std::string_view attribute,
                            std::string_view why) {
  left_out_.push_back(fmt::format("{}: attribute {}: {}",
                                  owner.path.empty() ? "/" : owner.path,
                                  shown(attribute), why));
}

Result<void> ValueReader::spend(int64_t elements, int64_t bytes,
                                const std::string& where) {
  const auto of_elements = checked_mul(elements, int64_t{sizeof(Object)});
  const auto all = of_elements ? checked_add(*of_elements, bytes) : std::nullopt;
  if (!all || *all > spendable_) {
    return unsupported(
        "{} takes, with the values before it, far more memory than the {} bytes of the "
        "file; expected values that are stored in it",
        where, file_.source()->size());
  }
  spendable_ -= *all;
  return {};
}

Result<void> ValueReader::add_attribute(ByteView data, const Owner& owner,
                                        std::vector<Attribute>& into) {
  auto attribute = HOLDFAST_TRY(read_attribute(data, owner));
  if (attribute) into.push_back(*std::move(attribute));
  return {};
}

// Attributes that lie in a fractal heap, because there are many.
Result<void> ValueReader::add_heap_attributes(const Message& info, const Owner& owner,
                                              std::vector<Attribute>& into) {
  const std::string& where = owner.where;
  Cursor cursor = file_.cursor(info.data);
  cursor.skip(1);
  if ((cursor.u8() & 1) != 0) cursor.skip(2);
  const uint64_t address = cursor.address(), names = cursor.address();
  HOLDFAST_TRY(cursor.check(where, "attribute info message"));
  if (address == kUndefined) return {};
  FractalHeap heap = HOLDFAST_TRY(FractalHeap::open(file_, address, where));
  const auto add = [&](const IndexRecord& entry) -> Result<void> {
    const ByteView record = entry.bytes;
    if (record.size() < heap.id_bytes()) {
      return corrupt("{}: B-tree of attributes has records of {} bytes", where,
                     record.size());
    }
    const auto object = HOLDFAST_TRY(heap.read_object(record));
    if (object) return add_attribute(*object, owner, into);
    leave_out(owner, "?", "is too large");
    return {};
  };
  return visit_new_tree(file_, names, kTreeOfAttributeNames, where, add);
}

Result<std::optional<Attribute>> ValueReader::read_attribute(ByteView data,
                                                             const Owner& owner) {
  const std::string& where = owner.where;
  Cursor cursor = file_.cursor(data);
  const uint8_t version = cursor.u8(), flags = cursor.u8();
  const uint16_t name_bytes = cursor.u16(), type_bytes = cursor.u16(),
                 space_bytes = cursor.u16();
  if (version == 3) cursor.skip(1);
  const auto field = [&](uint16_t bytes) {
    const ByteView taken = cursor.take(bytes);
    if (version == 1) cursor.align();
    return taken;
  };
  const std::string_view padded = text_of(field(name_bytes));
  const ByteView type_data = field(type_bytes), space_data = field(space_bytes);
  HOLDFAST_TRY(cursor.check(where, kAttributeMessage));
  if (version < 1 || version > 3) {
    return corrupt("{}: {} has the version {}; expected 1 to 3", where,
                   kAttributeMessage, version);
  }
  const std::string name(padded.substr(0, padded.find('\0')));
  const std::string place = fmt::format("{}: attribute {}", where, printable(name));
  const auto without = [&](std::string_view why) {
    leave_out(owner, name, why);
    return std::optional<Attribute>();
  };
  if (version > 1 && (flags & 2) != 0) return without("has a shared dataspace");
  const auto shared = resolve_shared(file_, version > 1 && (flags & 1) != 0, type_data,
                                     MessageType::kDatatype, place);
  if (!shared.ok() && shared.error().code() == ErrorCode::kUnsupported) {
    return without("has a datatype in the heap of shared messages");
  }
  const Bytes resolved = HOLDFAST_TRY(std::move(shared));
  const Datatype type = HOLDFAST_TRY(read_datatype(file_, resolved, place));
  const Dataspace space = HOLDFAST_TRY(read_dataspace(file_, space_data, place));
  if (type.refers) {
    not_kept_.push_back(fmt::format("{}: attribute {}: references",
                                    owner.path.empty() ? "/" : owner.path, shown(name)));
    return std::optional<Attribute>();
  }
  if (!is_utf8(name)) return without("has a name that is not UTF-8");
  if (space.null) {
    return std::optional(Attribute{name, Object(), Hdf5Value{resolved, true}});
  }
  const auto shape = Shape::create(space.sizes);
  if (!shape.ok() || shape->elements() > kMostElements) return without("is too large");
  const ByteView elements = cursor.take(cursor.left());
  auto read = value_of(type, *shape, elements, place);
  if (!read.ok() && read.error().code() == ErrorCode::kUnsupported) {
    return without("is too large");
  }
  std::optional<Object> value = HOLDFAST_TRY(std::move(read));
  if (!value) return without("holds " + type.what);
  return std::optional(
      Attribute{name, *std::move(value), stored_as(type, *shape, elements)});
}

Result<std::optional<Object>> ValueReader::value_of(const Datatype& type,
                                                    const Shape& shape, ByteView data,
                                                    const std::string& where) {
  const bool is_text =
      type.kind == Datatype::Kind::kText || type.kind == Datatype::Kind::kHeapText;
  if (!is_text && type.kind != Datatype::Kind::kNumber) return std::optional<Object>();
  const auto bytes = checked_mul(shape.elements(), static_cast<int64_t>(type.bytes));
  if (!bytes || *bytes > std::ssize(data)) {
    return corrupt("{}: has {} bytes; expected {} elements of {}", where, data.size(),
                   shape.elements(), type.bytes);
  }
  HOLDFAST_TRY(spend(shape.elements() * (1 + shape.rank()), *bytes, where));
  Cursor cursor = file_.cursor(data);
  return std::optional(HOLDFAST_TRY(nested(type, shape, 0, cursor, where)));
}

Result<Object> ValueReader::nested(const Datatype& type, const Shape& shape, int k,
                                   Cursor& cursor, const std::string& where) {
  if (k == shape.rank()) return element(type, cursor, where);
  Object::List list;
  if (shape.elements() == 0) return Object(std::move(list));
  for (int64_t i = 0; i < shape[k]; ++i) {
    list.items.push_back(HOLDFAST_TRY(nested(type, shape, k + 1, cursor, where)));
  }
  return Object(std::move(list));
}

Result<Object> ValueReader::element(const Datatype& type, Cursor& cursor,
                                    const std::string& where) {
  if (type.kind == Datatype::Kind::kText) {
    const std::string_view padded = text_of(cursor.take(type.bytes));
    return text_or_bytes(padded.substr(0, padded.find('\0')));
  }
  if (type.kind == Datatype::Kind::kHeapText) {
    const uint32_t length = cursor.u32();
    const uint64_t address = cursor.address();
    const uint32_t number = cursor.u32();
    if (length == 0) return Object(std::string());
    const ByteView text = HOLDFAST_TRY(heap_.find(address, number, where));
    if (text.size() < length) {
      return corrupt("{}: string of {} bytes lies in an object of {}", where, length,
                     text.size());
    }
    HOLDFAST_TRY(spend(0, length, where));
    return text_or_bytes(text_of(text.first(length)));
  }
  Bytes bytes = copy_of(cursor.take(type.bytes));
  swap_numbers(bytes, type.swapped);
  const DtypeInfo& of = info(type.dtype);
  const auto part = static_cast<size_t>(of.bytes / of.components);
  const auto bits = [&](size_t i) {
    return Cursor(ByteView(bytes).subspan(i * part, part), {}).number(part);
  };
  if (of.components == 1) return number_of_bits(type.dtype, bits(0));
  return Object(Object::Tuple{{Object(to_double(type.dtype, bits(0))),
                               Object(to_double(type.dtype, bits(1)))}});
}

Result<ValueReader::Strings> ValueReader::read_strings(const Dataset& dataset) {
  if (dataset.shape.elements() > kMostElements) {
    return unsupported("{} has {} strings; expected at most {}", dataset.where,
                       dataset.shape.elements(), kMostElements);
  }
  // Strings that were never written are empty, but take memory, as chunks do that reach
  // beyond the dataset.
  int64_t decoded = dataset.bytes();
  if (dataset.storage == Storage::kChunked) {
    decoded = dataset.chunk_bytes();
    for (int k = 0; k < dataset.shape.rank(); ++k) {
      decoded = checked_mul(decoded, dataset.grid(k)).value_or(INT64_MAX);
    }
  }
  HOLDFAST_TRY(spend(0, decoded, dataset.where));
  Bytes data(static_cast<size_t>(dataset.bytes()));
  if (dataset.storage == Storage::kPlain) {
    HOLDFAST_TRY(file_.source()->read(dataset.offset, data));
  }
  if (dataset.storage == Storage::kChunked) {
    HOLDFAST_TRY(read_all_chunks(*file_.source(), dataset, data));
  }
  auto value = HOLDFAST_TRY(value_of(dataset.type, dataset.shape, data, dataset.where));
  return Strings{.value = value ? *std::move(value) : Object(),
                 .stored = stored_as(dataset.type, dataset.shape, data)};
}

}  // namespace holdfast::hdf5
