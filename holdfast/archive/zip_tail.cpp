#include "holdfast/archive/zip_tail.h"

#include <algorithm>
#include <map>

#include "holdfast/archive/zip_internal.h"

namespace holdfast {
namespace {

using zip::Header;

uint16_t load_u16(ByteView bytes, size_t at) {
  return load_little_endian<uint16_t>(bytes.subspan(at));
}

// What the directory says about a record, without its name and extra fields.
struct Listed {
  Bytes whole;  // as it was
  uint16_t flags() const { return load_u16(whole, 8); }
  uint16_t time() const { return load_u16(whole, 12); }
  uint16_t date() const { return load_u16(whole, 14); }
};

Result<Listed> read_listed(const Source& source, const ZipEntry& entry) {
  const Bytes fixed =
      HOLDFAST_TRY(source.read_bytes(entry.listed_offset, zip::kCentralBytes));
  const int64_t more =
      load_u16(fixed, 28) + load_u16(fixed, 30) + int64_t{load_u16(fixed, 32)};
  return Listed{
      HOLDFAST_TRY(source.read_bytes(entry.listed_offset, zip::kCentralBytes + more))};
}

// The new record has no descriptor, because its sizes are known.
uint16_t flags_of(const Listed& listed) {
  return static_cast<uint16_t>(listed.flags() & ~zip::kHasDescriptor);
}

Bytes local_header(const ReplacedRecord& record, const Listed& listed) {
  const ZipEntry& entry = *record.entry;
  Header header;
  header.u32(zip::kLocalMark).u16(20).u16(flags_of(listed)).u16(zip::kDeflated);
  header.u16(listed.time()).u16(listed.date()).u32(record.crc);
  header.u32(record.packed.size()).u32(static_cast<uint64_t>(entry.size));
  header.u16(entry.name.size()).u16(0).text(entry.name);
  return header.bytes();
}

Bytes central_header(const ReplacedRecord& record, const Listed& listed, int64_t at) {
  const ZipEntry& entry = *record.entry;
  const bool far = at >= zip::kIn64;
  Header header;
  header.u32(zip::kCentralMark).u16(load_u16(listed.whole, 4)).u16(far ? 45 : 20);
  header.u16(flags_of(listed)).u16(zip::kDeflated);
  header.u16(listed.time()).u16(listed.date()).u32(record.crc);
  header.u32(record.packed.size()).u32(static_cast<uint64_t>(entry.size));
  header.u16(entry.name.size()).u16(far ? 12 : 0).u16(0).u16(0);
  header.u16(load_u16(listed.whole, 36));
  header.u32(load_little_endian<uint32_t>(ByteView(listed.whole).subspan(38)));
  header.u32(far ? uint64_t{zip::kIn64} : static_cast<uint64_t>(at)).text(entry.name);
  if (far) header.u16(zip::kZip64Extra).u16(8).u64(at);
  return header.bytes();
}

void append(Bytes& out, ByteView bytes) {
  out.insert(out.end(), bytes.begin(), bytes.end());
}

}  // namespace

Result<Bytes> make_zip_tail(const Source& edited, const ZipArchive& archive,
                            std::span<const ReplacedRecord> records) {
  Bytes tail;
  std::map<const ZipEntry*, Bytes> central;
  for (const ReplacedRecord& record : records) {
    const ZipEntry& entry = *record.entry;
    if (std::ssize(record.packed) >= zip::kIn64 || entry.size >= zip::kIn64) {
      return unsupported(
          "{}: a compressed record of {} bytes cannot be patched; expected "
          "less than 4 GiB",
          archive.name_of_record(entry), entry.size);
    }
    const Listed listed = HOLDFAST_TRY(read_listed(edited, entry));
    const int64_t at = archive.directory_offset() + std::ssize(tail);
    central[&entry] = central_header(record, listed, at);
    append(tail, local_header(record, listed));
    append(tail, record.packed);
  }
  const int64_t offset = archive.directory_offset() + std::ssize(tail);
  std::vector<const ZipEntry*> order;
  for (const ZipEntry& entry : archive.entries()) order.push_back(&entry);
  std::ranges::sort(order, {}, &ZipEntry::listed_offset);
  for (const ZipEntry* entry : order) {
    const auto found = central.find(entry);
    append(tail, found != central.end()
                     ? found->second
                     : HOLDFAST_TRY(read_listed(edited, *entry)).whole);
  }
  const int64_t end = archive.directory_offset() + std::ssize(tail);
  append(tail,
         zip::end_records(
             {.entries = std::ssize(order), .offset = offset, .size = end - offset}));
  return tail;
}

}  // namespace holdfast
