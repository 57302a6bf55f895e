#include "holdfast/archive/zip_writer.h"

#include "holdfast/archive/zip_internal.h"

namespace holdfast {
namespace {

using zip::Header;

constexpr uint16_t kFlags = zip::kHasDescriptor | zip::kUtf8Names;

uint64_t version_of(bool zip64) { return zip64 ? 45 : 20; }

uint64_t field_bytes(const std::vector<int64_t>& values) {
  return values.empty() ? 0 : 4 + 8 * values.size();
}

void put_field(Header& header, const std::vector<int64_t>& values) {
  if (values.empty()) return;
  header.u16(zip::kZip64Extra).u16(8 * values.size());
  for (const int64_t value : values) header.u64(value);
}

}  // namespace

std::vector<int64_t> ZipWriter::values64(const Entry& entry) const {
  std::vector<int64_t> values;
  if (large(entry.size)) values = {entry.size, entry.size};
  if (large(entry.offset)) values.push_back(entry.offset);
  return values;
}

Result<void> ZipWriter::begin(std::string_view name, int64_t size) {
  HOLDFAST_CHECK(left_ == 0 && size >= 0, "{} bytes left, {} to come", left_, size);
  if (name.empty() || name.size() > 0xffff) {
    return invalid("zip: a name of {} bytes; expected 1 to 65535", name.size());
  }
  const Entry entry{std::string(name), position(), size, 0};
  const std::vector<int64_t> values = values64(entry);
  // Uses torch's order and padding, so that torch's own computation of offsets finds
  // the records. torch repeats the offset in the zip64 field of the local header; other
  // readers skip it.
  const uint64_t field = field_bytes(values);
  const uint64_t start =
      static_cast<uint64_t>(entry.offset + zip::kLocalBytes) + name.size() + field + 4;
  const uint64_t padding =
      (zip::kAlignment - start % zip::kAlignment) % zip::kAlignment;
  const uint32_t size_field = large(size) ? zip::kIn64 : 0;
  Header header;
  header.u32(zip::kLocalMark).u16(version_of(large(entry))).u16(kFlags).u16(0);
  header.u16(0).u16(0).u32(0).u32(size_field).u32(size_field);
  header.u16(name.size()).u16(field + 4 + padding).text(name);
  put_field(header, values);
  header.u16(zip::kPaddingExtra).u16(padding).fill(padding, 'Z');
  HOLDFAST_TRY(sink_.append(header.bytes()));
  entries_.push_back(entry);
  left_ = size;
  return {};
}

Result<void> ZipWriter::append(ByteView bytes) {
  HOLDFAST_CHECK(static_cast<int64_t>(bytes.size()) <= left_, "{} bytes, {} left",
                 bytes.size(), left_);
  Entry& entry = entries_.back();
  entry.crc = crc32_extend(entry.crc, bytes);
  left_ -= static_cast<int64_t>(bytes.size());
  return sink_.append(bytes);
}

Result<Crc32> ZipWriter::end() {
  const Entry& entry = entries_.back();
  HOLDFAST_CHECK(left_ == 0, "{}: {} bytes are missing", entry.name, left_);
  Header header;
  header.u32(zip::kDescriptorMark).u32(entry.crc);
  if (large(entry)) {
    header.u64(entry.size).u64(entry.size);
  } else {
    header.u32(static_cast<uint64_t>(entry.size))
        .u32(static_cast<uint64_t>(entry.size));
  }
  HOLDFAST_TRY(sink_.append(header.bytes()));
  return entry.crc;
}

Result<Crc32> ZipWriter::add(std::string_view name, ByteView bytes) {
  HOLDFAST_TRY(begin(name, static_cast<int64_t>(bytes.size())));
  HOLDFAST_TRY(append(bytes));
  return end();
}

Result<void> ZipWriter::write_central(const Entry& entry) {
  const std::vector<int64_t> values = values64(entry);
  const uint64_t size =
      large(entry.size) ? zip::kIn64 : static_cast<uint64_t>(entry.size);
  const uint64_t offset =
      large(entry.offset) ? zip::kIn64 : static_cast<uint64_t>(entry.offset);
  const uint64_t version = version_of(large(entry));
  Header header;
  header.u32(zip::kCentralMark).u16(version).u16(version).u16(kFlags).u16(0);
  header.u16(0).u16(0).u32(entry.crc).u32(size).u32(size);
  header.u16(entry.name.size()).u16(field_bytes(values));
  header.u16(0).u16(0).u16(0).u32(0).u32(offset).text(entry.name);
  put_field(header, values);
  return sink_.append(header.bytes());
}

Result<void> ZipWriter::finish() {
  HOLDFAST_CHECK(left_ == 0, "{} bytes of a record are missing", left_);
  const int64_t offset = position();
  for (const Entry& entry : entries_) HOLDFAST_TRY(write_central(entry));
  return write_ends(offset, position() - offset);
}

Result<void> ZipWriter::write_ends(int64_t offset, int64_t size) {
  return sink_.append(zip::end_records({.entries = std::ssize(entries_),
                                        .offset = offset,
                                        .size = size,
                                        .zip64_from = options_.zip64_from}));
}

Bytes zip::end_records(const Ends& ends) {
  const auto field_of = [&](int64_t value) {
    return value >= ends.zip64_from ? kIn64 : static_cast<uint64_t>(value);
  };
  const uint64_t count_field = ends.entries < kIn64Short
                                   ? static_cast<uint64_t>(ends.entries)
                                   : uint64_t{kIn64Short};
  Header header;
  // NumPy knows an archive without records by its first bytes, which must be kEndMark.
  const bool large = ends.size >= ends.zip64_from || ends.offset >= ends.zip64_from;
  if (ends.entries > 0 || large) {
    header.u32(kEnd64Mark).u64(kEnd64Bytes - 12).u16(45).u16(45).u32(0).u32(0);
    header.u64(ends.entries).u64(ends.entries).u64(ends.size).u64(ends.offset);
    header.u32(kLocator64Mark).u32(0).u64(ends.offset + ends.size).u32(1);
  }
  header.u32(kEndMark).u16(0).u16(0).u16(count_field).u16(count_field);
  header.u32(field_of(ends.size)).u32(field_of(ends.offset)).u16(0);
  return header.bytes();
}

}  // namespace holdfast
