// A box of a tensor in this rank's memory, on the host or on a device.
#pragma once

#include <memory>
#include <optional>

#include "holdfast/base/shared_list.h"
#include "holdfast/base/xxh3.h"
#include "holdfast/device/device.h"
#include "holdfast/state/box_stream.h"
#include "holdfast/state/tensor.h"

namespace holdfast {

// Describes bytes in memory: what a training process holds, what a save writes, and
// what a restore fills. It does not own the memory: the caller keeps the memory alive,
// and unchanged until the save is captured.
struct LocalPiece {
  std::shared_ptr<const Tensor> tensor;  // the whole one; shared by all its pieces
  Box box;
  ByteSpan memory;
  Map map;                         // relative to memory
  const Device* device = nullptr;  // where the memory is; null for the host
  // True if the piece is copied inside save(), because it may change before the next
  // update, as buffers and counters do.
  bool at_once = false;

  int64_t bytes() const { return box.elements() * bytes_of(tensor->dtype); }
  BoxMemory place() const {
    return {.box = box, .element_bytes = bytes_of(tensor->dtype), .map = map};
  }
  // The memory of the bytes [first, first + size) of the piece's stream; nullopt if the
  // piece's memory is not contiguous.
  std::optional<ByteView> window(int64_t first, int64_t size) const;
  // True if both are the same box of the same tensor, wherever they lie in memory.
  bool is_same_box(const LocalPiece& other) const;

  friend bool operator==(const LocalPiece& a, const LocalPiece& b);
};

// A list of pieces. Make it once and pass it again for as long as the tensors stay
// where they are: a save recognises the list and need not look at each piece.
using LocalPieces = SharedList<LocalPiece>;

// A piece with a Tensor object of its own. The piece of whole_piece() is the whole
// tensor.
LocalPiece make_piece(Tensor tensor, const Box& box, ByteSpan memory, const Map& map);
LocalPiece whole_piece(Tensor tensor, ByteSpan memory, const Map& map);

// XXH3-128 of the bytes that are in memory now: of the whole piece, or of
// [first, first + size) of its stream.
Result<Digest128> digest_of(const LocalPiece& piece);
Result<Digest128> digest_of(const LocalPiece& piece, int64_t first, int64_t size);
// Copies a window of the piece's stream as it is now. If the piece is on a device,
// waits until the device has copied it.
Result<void> read_piece(const LocalPiece& piece, int64_t first, ByteSpan into);

}  // namespace holdfast
