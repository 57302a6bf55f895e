#include "holdfast/exchange/pair_stream.h"

#include <algorithm>

#include "holdfast/state/box_stream.h"

namespace holdfast {

void PairStream::add(const LocalPiece& piece, const Box& box) {
  Part part{.piece = piece, .first = bytes_};
  part.piece.box = box;
  part.piece.map = piece.map.narrowed(piece.box, box);
  if (part.piece.bytes() == 0) return;
  bytes_ += part.piece.bytes();
  parts_.push_back(std::move(part));
}

size_t PairStream::part_at(int64_t byte) const {
  const auto after = std::ranges::upper_bound(parts_, byte, {}, &Part::first);
  return static_cast<size_t>(after - parts_.begin()) - 1;
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

}  // namespace holdfast
