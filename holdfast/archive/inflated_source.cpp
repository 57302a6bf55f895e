#include "holdfast/archive/inflated_source.h"

#include <algorithm>
#include <array>

namespace holdfast {
namespace {

constexpr int64_t kInputBytes = int64_t{64} << 10;

}  // namespace

// Decodes into `into` what one read of input gives.
Result<Inflater::Progress> InflatedSource::decode_some(Cursor& cursor,
                                                       ByteSpan into) const {
  if (cursor.used == cursor.input.size() && cursor.taken < entry_.packed_size) {
    const int64_t count = std::min(kInputBytes, entry_.packed_size - cursor.taken);
    cursor.input =
        HOLDFAST_TRY(inner_->read_bytes(entry_.offset + cursor.taken, count));
    cursor.taken += count;
    cursor.used = 0;
  }
  const Inflater::Progress done = HOLDFAST_TRY(
      cursor.inflater.decode(ByteView(cursor.input).subspan(cursor.used), into)
          .within(name_));
  cursor.used += done.used;
  return done;
}

Result<void> InflatedSource::decode(Cursor& cursor, ByteSpan into) const {
  while (!into.empty()) {
    const Inflater::Progress done = HOLDFAST_TRY(decode_some(cursor, into));
    if (done.made == 0 && done.used == 0) {
      return corrupt("{}: its deflate stream ends after {} bytes; expected {}", name_,
                     cursor.at, entry_.size);
    }
    cursor.crc = crc32_extend(cursor.crc, into.first(done.made));
    cursor.at += static_cast<int64_t>(done.made);
    into = into.subspan(done.made);
  }
  return cursor.at == entry_.size ? check_end(cursor) : Result<void>();
}

// Called after the last byte. The stream must end here, and the CRC must be right.
Result<void> InflatedSource::check_end(Cursor& cursor) const {
  std::array<std::byte, 1> more{};
  while (!cursor.inflater.finished()) {
    const Inflater::Progress done = HOLDFAST_TRY(decode_some(cursor, more));
    if (done.made == 0 && (done.used > 0 || cursor.inflater.finished())) continue;
    return corrupt("{}: its deflate stream does not end after {} bytes; expected that",
                   name_, entry_.size);
  }
  if (entry_.crc == 0 || cursor.crc == entry_.crc) return {};
  return corrupt("{}: has crc {:08x}; expected {:08x}", name_, cursor.crc, entry_.crc);
}

Result<void> InflatedSource::read_inside(int64_t offset, ByteSpan into) const {
  if (into.empty()) return {};
  MutexLock lock(mutex_);
  if (!cursor_ || offset < cursor_->at) cursor_.emplace();
  const auto skip_and_read = [&](Cursor& cursor) -> Result<void> {
    Bytes skipped;
    while (cursor.at < offset) {
      skipped.resize(static_cast<size_t>(std::min(kInputBytes, offset - cursor.at)));
      HOLDFAST_TRY(decode(cursor, skipped));
    }
    return decode(cursor, into);
  };
  Result<void> done = skip_and_read(*cursor_);
  // At the end the memory is given back: there may be thousands of records.
  if (!done.ok() || cursor_->at == entry_.size) cursor_.reset();
  return done;
}

}  // namespace holdfast
