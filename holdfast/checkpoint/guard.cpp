#include "holdfast/checkpoint/guard.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <set>

#include "holdfast/base/checked.h"

namespace holdfast {
namespace {

// The block of a device's piece, as one to copy; none if it is scattered.
std::optional<PieceToWrite> block_of(const PieceToWrite& piece, int64_t first,
                                     int64_t size) {
  if (piece.device == nullptr || piece.at_once) return std::nullopt;
  const Map dense = Map::dense(piece.box, bytes_of(piece.dtype), piece.map.offset);
  if (piece.map != dense) return std::nullopt;
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

CaptureGuard::CaptureGuard(Guard depth, std::span<const PieceToWrite> pieces,
                           uint64_t turn)
    : depth_(depth), pieces_(pieces) {
  if (depth == Guard::kFull) {
    digests_.resize(pieces_.size());
    for (const PieceToWrite& piece : pieces_) {
      // One that cannot be read is seen when it is staged.
      const Result<Digest128> digest =
          piece.at_once ? Result<Digest128>(Digest128{}) : digest_of(piece);
      digests_before_.push_back(digest.ok() ? *digest : Digest128{});
    }
    return;
  }
  choose_samples(turn);
  for (size_t i = 0; i < pieces_.size(); ++i) {
    if (!is_guarded(i) || !on_host(i)) continue;
    before_.resize(sampled_);
    gather(pieces_[i].place(), pieces_[i].memory, samples_[i].first,
           ByteSpan(before_).subspan(samples_[i].at,
                                     static_cast<size_t>(samples_[i].size)));
  }
}

void CaptureGuard::choose_samples(uint64_t turn) {
  samples_.resize(pieces_.size());
  for (size_t i = 0; i < pieces_.size(); ++i) {
    if (!is_guarded(i)) continue;
    const int64_t bytes = pieces_[i].bytes();
    const auto blocks =
        static_cast<uint64_t>(std::max<int64_t>(divide_up(bytes, kBlock), 1));
    const int64_t first = static_cast<int64_t>(turn % blocks) * kBlock;
    samples_[i] = {
        .first = first, .size = std::min(kBlock, bytes - first), .at = sampled_};
    sampled_ += static_cast<size_t>(samples_[i].size);
  }
}

void CaptureGuard::staged(int64_t offset, ByteView bytes) {
  bytes_.resize(sampled_);  // here, where nobody waits for it
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
    if (!is_guarded(i)) continue;
    if (depth_ == Guard::kSample && !on_host(i)) continue;
    if (HOLDFAST_TRY(differs(i))) changed.push_back(i);
  }
  return changed;
}

Result<bool> CaptureGuard::differs(size_t i) const {
  if (depth_ == Guard::kFull) {
    return digests_before_[i] != digests_[i] ||
           HOLDFAST_TRY(digest_of(pieces_[i])) != digests_[i];
  }
  const Sample& sample = samples_[i];
  const auto size = static_cast<size_t>(sample.size);
  if (differs(sample, ByteView(before_).subspan(sample.at, size))) return true;
  std::array<std::byte, kBlock> live;
  HOLDFAST_TRY(read_piece(pieces_[i], sample.first, ByteSpan(live).first(size)));
  return differs(sample, ByteView(live).first(size));
}

bool CaptureGuard::differs(const Sample& sample, ByteView live) const {
  return std::memcmp(live.data(), bytes_.data() + sample.at, live.size()) != 0;
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
      if (differs(sample, window)) changed.insert(probed_[k]);
    }
  }
  probes_.clear();
  return std::vector<size_t>(changed.begin(), changed.end());
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
