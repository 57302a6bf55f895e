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

// The one description of bytes in memory: what a training process holds, what a save
// writes, and what a restore fills. It owns nothing: the memory stays alive, and unchanged
// while a save reads it, for as long as its user promises.
struct LocalPiece {
  std::shared_ptr<const Tensor> tensor;  // the whole; shared by all who speak of it
  Box box;
  ByteSpan memory;
  Map map;                         // relative to memory
  const Device* device = nullptr;  // whose memory it is; null for the host's
  // Copied inside save(), because it may change before the next update: buffers, counters.
  bool at_once = false;

  int64_t bytes() const { return box.elements() * bytes_of(tensor->dtype); }
  BoxMemory place() const {
    return {.box = box, .element_bytes = bytes_of(tensor->dtype), .map = map};
  }
  // Where the bytes [first, first + size) of the piece's stream are; none if scattered.
  std::optional<ByteView> window(int64_t first, int64_t size) const;
  // The same box of the same tensor, wherever it lies.
  bool is_same_box(const LocalPiece& other) const;

  friend bool operator==(const LocalPiece& a, const LocalPiece& b);
};

// Made once, and passed again for as long as the tensors stay where they are: a save then
// need not look at each of them.
using LocalPieces = SharedList<LocalPiece>;

// A piece of a tensor that nobody else speaks of yet, and one that is all of it.
LocalPiece make_piece(Tensor tensor, const Box& box, ByteSpan memory, const Map& map);
LocalPiece whole_piece(Tensor tensor, ByteSpan memory, const Map& map);

// XXH3-128 of the bytes that the memory has now: of all, and of [first, first + size) of
// the piece's stream.
Result<Digest128> digest_of(const LocalPiece& piece);
Result<Digest128> digest_of(const LocalPiece& piece, int64_t first, int64_t size);
// Copies a window of the piece's stream as it is now. Waits for a device.
Result<void> read_piece(const LocalPiece& piece, int64_t first, ByteSpan into);

}  // namespace holdfast
