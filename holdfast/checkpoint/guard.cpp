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
    for (const PieceToWrite& piece : shard.pieces) {
      digests_before_.push_back(piece.at_once ? Digest128{} : digest_of(piece));
    }
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
  before_.resize(total);
  for (size_t i = 0; i < samples_.size(); ++i) {
    if (shard.pieces[i].at_once) continue;
    gather(place_of(shard.pieces[i]), shard.pieces[i].memory, samples_[i].first,
           ByteSpan(before_).subspan(samples_[i].at,
                                     static_cast<size_t>(samples_[i].size)));
  }
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
  if (depth_ == Guard::kFull) {
    return digests_before_[i] != digests_[i] ||
           digest_of(shard_.pieces[i]) != digests_[i];
  }
  const Sample& sample = samples_[i];
  const auto size = static_cast<size_t>(sample.size);
  const ByteView copy = ByteView(bytes_).subspan(sample.at, size);
  if (std::memcmp(before_.data() + sample.at, copy.data(), size) != 0) return true;
  std::array<std::byte, kBlock> live;
  gather(place_of(shard_.pieces[i]), shard_.pieces[i].memory, sample.first,
         ByteSpan(live).first(size));
  return std::memcmp(live.data(), copy.data(), size) != 0;
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
