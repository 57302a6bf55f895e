// Chooses which bytes of a state the guard compares in one save (guard.h). It compares
// lines of 64 bytes: a processor fetches as many from memory at once, so that looking
// at many places costs little.
//
// The lines of a piece are its first one, its last one, and between them one line in
// every eighth block. The next save looks at other blocks, so that every block has its
// turn within kTurns saves; after that, the lines move to another place in their
// blocks. A block has 4 KiB. In a large state blocks are larger, so that a save
// compares no more than about kMostLines on the host and kMostDeviceLines on devices,
// where each line costs more. A piece of up to 4 KiB is compared as a whole in every
// save.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "holdfast/memory/local_state.h"

namespace holdfast {

class SampleLines {
 public:
  static constexpr int64_t kLine = 64;
  static constexpr int64_t kBlock = 4096;
  static constexpr int64_t kTurns = 8;
  static constexpr int64_t kMostLines = 2048;
  static constexpr int64_t kMostDeviceLines = 1020;  // 6 launches of a kernel

  // A part of a piece's stream, and its place in a buffer that has all lines.
  struct Line {
    int64_t first = 0;
    int64_t size = 0;
    size_t place = 0;
  };

  SampleLines() = default;
  // Pieces that are at_once have no lines. `turn` counts saves.
  SampleLines(std::span<const LocalPiece> pieces, uint64_t turn);

  // The size in bytes of a buffer for all lines.
  size_t bytes() const { return bytes_; }
  size_t count(size_t piece) const { return pieces_[piece].count; }
  Line line(size_t piece, size_t number) const;

  // Calls visit(line) for those of the piece's lines that have bytes in [first, last)
  // of its stream.
  void for_each_in(size_t piece, int64_t first, int64_t last, const auto& visit) const {
    const auto show = [&](size_t number) {
      const Line found = line(piece, number);
      if (found.first < last && found.first + found.size > first) visit(found);
    };
    const Piece& of = pieces_[piece];
    for (size_t n = 0; n < std::min(of.count, kEnds); ++n) show(n);
    if (of.count <= kEnds) return;
    // The other lines have equal distances, so the ones near the window can be
    // computed.
    const int64_t distance = of.block * kTurns;
    const auto between = static_cast<int64_t>(of.count - kEnds);
    const int64_t low = std::max<int64_t>((first - of.at - kLine) / distance, 0);
    const int64_t high = last <= of.at ? 0 : (last - of.at - 1) / distance + 1;
    for (int64_t k = low; k < std::min(high, between); ++k) {
      show(kEnds + static_cast<size_t>(k));
    }
  }

 private:
  static constexpr size_t kEnds = 2;  // the first line and the last one
  struct Piece {
    int64_t bytes = 0;
    int64_t block = 0;
    int64_t at = 0;  // where the first line in a block begins (kEnds are not in blocks)
    size_t place = 0;  // where its lines begin in a buffer that has all lines
    size_t count = 0;  // how many lines it has
  };

  static Piece choose(int64_t bytes, int64_t block, uint64_t turn, size_t piece);

  std::vector<Piece> pieces_;
  size_t bytes_ = 0;
};

}  // namespace holdfast
