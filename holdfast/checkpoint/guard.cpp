#include "holdfast/checkpoint/guard.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "holdfast/base/checked.h"

namespace holdfast {
namespace {

// The block of a device's piece, as one to copy; none if it is scattered.
std::optional<PieceToWrite> block_of(const PieceToWrite& piece, int64_t first,
                                     int64_t size) {
  const Map dense = Map::dense(piece.box, bytes_of(piece.dtype), piece.map.offset);
  if (piece.device == nullptr || piece.at_once || piece.map != dense)
    return std::nullopt;
  const Box box{{0, size}};
  return PieceToWrite{
      .shape = {size},
      .dtype = Dtype::kU8,
      .box = box,
      .memory = piece.memory.subspan(static_cast<size_t>(piece.map.offset + first),
                                     static_cast<size_t>(size)),
      .map = Map::dense(box, 1),
      .device = piece.device};
}

}  // namespace

CaptureGuard::CaptureGuard(Guard depth, std::vector<PieceToWrite> pieces, uint64_t turn)
    : depth_(depth), pieces_(std::move(pieces)) {
  if (depth == Guard::kFull) {
    digests_.resize(pieces_.size());
    return;
  }
  size_t total = 0;
  for (const PieceToWrite& piece : pieces_) {
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
  for (; piece_ < pieces_.size(); ++piece_) {
    const PieceToWrite& piece = pieces_[piece_];
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

Result<std::vector<size_t>> CaptureGuard::changed() const {
  std::vector<size_t> changed;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    // What was copied inside save() cannot have been torn.
    if (pieces_[i].at_once) continue;
    if (pieces_[i].device != nullptr && depth_ == Guard::kSample) continue;
    if (HOLDFAST_TRY(differs(i))) changed.push_back(i);
  }
  return changed;
}

Result<bool> CaptureGuard::differs(size_t i) const {
  if (depth_ == Guard::kFull) return HOLDFAST_TRY(digest_of(pieces_[i])) != digests_[i];
  const Sample& sample = samples_[i];
  std::array<std::byte, kBlock> live;
  const ByteSpan window = ByteSpan(live).first(static_cast<size_t>(sample.size));
  HOLDFAST_TRY(read_piece(pieces_[i], sample.first, window));
  return differs(sample, window);
}

bool CaptureGuard::differs(const Sample& sample, ByteView live) const {
  return std::memcmp(live.data(), bytes_.data() + sample.at, live.size()) != 0;
}

Result<void> CaptureGuard::probe(DeviceRooms& rooms, CudaStream stream) {
  if (depth_ != Guard::kSample) return {};
  std::vector<PieceToWrite> blocks;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const Sample& sample = samples_[i];
    const auto block = block_of(pieces_[i], sample.first, sample.size);
    if (!block.has_value()) continue;
    probed_.push_back(i);
    blocks.push_back(*block);
  }
  if (blocks.empty()) return {};
  probes_ = HOLDFAST_TRY(rooms.probe(blocks, stream));
  return {};
}

Result<std::vector<size_t>> CaptureGuard::probed() {
  std::vector<size_t> changed;
  for (const auto& probe : probes_) {
    for (size_t k = 0; k < probe->pieces().size(); ++k) {
      const PieceToWrite& copy = probe->pieces()[k];
      const Sample& sample = samples_[probed_[k]];
      // The probe of another device has it as it was.
      if (copy.memory.data() == nullptr || copy.device == nullptr) continue;
      std::array<std::byte, kBlock> live;
      const ByteSpan window = ByteSpan(live).first(static_cast<size_t>(sample.size));
      HOLDFAST_TRY(read_piece(copy, 0, window));
      if (differs(sample, window)) changed.push_back(probed_[k]);
    }
  }
  probes_.clear();
  return changed;
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
