#include "holdfast/memory/guard.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

namespace holdfast {
namespace {

bool are_equal(ByteView a, ByteView b) {
  return std::memcmp(a.data(), b.data(), a.size()) == 0;
}

// Calls visit(line, bytes) for all lines of a piece on the host, with their bytes as
// they are now.
void for_each_live(const SampleLines& lines, size_t number, const LocalPiece& piece,
                   const auto& visit) {
  // So many lines are fetched from memory at the same time. The processor does not
  // fetch them ahead by itself, because each line is in another page.
  constexpr size_t kAhead = 16;
  const std::optional<ByteView> dense = piece.window(0, piece.bytes());
  const size_t count = lines.count(number);
  const auto prefetch = [&](size_t n) {
    if (n < count) __builtin_prefetch(dense->data() + lines.line(number, n).first);
  };
  for (size_t n = 0; dense.has_value() && n < kAhead; ++n) prefetch(n);
  Bytes scattered;
  for (size_t n = 0; n < count; ++n) {
    const SampleLines::Line line = lines.line(number, n);
    const auto size = static_cast<size_t>(line.size);
    if (dense.has_value()) {
      prefetch(n + kAhead);
      visit(line, dense->subspan(static_cast<size_t>(line.first), size));
      continue;
    }
    scattered.resize(size);
    gather(piece.place(), piece.memory, line.first, scattered);
    visit(line, ByteView(scattered));
  }
}

}  // namespace

CaptureGuard::CaptureGuard(Guard depth, std::span<const LocalPiece> pieces,
                           std::span<const int64_t> offsets, uint64_t turn)
    : depth_(depth), pieces_(pieces), offsets_(offsets) {
  if (depth_ == Guard::kFull) {
    keep_digests();
  } else {
    lines_ = SampleLines(pieces, turn);
    keep_lines();
  }
}

void CaptureGuard::keep_lines() {
  kept_ = std::make_unique_for_overwrite<std::byte[]>(lines_.bytes());
  differs_.resize(pieces_.size());
  for (size_t i = 0; i < pieces_.size(); ++i) {
    if (!is_guarded(i) || !is_here(i)) continue;
    for_each_live(lines_, i, pieces_[i], [&](const auto& line, ByteView live) {
      std::memcpy(kept(line).data(), live.data(), live.size());
    });
  }
}

void CaptureGuard::keep_digests() {
  digests_.resize(pieces_.size());
  for (size_t i = 0; i < pieces_.size(); ++i) {
    if (!is_guarded(i)) continue;
    // A piece that cannot be read is no error here: staging it fails and reports that.
    const Result<Digest128> digest = digest_of(pieces_[i]);
    if (digest.ok()) digests_[i].before = *digest;
  }
}

void CaptureGuard::staged(int64_t offset, ByteView bytes) {
  const int64_t end = offset + std::ssize(bytes);
  for (; piece_ < pieces_.size(); ++piece_) {
    const int64_t begin = offsets_[piece_];
    const int64_t piece_end = begin + pieces_[piece_].bytes();
    if (begin >= end) return;
    const int64_t first = std::max(offset, begin);
    const int64_t last = std::min(end, piece_end);
    if (is_guarded(piece_) && first < last) {
      note(piece_, first - begin,
           bytes.subspan(static_cast<size_t>(first - offset),
                         static_cast<size_t>(last - first)));
    }
    if (piece_end > end) return;
    if (depth_ == Guard::kFull && is_guarded(piece_))
      digests_[piece_].copied = std::exchange(stream_, {}).digest();
  }
}

void CaptureGuard::note(size_t piece, int64_t offset, ByteView bytes) {
  if (depth_ == Guard::kFull) return stream_.append(bytes);
  lines_.for_each_in(piece, offset, offset + std::ssize(bytes),
                     [&](const auto& line) { note_line(piece, line, offset, bytes); });
}

// Keeps or compares the part of the line that is in `bytes`, a window of the piece's
// stream that begins at `offset`.
void CaptureGuard::note_line(size_t piece, const SampleLines::Line& line,
                             int64_t offset, ByteView bytes) {
  const int64_t first = std::max(offset, line.first);
  const int64_t last = std::min(offset + std::ssize(bytes), line.first + line.size);
  const auto size = static_cast<size_t>(last - first);
  const ByteView copied = bytes.subspan(static_cast<size_t>(first - offset), size);
  const ByteSpan known =
      kept(line).subspan(static_cast<size_t>(first - line.first), size);
  if (!is_here(piece)) {
    std::memcpy(known.data(), copied.data(), size);
  } else if (!are_equal(known, copied)) {
    differs_[piece] = true;
  }
}

Result<std::vector<size_t>> CaptureGuard::changed() const {
  std::vector<size_t> changed;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    if (!is_guarded(i)) continue;
    const bool differs = depth_ == Guard::kFull ? HOLDFAST_TRY(digest_has_changed(i))
                                                : is_here(i) && has_changed(i);
    if (differs) changed.push_back(i);
  }
  return changed;
}

