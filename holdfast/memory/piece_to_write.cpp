#include "holdfast/memory/piece_to_write.h"

#include <algorithm>

namespace holdfast {

Result<void> read_piece(const PieceToWrite& piece, int64_t first, ByteSpan into) {
  if (piece.device == nullptr) {
    gather(piece.place(), piece.memory, first, into);
    return {};
  }
  HOLDFAST_TRY(piece.device->read(piece.place(), piece.memory, first, into));
  return HOLDFAST_TRY(piece.device->mark()).wait();
}

std::optional<ByteView> PieceToWrite::window(int64_t first, int64_t size) const {
  if (map != Map::dense(box, bytes_of(dtype), map.offset)) return std::nullopt;
  return memory.subspan(static_cast<size_t>(map.offset + first),
                        static_cast<size_t>(size));
}

Result<Digest128> digest_of(const PieceToWrite& piece) {
  return digest_of(piece, 0, piece.bytes());
}

Result<Digest128> digest_of(const PieceToWrite& piece, int64_t first, int64_t size) {
  if (piece.device == nullptr) {
    if (const auto window = piece.window(first, size)) return xxh3_128(*window);
  }
  constexpr int64_t kWindow = int64_t{1} << 20;
  Bytes buffer(static_cast<size_t>(std::min(kWindow, size)));
  Xxh3Stream stream;
  for (int64_t at = 0; at < size; at += kWindow) {
    const ByteSpan window =
        ByteSpan(buffer).first(static_cast<size_t>(std::min(kWindow, size - at)));
    HOLDFAST_TRY(read_piece(piece, first + at, window));
    stream.append(window);
  }
  return stream.digest();
}

}  // namespace holdfast
