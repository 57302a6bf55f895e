#include "holdfast/checkpoint/guard.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <set>
#include <utility>

#include "holdfast/base/checked.h"

namespace holdfast {

CaptureGuard::CaptureGuard(Guard depth, std::span<const PieceToWrite> pieces,
                           uint64_t turn)
    : depth_(depth), pieces_(pieces), samples_(pieces.size()) {
  for (size_t i = 0; i < pieces_.size(); ++i) {
    if (is_guarded(i)) samples_[i] = choose(pieces_[i], turn);
  }
  for (size_t i = 0; i < pieces_.size(); ++i) {
    if (!is_read_here(i)) continue;
    // One that cannot be read is seen when it is staged.
    const Result<Digest128> digest = digest_now(i);
    if (digest.ok()) samples_[i].before = *digest;
  }
}

CaptureGuard::Sample CaptureGuard::choose(const PieceToWrite& piece,
                                          uint64_t turn) const {
  const int64_t bytes = piece.bytes();
  if (depth_ == Guard::kFull) return {.first = 0, .size = bytes};
  const auto blocks =
      static_cast<uint64_t>(std::max<int64_t>(divide_up(bytes, kBlock), 1));
  const int64_t first = static_cast<int64_t>(turn % blocks) * kBlock;
  return {.first = first, .size = std::min(kBlock, bytes - first)};
}

Result<Digest128> CaptureGuard::digest_now(size_t i) const {
  return digest_of(pieces_[i], samples_[i].first, samples_[i].size);
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
    if (is_guarded(piece_))
      samples_[piece_].copied = std::exchange(stream_, {}).digest();
  }
}

void CaptureGuard::note(size_t piece, int64_t offset, ByteView bytes) {
  const Sample& sample = samples_[piece];
  const int64_t first = std::max(offset, sample.first);
  const int64_t last = std::min(offset + std::ssize(bytes), sample.first + sample.size);
  if (first >= last) return;
  stream_.append(bytes.subspan(static_cast<size_t>(first - offset),
                               static_cast<size_t>(last - first)));
}

Result<std::vector<size_t>> CaptureGuard::changed() const {
  std::vector<size_t> changed;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    if (!is_read_here(i)) continue;
    const Sample& sample = samples_[i];
    if (sample.before != sample.copied ||
        HOLDFAST_TRY(digest_now(i)) != sample.copied) {
      changed.push_back(i);
    }
  }
  return changed;
}

void CaptureGuard::probe(DeviceRooms& rooms, CudaStream stream) {
  if (depth_ != Guard::kSample) return;
  std::vector<DeviceBlock> blocks;
  probed_.clear();
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const PieceToWrite& piece = pieces_[i];
    if (piece.device == nullptr || piece.at_once) continue;
    const auto memory = piece.window(samples_[i].first, samples_[i].size);
    if (!memory.has_value()) continue;  // it is scattered
    probed_.push_back(i);
    blocks.push_back({.device = piece.device, .memory = *memory});
  }
  if (blocks.empty()) return;
  // A device without a few MiB to spare does without: versions are still looked at.
  if (auto taken = rooms.probe(blocks, stream); taken.ok()) {
    std::ranges::move(*taken, std::back_inserter(probes_));
  }
}

Result<std::vector<size_t>> CaptureGuard::probed() {
  std::set<size_t> changed;
  for (const DeviceProbe& probe : probes_) {
    const Device& device = probe.snapshot->device();
    for (size_t k = 0; k < probe.copies.size(); ++k) {
      const ByteView copy = probe.copies[k];
      if (copy.empty()) continue;  // another one's
      std::array<std::byte, kBlock> live;
      const ByteSpan window = ByteSpan(live).first(copy.size());
      HOLDFAST_TRY(device.read(plain_bytes(std::ssize(copy)), copy, 0, window));
      HOLDFAST_TRY(HOLDFAST_TRY(device.mark()).wait());
      if (xxh3_128(window) != samples_[probed_[k]].copied) changed.insert(probed_[k]);
    }
  }
  probes_.clear();
  return std::vector<size_t>(changed.begin(), changed.end());
}

}  // namespace holdfast
