#include "holdfast/formats/zip_checked_source.h"

#include <algorithm>

namespace holdfast {
namespace {

// If a part of a record was read and the record has at most this many bytes, the rest
// of it is read too, so that its CRC can be checked.
constexpr int64_t kSmallRecord = int64_t{16} << 20;
constexpr int64_t kBlock = int64_t{1} << 20;

}  // namespace

size_t ZipCheckedSource::record_at(int64_t offset) const {
  const auto next = std::ranges::upper_bound(entries_, offset, {}, &ZipEntry::offset);
  if (next == entries_.begin()) return entries_.size();
  const auto entry = std::prev(next);
  const bool inside = offset < entry->offset + entry->size;
  return inside ? static_cast<size_t>(entry - entries_.begin()) : entries_.size();
}

Result<void> ZipCheckedSource::read_inside(int64_t offset, ByteSpan into) const {
  HOLDFAST_TRY(inner_->read(offset, into));
  const size_t record = record_at(offset);
  if (record == entries_.size()) return {};
  const ZipEntry& entry = entries_[record];
  const int64_t begin = offset - entry.offset;
  const int64_t end = std::min(begin + std::ssize(into), entry.size);
  MutexLock lock(mutex_);
  Progress& progress = progress_[record];
  if (begin > progress.at || end <= progress.at) return {};
  progress.crc =
      crc32_extend(progress.crc, into.subspan(static_cast<size_t>(progress.at - begin),
                                              static_cast<size_t>(end - progress.at)));
  progress.at = end;
  return {};
}

Result<void> ZipCheckedSource::read_rest(size_t record) const {
  const ZipEntry& entry = entries_[record];
  Progress& progress = progress_[record];
  while (progress.at < entry.size) {
    const Bytes part = HOLDFAST_TRY(inner_->read_bytes(
        entry.offset + progress.at, std::min(kBlock, entry.size - progress.at)));
    progress.crc = crc32_extend(progress.crc, part);
    progress.at += std::ssize(part);
  }
  return {};
}

Result<void> ZipCheckedSource::check_record(int64_t offset, bool whole) const {
  const size_t record = record_at(offset);
  if (record == entries_.size() || entries_[record].crc == 0) return {};
  const ZipEntry& entry = entries_[record];
  MutexLock lock(mutex_);
  if (!whole && entry.size > kSmallRecord && progress_[record].at < entry.size) {
    return {};
  }
  HOLDFAST_TRY(read_rest(record));
  if (progress_[record].crc == entry.crc) return {};
  return corrupt("{}: entry {} has crc {:08x}; expected {:08x}", name(), entry.name,
                 progress_[record].crc, entry.crc);
}

}  // namespace holdfast
