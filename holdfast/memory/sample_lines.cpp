#include "holdfast/memory/sample_lines.h"

#include <bit>

#include "holdfast/base/checked.h"

namespace holdfast {
namespace {

// The size of a block at which a save compares no more than `most` lines of `bytes`
// bytes.
int64_t block_for(int64_t bytes, int64_t most) {
  constexpr int64_t kRound = SampleLines::kBlock * SampleLines::kTurns;
  const auto times = static_cast<uint64_t>(divide_up(bytes, kRound * most));
  return SampleLines::kBlock * static_cast<int64_t>(std::bit_ceil(times));
}

// Returns the offset of a line in its block. It changes after every kTurns saves, when
// all blocks have had their turn. The number of places is a power of two, at least 64,
// and 37 is odd, so multiples of 37 reach all places.
int64_t place_in_block(uint64_t turn, int64_t block) {
  const uint64_t cycle = turn / static_cast<uint64_t>(SampleLines::kTurns);
  const auto places = static_cast<uint64_t>(block / SampleLines::kLine);
  return static_cast<int64_t>(cycle * 37 % places) * SampleLines::kLine;
}

}  // namespace

SampleLines::SampleLines(std::span<const LocalPiece> pieces, uint64_t turn)
    : pieces_(pieces.size()) {
  int64_t host = 0;
  int64_t devices = 0;
  for (const LocalPiece& piece : pieces) {
    if (!piece.at_once) (piece.device == nullptr ? host : devices) += piece.bytes();
  }
  const int64_t host_block = block_for(host, kMostLines);
  const int64_t device_block = block_for(devices, kMostDeviceLines);
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].at_once || pieces[i].bytes() == 0) continue;
    const int64_t block = pieces[i].device == nullptr ? host_block : device_block;
    pieces_[i] = choose(pieces[i].bytes(), block, turn, i);
    pieces_[i].place = bytes_;
    bytes_ += pieces_[i].count == 1 ? static_cast<size_t>(pieces_[i].bytes)
                                    : pieces_[i].count * static_cast<size_t>(kLine);
  }
}

SampleLines::Piece SampleLines::choose(int64_t bytes, int64_t block, uint64_t turn,
                                       size_t piece) {
  if (bytes <= kBlock) return {.bytes = bytes, .count = 1};
  const auto first = static_cast<int64_t>((turn + piece) % uint64_t{kTurns});
  const int64_t at = first * block + place_in_block(turn, block);
  const int64_t between = at >= bytes ? 0 : divide_up(bytes - at, block * kTurns);
  return {.bytes = bytes,
          .block = block,
          .at = at,
          .count = kEnds + static_cast<size_t>(between)};
}

SampleLines::Line SampleLines::line(size_t piece, size_t number) const {
  const Piece& of = pieces_[piece];
  if (of.count == 1) return {.first = 0, .size = of.bytes, .place = of.place};
  constexpr int64_t kFast = 16;  // CudaCopy::kAlignment; others are slower
  int64_t first = 0;
  if (number == 1) {
    first = divide_up(of.bytes - kLine, kFast) * kFast;
  } else if (number > 1) {
    first = of.at + static_cast<int64_t>(number - kEnds) * of.block * kTurns;
  }
  return {.first = first,
          .size = std::min(kLine, of.bytes - first),
          .place = of.place + number * static_cast<size_t>(kLine)};
}

}  // namespace holdfast