bool CaptureGuard::has_changed(size_t piece) const {
  bool differs = differs_[piece];
  if (differs) return true;
  for_each_live(lines_, piece, pieces_[piece], [&](const auto& line, ByteView live) {
    differs = differs || !are_equal(kept(line), live);
  });
  return differs;
}

Result<bool> CaptureGuard::digest_has_changed(size_t piece) const {
  const Digests& known = digests_[piece];
  if (known.before != known.copied) return true;
  return HOLDFAST_TRY(digest_of(pieces_[piece])) != known.copied;
}

void CaptureGuard::probe(DeviceRooms& rooms, CudaStream stream) {
  if (depth_ != Guard::kSample) return;
  std::vector<DeviceBlock> blocks;
  probed_.clear();
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const LocalPiece& piece = pieces_[i];
    if (is_here(i) || !is_guarded(i)) continue;
    const auto memory = piece.window(0, piece.bytes());
    if (!memory.has_value()) continue;  // only contiguous pieces are probed
    for (size_t n = 0; n < lines_.count(i); ++n) {
      const SampleLines::Line line = lines_.line(i, n);
      probed_.push_back({.piece = i, .line = line});
      blocks.push_back({.device = piece.device,
                        .memory = memory->subspan(static_cast<size_t>(line.first),
                                                  static_cast<size_t>(line.size))});
    }
  }
  if (blocks.empty()) return;
  // A device that has no few MiB to spare is not probed. Writes by torch are still
  // found there: Saver::settle() is told which tensors have a new version.
  if (auto taken = rooms.probe(blocks, stream); taken.ok()) {
    std::ranges::move(*taken, std::back_inserter(probes_));
  }
}

Result<std::vector<size_t>> CaptureGuard::probed() {
  std::set<size_t> changed;
  for (const DeviceProbe& probe : probes_) HOLDFAST_TRY(compare_probe(probe, changed));
  probes_.clear();
  return std::vector<size_t>(changed.begin(), changed.end());
}

// The copies of a probe lie side by side, so one read brings them all from the device.
Result<void> CaptureGuard::compare_probe(const DeviceProbe& probe,
                                         std::set<size_t>& changed) const {
  ByteView all;
  for (const ByteView copy : probe.copies) {
    if (copy.empty()) continue;  // the line is on another device
    if (all.empty()) all = copy;
    all = {all.data(), copy.data() + copy.size()};
  }
  Bytes live(all.size());
  const Device& device = probe.snapshot->device();
  HOLDFAST_TRY(device.read(plain_bytes(std::ssize(all)), all, 0, live));
  HOLDFAST_TRY(HOLDFAST_TRY(device.mark()).wait());
  for (size_t k = 0; k < probe.copies.size(); ++k) {
    const ByteView copy = probe.copies[k];
    if (copy.empty()) continue;
    const auto at = static_cast<size_t>(copy.data() - all.data());
    if (!are_equal(ByteView(live).subspan(at, copy.size()), kept(probed_[k].line))) {
      changed.insert(probed_[k].piece);
    }
  }
  return {};
}

}  // namespace holdfast
