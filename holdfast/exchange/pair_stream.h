// The bytes that one rank sends to another: the streams (box_stream.h) of all boxes
// that go from the one to the other, one after the other in the order of the plan. Both
// ranks know the plan, so what is sent needs no header.
//
// The boxes belong to lots: tensors that come up together in an exchange. A window of
// the stream never has bytes of two lots, because a receiver may have memory for the
// first lot only. A box that the sender passes on is never in a window with others: the
// sender waits for it, and two ranks that pass boxes on to each other would wait for ever
// if windows held back what they could send.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "holdfast/device/device.h"
#include "holdfast/memory/local_state.h"
#include "holdfast/memory/piece_writer.h"
#include "holdfast/state/seal.h"

namespace holdfast {

inline constexpr uint32_t kNothing = UINT32_MAX;

class PairStream {
 public:
  // A box that is moved, as a piece of this rank's memory.
  struct Part {
    LocalPiece piece;   // without memory until place() is called
    int64_t first = 0;  // where it begins in the stream
    uint32_t lot = 0;
    uint32_t held = kNothing;  // the number of the piece that the box is a part of
    // At the receiver: the number under which the box's arrival is counted. At a sender
    // that passes the box on: the number of the arrival that it waits for.
    uint32_t arrival = kNothing;
    bool passed_on = false;  // the sender has received it itself

    int64_t end() const { return first + piece.bytes(); }
  };

  // Appends a box, which must lie inside the piece.
  void add(const LocalPiece& piece, const Box& box) {
    add(piece, {.piece = {}, .held = kNothing}, box);
  }
  // The same with what is known about the box: lot, held, arrival and passed_on of
  // `about`. Lots must not decrease. The piece may have no memory yet.
  void add(const LocalPiece& piece, Part about, const Box& box);
  // Gives the part the memory of the piece that it is a part of.
  void place(size_t part, const LocalPiece& held);

  int64_t bytes() const { return bytes_; }
  const std::vector<Part>& parts() const { return parts_; }
  // The number of the part that has this byte.
  size_t part_at(int64_t byte) const;
  // The end of the window that begins at byte `first` and has `at_most` bytes.
  int64_t window_end(int64_t first, int64_t at_most) const;
  // Where the bytes of the lots below `lot` end.
  int64_t end_of_lots(uint32_t lot) const;

  // The window of the stream, if it lies in the host's memory without gaps.
  std::optional<ByteSpan> view(int64_t first, int64_t size) const;
  Result<void> read(int64_t first, ByteSpan into) const;
  Result<void> write(int64_t first, ByteView from, PieceWriter& writer) const;
  // Writes the window from the memory of the sender's own stream, which has the same
  // boxes. Both are in this process. Then the sender's memory is not read any more.
  Result<void> copy_from(const PairStream& sender, int64_t first, int64_t size,
                         PieceWriter& writer) const;
  // Adds the seals of what is in the window to those of the parts. `seals` has one
  // entry for each part.
  void add_seals(int64_t first, ByteView window, std::vector<Seal>& seals) const;

 private:
  // Bytes that windows do not go beyond.
  struct Run {
    uint32_t lot = 0;
    int64_t end = 0;
    bool passed_on = false;
  };

  // Calls visit(number of the part, offset in the part, window's bytes of the part) and
  // stops if it fails.
  template <typename Span, typename Visit>
  Result<void> for_each_part(int64_t first, Span window, const Visit& visit) const;

  std::vector<Part> parts_;
  std::vector<Run> runs_;
  int64_t bytes_ = 0;
};

// Copies inside devices that are collected, because one call of the driver makes many of
// them.
class CollectedCopies {
 public:
  void add(const Device& device, const StridedCopy& copy, ByteView from, ByteSpan to);
  // Begins the copies, and forgets them.
  Result<void> begin();
  // Waits until all copies that were begun are made.
  Result<void> wait();

 private:
  std::vector<Device::InsideCopies> copies_;  // one for each device
};

// Copies a box between two pieces of this process that both contain it: directly in the
// host's memory, else through the writer. A copy inside a device is only added to `inside`.
Result<void> copy_box(const LocalPiece& from, const LocalPiece& to, const Box& box,
                      PieceWriter& writer, CollectedCopies& inside);

}  // namespace holdfast
