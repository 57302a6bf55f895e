#include "holdfast/checkpoint/guard.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <set>
#include <utility>

#include "holdfast/base/checked.h"

namespace holdfast {
namespace {

// The block of a device's piece, as one to copy; none if it is scattered.
std::optional<PieceToWrite> block_of(const PieceToWrite& piece, int64_t first,
                                     int64_t size) {
  if (piece.device == nullptr || piece.at_once) return std::nullopt;
  const std::optional<ByteView> memory = piece.window(first, size);
  if (!memory.has_value()) return std::nullopt;
  const Box box{{0, size}};
  return PieceToWrite{.shape = {size},
                      .dtype = Dtype::kU8,
                      .box = box,
                      .memory = *memory,
                      .map = Map::dense(box, 1),
                      .device = piece.device};
}

}  // namespace

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
  std::vector<PieceToWrite> blocks;
  std::vector<size_t> numbers;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const auto block = block_of(pieces_[i], samples_[i].first, samples_[i].size);
    if (!block.has_value()) continue;
    numbers.push_back(i);
    blocks.push_back(*block);
  }
  probed_ = std::move(numbers);
  if (blocks.empty()) return;
  // A device without a few MiB to spare does without: versions are still looked at.
  if (auto taken = rooms.probe(blocks, stream); taken.ok()) {
    std::ranges::move(*taken, std::back_inserter(probes_));
  }
}

Result<std::vector<size_t>> CaptureGuard::probed() {
  std::set<size_t> changed;
  for (const auto& probe : probes_) {
    for (size_t k = 0; k < probe->pieces().size(); ++k) {
      const PieceToWrite& copy = probe->pieces()[k];
      if (copy.device != &probe->device()) continue;  // that of another one has it
      const Sample& sample = samples_[probed_[k]];
      std::array<std::byte, kBlock> live;
      const ByteSpan window = ByteSpan(live).first(static_cast<size_t>(sample.size));
      HOLDFAST_TRY(read_piece(copy, 0, window));
      if (xxh3_128(window) != sample.copied) changed.insert(probed_[k]);
    }
  }
  probes_.clear();
  return std::vector<size_t>(changed.begin(), changed.end());
}

}  // namespace holdfast
