#include "holdfast/checkpoint/verified_source.h"

#include <algorithm>
#include <cstring>

#include "holdfast/base/crc32c.h"
#include "holdfast/shard/chunk_reader.h"

namespace holdfast {

Result<std::shared_ptr<VerifiedSource>> VerifiedSource::open(Env& env, const Path& path,
                                                             ShardFile file) {
  auto source = HOLDFAST_TRY(FileSource::open(env, path));
  if (source->size() != file.bytes) {
    return corrupt("{}: has {} bytes; expected {}", path.native(), source->size(),
                   file.bytes);
  }
  return std::shared_ptr<VerifiedSource>(
      new VerifiedSource(std::move(source), std::move(file)));
}

Result<void> VerifiedSource::load(size_t number) const {
  if (number == number_) return {};
  number_ = SIZE_MAX;
  const ByteExtent place = place_of(file_, number);
  stored_.resize(static_cast<size_t>(place.bytes));
  HOLDFAST_TRY(source_->read(place.offset, stored_));
  Result<ByteView> bytes = open_chunk(file_, number, stored_, chunk_);
  if (!bytes.ok()) return bytes.error().within(name());
  if (file_.packed.empty()) chunk_ = stored_;
  HOLDFAST_TRY(check_chunk(name(), file_,
                           {.number = number, .bytes = chunk_, .crc = crc32c(chunk_)}));
  number_ = number;
  return {};
}

Result<void> VerifiedSource::read_inside(int64_t offset, ByteSpan into) const {
  const int64_t end = offset + static_cast<int64_t>(into.size());
  const ChunkRange range = chunks_of(file_, offset, end);
  for (size_t number = range.first; number < range.last; ++number) {
    const Chunk& chunk = file_.chunks[number];
    const int64_t first = std::max(offset, chunk.offset);
    const int64_t last = std::min(end, chunk.offset + chunk.bytes);
    const ByteSpan part = into.subspan(static_cast<size_t>(first - offset),
                                       static_cast<size_t>(last - first));
    if (last - first == chunk.bytes && file_.packed.empty()) {
      HOLDFAST_TRY(read_whole(number, part));
      continue;
    }
    MutexLock lock(mutex_);
    HOLDFAST_TRY(load(number));
    std::memcpy(part.data(), chunk_.data() + (first - chunk.offset), part.size());
  }
  return {};
}

Result<void> VerifiedSource::read_whole(size_t number, ByteSpan into) const {
  HOLDFAST_TRY(source_->read(place_of(file_, number).offset, into));
  return check_chunk(name(), file_,
                     {.number = number, .bytes = into, .crc = crc32c(into)});
}

}  // namespace holdfast
