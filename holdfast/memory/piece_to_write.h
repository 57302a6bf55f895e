// A box of a tensor in this rank's memory that is about to be written.
#pragma once

#include <optional>

#include "holdfast/base/xxh3.h"
#include "holdfast/device/device.h"
#include "holdfast/state/box_stream.h"
#include "holdfast/state/tensor.h"

namespace holdfast {

// One box of a tensor and where it is now. The memory stays alive and unchanged until
// stage() has returned; that of a device is read behind what its own stream follows
// (Device::follow).
struct PieceToWrite {
  Shape shape;  // of the whole tensor
  Dtype dtype = Dtype::kF32;
  Box box;
  int64_t offset = 0;  // in the file
  ByteView memory;
  Map map;                         // relative to memory
  const Device* device = nullptr;  // whose memory it is; null for the host's
  bool at_once = false;            // the memory is a copy that was made for this shard

  int64_t bytes() const { return box.elements() * bytes_of(dtype); }
  BoxMemory place() const {
    return {.box = box, .element_bytes = bytes_of(dtype), .map = map};
  }
  // Where the bytes [first, first + size) of the piece's stream are; none if scattered.
  std::optional<ByteView> window(int64_t first, int64_t size) const;
};

// Of the bytes that the memory has now: of all, and of [first, first + size).
Result<Digest128> digest_of(const PieceToWrite& piece);
Result<Digest128> digest_of(const PieceToWrite& piece, int64_t first, int64_t size);
// A window of the piece's stream as it is now, from wherever it is; waits for a device.
Result<void> read_piece(const PieceToWrite& piece, int64_t first, ByteSpan into);

}  // namespace holdfast
