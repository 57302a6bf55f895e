#include "holdfast/contents/checked_source.h"

#include <algorithm>

namespace holdfast {
namespace {

// If a part of a record was read and the record has at most this many bytes, the rest
// of it is read too, so that its checksum can be checked.
constexpr int64_t kSmallRecord = int64_t{16} << 20;
constexpr int64_t kBlock = int64_t{1} << 20;

}  // namespace

size_t CheckedSource::record_at(int64_t offset) const {
  const auto next =
      std::ranges::upper_bound(records_, offset, {}, &CheckedRecord::offset);
  if (next == records_.begin()) return records_.size();
  const auto record = std::prev(next);
  const bool inside = offset < record->offset + record->size;
  return inside ? static_cast<size_t>(record - records_.begin()) : records_.size();
}

Result<void> CheckedSource::read_inside(int64_t offset, ByteSpan into) const {
  HOLDFAST_TRY(inner_->read(offset, into));
  const size_t number = record_at(offset);
  if (number == records_.size()) return {};
  const CheckedRecord& record = records_[number];
  const int64_t begin = offset - record.offset;
  const int64_t end = std::min(begin + std::ssize(into), record.size);
  MutexLock lock(mutex_);
  Progress& progress = progress_[number];
  if (begin > progress.at || end <= progress.at) return {};
  progress.crc =
      extend_(progress.crc, into.subspan(static_cast<size_t>(progress.at - begin),
                                         static_cast<size_t>(end - progress.at)));
  progress.at = end;
  return {};
}

Result<void> CheckedSource::read_rest(size_t record) const {
  const CheckedRecord& of = records_[record];
  Progress& progress = progress_[record];
  while (progress.at < of.size) {
    const Bytes part = HOLDFAST_TRY(inner_->read_bytes(
        of.offset + progress.at, std::min(kBlock, of.size - progress.at)));
    progress.crc = extend_(progress.crc, part);
    progress.at += std::ssize(part);
  }
  return {};
}

Result<void> CheckedSource::check_record(HolderId, int64_t offset, bool whole) const {
  const size_t number = record_at(offset);
  if (number == records_.size() || !records_[number].crc) return {};
  const CheckedRecord& record = records_[number];
  MutexLock lock(mutex_);
  if (!whole && record.size > kSmallRecord && progress_[number].at < record.size) {
    return {};
  }
  HOLDFAST_TRY(read_rest(number));
  if (progress_[number].crc == record.crc) return {};
  return corrupt("{}: {} has crc {:08x}; expected {:08x}", name(), record.name,
                 progress_[number].crc, *record.crc);
}

}  // namespace holdfast
