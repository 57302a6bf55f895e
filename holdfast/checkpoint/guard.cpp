#include "holdfast/checkpoint/guard.h"

#include <algorithm>
#include <cstring>

#include "holdfast/base/checked.h"

namespace holdfast {
namespace {

BoxMemory place_of(const PieceToWrite& piece) {
  return {.box = piece.box, .element_bytes = bytes_of(piece.dtype), .map = piece.map};
}

}  // namespace

CaptureGuard::CaptureGuard(Guard depth, const ShardToWrite& shard, uint64_t turn)
    : depth_(depth), shard_(shard) {
  if (depth == Guard::kFull) {
    digests_.resize(shard.pieces.size());
    return;
  }
  size_t total = 0;
  for (const PieceToWrite& piece : shard.pieces) {
    const auto blocks =
        static_cast<uint64_t>(std::max<int64_t>(divide_up(piece.bytes(), kBlock), 1));
    const int64_t first = static_cast<int64_t>(turn % blocks) * kBlock;
    const int64_t size = std::min(kBlock, piece.bytes() - first);
    samples_.push_back({.first = first, .size = size, .at = total});
    total += static_cast<size_t>(size);
  }
  bytes_.resize(total);
}

void CaptureGuard::staged(int64_t offset, ByteView bytes) {
  const int64_t end = offset + std::ssize(bytes);
  for (; piece_ < shard_.pieces.size(); ++piece_) {
    const PieceToWrite& piece = shard_.pieces[piece_];
    if (piece.offset >= end) return;
    const int64_t first = std::max(offset, piece.offset);
    const int64_t last = std::min(end, piece.offset + piece.bytes());
    note(piece_, first - piece.offset,
         bytes.subspan(static_cast<size_t>(first - offset),
                       static_cast<size_t>(std::max<int64_t>(last - first, 0))));
    if (piece.offset + piece.bytes() > end) return;
    if (depth_ == Guard::kFull) {
      digests_[piece_] = stream_.digest();
      stream_ = Xxh3Stream();
    }
  }
}

void CaptureGuard::note(size_t piece, int64_t offset, ByteView bytes) {
  if (depth_ == Guard::kFull) {
    stream_.append(bytes);
    return;
  }
  const Sample& sample = samples_[piece];
  const int64_t first = std::max(offset, sample.first);
  const int64_t last = std::min(offset + std::ssize(bytes), sample.first + sample.size);
  if (first >= last) return;
  std::memcpy(bytes_.data() + sample.at + (first - sample.first),
              bytes.data() + (first - offset), static_cast<size_t>(last - first));
}

std::vector<size_t> CaptureGuard::changed() const {
  std::vector<size_t> changed;
  for (size_t i = 0; i < shard_.pieces.size(); ++i) {
    // What was copied inside save() cannot have been torn.
    if (!shard_.pieces[i].at_once && differs(i)) changed.push_back(i);
  }
  return changed;
}

bool CaptureGuard::differs(size_t i) const {
  const PieceToWrite& piece = shard_.pieces[i];
  if (depth_ == Guard::kFull) return digest_of(piece) != digests_[i];
  const Sample& sample = samples_[i];
  std::array<std::byte, kBlock> live;
  const ByteSpan window = ByteSpan(live).first(static_cast<size_t>(sample.size));
  gather(place_of(piece), piece.memory, sample.first, window);
  return std::memcmp(window.data(), bytes_.data() + sample.at, window.size()) != 0;
}

void CaptureGuard::settle(Result<void> verdict) {
  MutexLock lock(mutex_);
  if (!verdict_.has_value()) verdict_ = std::move(verdict);
  changed_.notify_all();
}

Result<void> CaptureGuard::settled() {
  MutexLock lock(mutex_);
  while (!verdict_.has_value()) changed_.wait(mutex_);
  return *verdict_;
}

}  // namespace holdfast
