#include "holdfast/exchange/pair_stream.h"

#include <algorithm>

#include "holdfast/device/device.h"
#include "holdfast/state/box_stream.h"

namespace holdfast {
namespace {

// Small enough to stay in the processor's cache between the gather and the scatter.
constexpr int64_t kThrough = int64_t{256} << 10;

// Only the elements of `box`, which must lie inside the piece.
LocalPiece narrowed(const LocalPiece& piece, const Box& box) {
  LocalPiece part = piece;
  part.box = box;
  part.map = piece.map.narrowed(piece.box, box);
  return part;
}

// Copies [first, first + size) of the stream of a box between two of its pieces.
Result<void> copy_stream(const LocalPiece& from, const LocalPiece& to, int64_t first,
                         int64_t size, PieceWriter& writer) {
  if (to.device == nullptr) {
    if (const auto view = to.window(first, size)) {
      const auto at = static_cast<size_t>(view->data() - to.memory.data());
      return read_piece(from, first, to.memory.subspan(at, view->size()));
    }
  }
  Bytes buffer(static_cast<size_t>(std::min(size, kThrough)));
  const int64_t end = first + size;
  for (int64_t at = first; at < end; at += kThrough) {
    const ByteSpan window =
        ByteSpan(buffer).first(static_cast<size_t>(std::min(kThrough, end - at)));
    HOLDFAST_TRY(read_piece(from, at, window));
    HOLDFAST_TRY(writer.put(to, to.box, bytes_of(to.tensor->dtype), at, window));
  }
  return {};
}

StridedCopy plan_copy_of(const LocalPiece& from, const LocalPiece& to) {
  return plan_copy(from.map, to.map, to.box.shape(), bytes_of(to.tensor->dtype));
}

}  // namespace

void PairStream::add(const LocalPiece& piece, Part about, const Box& box) {
  about.piece = narrowed(piece, box);
  about.first = bytes_;
  if (about.piece.bytes() == 0) return;
  bytes_ += about.piece.bytes();
  const bool continues = !runs_.empty() && runs_.back().lot == about.lot &&
                         !runs_.back().passed_on && !about.passed_on;
  if (!continues) {
    HOLDFAST_CHECK(runs_.empty() || runs_.back().lot <= about.lot,
                   "lot {} comes after lot {}", about.lot, runs_.back().lot);
    runs_.push_back({.lot = about.lot, .passed_on = about.passed_on});
  }
  runs_.back().end = bytes_;
  parts_.push_back(std::move(about));
}

void PairStream::place(size_t part, const LocalPiece& held) {
  LocalPiece& piece = parts_[part].piece;
  piece.memory = held.memory;
  piece.map = held.map.narrowed(held.box, piece.box);
  piece.device = held.device;
}

size_t PairStream::part_at(int64_t byte) const {
  const auto after = std::ranges::upper_bound(parts_, byte, {}, &Part::first);
  return static_cast<size_t>(after - parts_.begin()) - 1;
}

int64_t PairStream::window_end(int64_t first, int64_t at_most) const {
  const auto run = std::ranges::upper_bound(runs_, first, {}, &Run::end);
  return std::min(first + at_most, run->end);
}

int64_t PairStream::end_of_lots(uint32_t lot) const {
  const auto first_not = std::ranges::lower_bound(runs_, lot, {}, &Run::lot);
  return first_not == runs_.begin() ? 0 : std::prev(first_not)->end;
}

template <typename Span, typename Visit>
Result<void> PairStream::for_each_part(int64_t first, Span window,
                                       const Visit& visit) const {
  for (size_t p = part_at(first); !window.empty(); ++p) {
    const int64_t size =
        std::min(parts_[p].end() - first, static_cast<int64_t>(window.size()));
    HOLDFAST_TRY(
        visit(p, first - parts_[p].first, window.first(static_cast<size_t>(size))));
    window = window.subspan(static_cast<size_t>(size));
    first += size;
  }
  return {};
}

std::optional<ByteSpan> PairStream::view(int64_t first, int64_t size) const {
  const Part& part = parts_[part_at(first)];
  if (part.piece.device != nullptr || first + size > part.end()) return std::nullopt;
  const std::optional<ByteView> found = part.piece.window(first - part.first, size);
  if (!found.has_value()) return std::nullopt;
  return part.piece.memory.subspan(
      static_cast<size_t>(found->data() - part.piece.memory.data()), found->size());
}

Result<void> PairStream::read(int64_t first, ByteSpan into) const {
  return for_each_part(first, into, [&](size_t p, int64_t at, ByteSpan to) {
    return read_piece(parts_[p].piece, at, to);
  });
}

Result<void> PairStream::write(int64_t first, ByteView from,
                               PieceWriter& writer) const {
  return for_each_part(first, from, [&](size_t p, int64_t at, ByteView bytes) {
    const LocalPiece& to = parts_[p].piece;
    return writer.put(to, to.box, bytes_of(to.tensor->dtype), at, bytes);
  });
}

Result<void> PairStream::copy_from(const PairStream& sender, int64_t first,
                                   int64_t size, PieceWriter& writer) const {
  const int64_t end = first + size;
  CollectedCopies inside;
  for (size_t p = part_at(first); first < end; ++p) {
    const Part &to = parts_[p], &from = sender.parts_[p];
    const int64_t until = std::min(to.end(), end);
    if (first == to.first && until == to.end()) {
      HOLDFAST_TRY(copy_box(from.piece, to.piece, to.piece.box, writer, inside));
    } else {
      HOLDFAST_TRY(copy_stream(from.piece, to.piece, first - to.first, until - first,
                               writer));
    }
    first = until;
  }
  HOLDFAST_TRY(inside.begin());
  return inside.wait();
}

void PairStream::add_seals(int64_t first, ByteView window,
                           std::vector<Seal>& seals) const {
  static_cast<void>(
      for_each_part(first, window, [&](size_t p, int64_t at, ByteView bytes) {
        const LocalPiece& piece = parts_[p].piece;
        seals[p] +=
            seal_stream(piece.tensor->shape, piece.tensor->dtype, piece.box, at, bytes);
        return Result<void>();
      }));
}

Result<void> copy_box(const LocalPiece& from, const LocalPiece& to, const Box& box,
                      PieceWriter& writer, CollectedCopies& inside) {
  const LocalPiece source = narrowed(from, box), target = narrowed(to, box);
  if (source.bytes() == 0) return {};
  if (source.device != target.device) {
    return copy_stream(source, target, 0, target.bytes(), writer);
  }
  const StridedCopy copy = plan_copy_of(source, target);
  if (source.device == nullptr) {
    run_copy(copy, source.memory, target.memory);
  } else {
    inside.add(*source.device, copy, source.memory, target.memory);
  }
  return {};
}

void CollectedCopies::add(const Device& device, const StridedCopy& copy, ByteView from,
                          ByteSpan to) {
  auto found = std::ranges::find_if(copies_, [&](const Device::InsideCopies& one) {
    return &one.device() == &device;
  });
  if (found == copies_.end()) found = copies_.emplace(copies_.end(), device);
  found->add(copy, from, to);
}

Result<void> CollectedCopies::begin() {
  for (Device::InsideCopies& one : copies_) {
    HOLDFAST_TRY(one.run());
    one.clear();
  }
  return {};
}

Result<void> CollectedCopies::wait() {
  for (const Device::InsideCopies& one : copies_) {
    HOLDFAST_TRY(HOLDFAST_TRY(one.device().mark()).wait());
  }
  return {};
}

}  // namespace holdfast
