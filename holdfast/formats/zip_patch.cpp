#include "holdfast/formats/zip_patch.h"

#include <algorithm>
#include <array>

namespace holdfast {

size_t record_at(const ZipArchive& archive, int64_t offset) {
  const std::vector<ZipEntry>& entries = archive.entries();
  const auto next = std::ranges::upper_bound(entries, offset, {}, &ZipEntry::offset);
  if (next == entries.begin()) return entries.size();
  const auto entry = std::prev(next);
  const bool inside = offset < entry->offset + entry->packed_size;
  return inside ? static_cast<size_t>(entry - entries.begin()) : entries.size();
}

void ZipCrcEdit::add(int64_t offset, ByteView mask) {
  offset -= begin_;
  const size_t record = record_at(archive_, offset);
  if (record == archive_.entries().size()) return;
  const ZipEntry& entry = archive_.entries()[record];
  const int64_t end = entry.offset + entry.size;
  changes_[record] ^=
      crc32_change(mask, static_cast<uint64_t>(end - offset - std::ssize(mask)));
}

Result<void> ZipCrcEdit::write() const {
  for (const auto& [record, change] : changes_) {
    const ZipEntry& entry = archive_.entries()[record];
    if (entry.crc == 0) continue;
    std::array<std::byte, 4> bytes{};
    store_little_endian(entry.crc ^ change, bytes);
    for (const int64_t at : HOLDFAST_TRY(archive_.find_crcs(entry))) {
      HOLDFAST_TRY(edit_.write(begin_ + at, bytes));
    }
  }
  return {};
}

}  // namespace holdfast
