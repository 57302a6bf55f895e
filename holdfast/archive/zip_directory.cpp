// Reads the central directory of a zip archive and checks everything in it.
#include <algorithm>
#include <optional>

#include "holdfast/base/checked.h"
#include "holdfast/archive/zip_directory_internal.h"
#include "holdfast/archive/zip_internal.h"
#include "holdfast/archive/zip_reader.h"

namespace holdfast::zip {
namespace {

// Limits for a directory. No directory that names real tensors is larger.
constexpr int64_t kMaxDirectoryBytes = int64_t{1} << 29;
constexpr int64_t kMaxEntries = int64_t{1} << 22;

uint16_t u16(ByteView bytes, size_t at) {
  return load_little_endian<uint16_t>(bytes.subspan(at));
}
uint32_t u32(ByteView bytes, size_t at) {
  return load_little_endian<uint32_t>(bytes.subspan(at));
}
// Returns nullopt for numbers above 63 bits, because such a number lies outside any
// file.
std::optional<int64_t> i64(ByteView bytes, size_t at) {
  const auto value = load_little_endian<uint64_t>(bytes.subspan(at));
  if (value > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
  return static_cast<int64_t>(value);
}

// What the records at the end of the file say about the directory.
struct End {
  int64_t entries = 0;
  int64_t size = 0;
  int64_t offset = 0;
  // The directory must end here, at the first byte of these records.
  int64_t limit = 0;
};

// Reads the record at the end of the file. Refuses a comment after it, because a
// comment could hold a second such record, and tools differ in which one they use.
Result<Bytes> read_end_record(const Source& source) {
  if (source.size() >= kEndBytes) {
    Bytes end = HOLDFAST_TRY(source.read_bytes(source.size() - kEndBytes, kEndBytes));
    if (u32(end, 0) == kEndMark && u16(end, 20) == 0) return end;
  }
  return corrupt(
      "{}: has no end of a zip directory in its last bytes; the file is cut off, has a "
      "comment or is not a zip file",
      source.name());
}

// Reads the zip64 record, whose fields replace fields that are too small for their
// values.
Result<End> read_end64(const Source& source, int64_t locator_at, ByteView locator) {
  const auto at = i64(locator, 8);
  if (u32(locator, 4) != 0 || u32(locator, 16) > 1) {
    return unsupported("{}: is a part of a zip archive over several files",
                       source.name());
  }
  if (!at || *at > locator_at - kEnd64Bytes) {
    return corrupt("{}: the zip64 record is said to be at {}; expected below {}",
                   source.name(), load_little_endian<uint64_t>(locator.subspan(8)),
                   locator_at);
  }
  const Bytes record = HOLDFAST_TRY(source.read_bytes(*at, kEnd64Bytes));
  const auto record_size = i64(record, 4);
  if (u32(record, 0) != kEnd64Mark || !record_size ||
      *record_size != locator_at - *at - 12) {
    return corrupt("{}: has no zip64 record of the right size at byte {}",
                   source.name(), *at);
  }
  if (u32(record, 16) != 0 || u32(record, 20) != 0) {
    return unsupported("{}: is a part of a zip archive over several files",
                       source.name());
  }
  const auto here = i64(record, 24), entries = i64(record, 32);
  const auto size = i64(record, 40), offset = i64(record, 48);
  if (!here || !entries || *here != *entries || !size || !offset) {
    return corrupt("{}: the numbers of the zip64 record contradict each other",
                   source.name());
  }
  return End{.entries = *entries, .size = *size, .offset = *offset, .limit = *at};
}

// Whether the small field has the value of the zip64 field, or says that the zip64
// field is used instead.
bool agree(int64_t value, int64_t small, int64_t instead) {
  return small == instead || small == value;
}

Result<End> read_end(const Source& source) {
  const Bytes end = HOLDFAST_TRY(read_end_record(source));
  const int64_t at = source.size() - kEndBytes;
  if (u16(end, 4) != 0 || u16(end, 6) != 0) {
    return unsupported("{}: is a part of a zip archive over several files",
                       source.name());
  }
  if (u16(end, 8) != u16(end, 10)) {
    return corrupt(
        "{}: the end record says {} entries in this file and {} in all; expected the "
        "same number",
        source.name(), u16(end, 8), u16(end, 10));
  }
  End seen{.entries = u16(end, 10),
           .size = u32(end, 12),
           .offset = u32(end, 16),
           .limit = at};
  if (at < kLocator64Bytes) return seen;
  const Bytes locator =
      HOLDFAST_TRY(source.read_bytes(at - kLocator64Bytes, kLocator64Bytes));
  if (u32(locator, 0) != kLocator64Mark) return seen;
  const End full = HOLDFAST_TRY(read_end64(source, at - kLocator64Bytes, locator));
  if (!agree(full.entries, seen.entries, kIn64Short) ||
      !agree(full.size, seen.size, kIn64) || !agree(full.offset, seen.offset, kIn64)) {
    return corrupt("{}: the zip64 record and the end record contradict each other",
                   source.name());
  }
  return full;
}

Result<void> check_end(const Source& source, const End& end) {
  if (end.size > end.limit || end.offset != end.limit - end.size) {
    return corrupt("{}: has a directory of {} bytes at {}; expected its end at {}",
                   source.name(), end.size, end.offset, end.limit);
  }
  if (end.size > kMaxDirectoryBytes || end.entries > kMaxEntries ||
      end.entries > end.size / kCentralBytes) {
    return corrupt("{}: {} entries in a directory of {} bytes, limits are {} and {}",
                   source.name(), end.entries, end.size, kMaxEntries,
                   kMaxDirectoryBytes);
  }
  return {};
}

Result<void> check_entry(const Source& source, const DirectoryEntry& entry) {
  if (!is_safe_zip_name(entry.name)) {
    return corrupt("{}: entry \"{}\": is not a safe name for a record", source.name(),
                   entry.name);
  }
  if ((entry.flags & kEncrypted) != 0) {
    return unsupported("{}: entry {}: is encrypted; expected one that is not",
                       source.name(), entry.name);
  }
  if (entry.method == 0 && entry.packed_size != entry.size) {
    return corrupt("{}: entry {}: {} bytes are stored as {}", source.name(), entry.name,
                   entry.size, entry.packed_size);
  }
  return {};
}

// Reads the zip64 field of an entry. Its values replace the values in `wanted`, which
// are in the order of the field: size, packed size, offset.
Result<void> read_extra64(const Source& source, std::string_view name, ByteView extra,
                          std::span<int64_t* const> wanted) {
  while (extra.size() >= 4) {
    const size_t count = u16(extra, 2);
    if (count > extra.size() - 4) break;
    if (u16(extra, 0) == kZip64Extra && count >= 8 * wanted.size()) {
      for (size_t i = 0; i < wanted.size(); ++i) {
        const auto value = i64(extra, 4 + 8 * i);
        if (!value)
          return corrupt("{}: entry {}: a size or offset is too large", source.name(),
                         name);
        *wanted[i] = *value;
      }
      return {};
    }
    extra = extra.subspan(4 + count);
  }
  return corrupt("{}: entry {}: has no zip64 field, although its sizes refer to one",
                 source.name(), name);
}

// Reads the entry at the front of `rest` and removes it from there.
Result<DirectoryEntry> read_entry(const Source& source, ByteView& rest) {
  if (rest.size() < static_cast<size_t>(kCentralBytes) ||
      u32(rest, 0) != kCentralMark) {
    return corrupt("{}: the directory is damaged {} bytes before its end",
                   source.name(), rest.size());
  }
  const size_t name_size = u16(rest, 28), extra_size = u16(rest, 30);
  const size_t whole = kCentralBytes + name_size + extra_size + u16(rest, 32);
  if (whole > rest.size()) {
    return corrupt("{}: has an entry of {} bytes, but the directory ends after {}",
                   source.name(), whole, rest.size());
  }
  DirectoryEntry entry{.name = std::string(text_of(rest.subspan(46, name_size))),
                       .header_offset = u32(rest, 42),
                       .size = u32(rest, 24),
                       .packed_size = u32(rest, 20),
                       .crc = u32(rest, 16),
                       .flags = u16(rest, 8),
                       .method = u16(rest, 10)};
  if (u16(rest, 34) != 0) {
    return unsupported("{}: is a part of a zip archive over several files",
                       source.name());
  }
  std::vector<int64_t*> wanted;
  for (int64_t* value : {&entry.size, &entry.packed_size, &entry.header_offset}) {
    if (*value == kIn64) wanted.push_back(value);
  }
  if (!wanted.empty()) {
    const ByteView extra = rest.subspan(46 + name_size, extra_size);
    HOLDFAST_TRY(read_extra64(source, entry.name, extra, wanted));
  }
  HOLDFAST_TRY(check_entry(source, entry));
  rest = rest.subspan(whole);
  return entry;
}

}  // namespace

Result<Directory> read_directory(const Source& source) {
  const End end = HOLDFAST_TRY(read_end(source));
  HOLDFAST_TRY(check_end(source, end));
  const Bytes bytes = HOLDFAST_TRY(source.read_bytes(end.offset, end.size));
  Directory directory{.offset = end.offset};
  directory.entries.reserve(static_cast<size_t>(end.entries));
  ByteView rest = bytes;
  for (int64_t i = 0; i < end.entries; ++i) {
    const int64_t at = end.offset + std::ssize(bytes) - std::ssize(rest);
    directory.entries.push_back(HOLDFAST_TRY(read_entry(source, rest)));
    DirectoryEntry& entry = directory.entries.back();
    entry.listed_offset = at;
    if (entry.header_offset > end.offset || entry.packed_size > end.offset) {
      return corrupt("{}: entry {}: {} bytes at {}, but the directory begins at {}",
                     source.name(), entry.name, entry.packed_size, entry.header_offset,
                     end.offset);
    }
  }
  if (!rest.empty()) {
    return corrupt("{}: {} bytes follow the last entry of the directory", source.name(),
                   rest.size());
  }
  return directory;
}

}  // namespace holdfast::zip

namespace holdfast {

bool is_safe_zip_name(std::string_view name) {
  if (name.empty() || name.front() == '/') return false;
  if (name.find('\\') != name.npos || name.find('\0') != name.npos) return false;
  while (true) {
    const size_t slash = name.find('/');
    const std::string_view part = name.substr(0, slash);
    if (part == "." || part == ".." || (part.empty() && slash != name.npos)) {
      return false;
    }
    if (slash == name.npos) return true;
    name.remove_prefix(slash + 1);
  }
}

}  // namespace holdfast
