// The bytes that one rank sends to another: the streams (box_stream.h) of all boxes
// that go from the one to the other, one after the other in the order of the plan. Both
// ranks know the plan, so what is sent needs no header.
#pragma once

#include <optional>
#include <vector>

#include "holdfast/memory/local_state.h"
#include "holdfast/memory/piece_writer.h"
#include "holdfast/state/seal.h"

namespace holdfast {

class PairStream {
 public:
  // A box that is moved, as a piece of this rank's memory.
  struct Part {
    LocalPiece piece;
    int64_t first = 0;  // where it begins in the stream

    int64_t end() const { return first + piece.bytes(); }
  };

  // Appends a box, which must lie inside the piece.
  void add(const LocalPiece& piece, const Box& box);
  int64_t bytes() const { return bytes_; }
  const std::vector<Part>& parts() const { return parts_; }

  // The window of the stream, if it lies in the host's memory without gaps.
  std::optional<ByteSpan> view(int64_t first, int64_t size) const;
  Result<void> read(int64_t first, ByteSpan into) const;
  Result<void> write(int64_t first, ByteView from, PieceWriter& writer) const;
  // Adds the seals of what is in the window to those of the parts. `seals` has one
  // entry for each part.
  void add_seals(int64_t first, ByteView window, std::vector<Seal>& seals) const;

 private:
  // Calls visit(number of the part, offset in the part, window's bytes of the part) and
  // stops if it fails.
  template <typename Span, typename Visit>
  Result<void> for_each_part(int64_t first, Span window, const Visit& visit) const;
  size_t part_at(int64_t byte) const;

  std::vector<Part> parts_;
  int64_t bytes_ = 0;
};

}  // namespace holdfast
