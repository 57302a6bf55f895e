// A box as a stream: its elements row-major and without gaps, as a file holds them, cut
// into windows at any byte. Writers and readers work in windows that are no larger than
// their buffers and know nothing of tensors.
//
// `first` is the window's offset in the stream; windows that leave the stream, and maps
// that leave their memory, are bugs and abort. Pure; safe from any thread.
#pragma once

#include <vector>

#include "holdfast/base/bytes.h"
#include "holdfast/state/seal.h"
#include "holdfast/state/strided.h"

namespace holdfast {

// Where a box's elements are in memory that somebody else owns.
struct BoxMemory {
  Box box;
  int64_t element_bytes = 1;
  Map map;  // relative to the memory's first byte
};

// So many bytes, one behind the other.
inline BoxMemory plain_bytes(int64_t bytes) {
  const Box box{{0, bytes}};
  return {.box = box, .element_bytes = 1, .map = Map::dense(box, 1)};
}

// Fills `into` with the bytes [first, first + into.size()) of the box's stream.
void gather(const BoxMemory& from, ByteView memory, int64_t first, ByteSpan into);

// The reverse: puts a window of the stream where it belongs.
void scatter(const BoxMemory& to, ByteSpan memory, int64_t first, ByteView from);

// The copies of which the two consist, for memory that only somebody else can touch: between
// the memory, from its first byte, and the window, from its own.
std::vector<StridedCopy> plan_gather(const BoxMemory& from, int64_t first,
                                     int64_t size);
std::vector<StridedCopy> plan_scatter(const BoxMemory& to, int64_t first, int64_t size);

// What a window of the stream of `box` adds to the seal of its tensor.
Seal seal_stream(const Shape& shape, Dtype dtype, const Box& box, int64_t first,
                 ByteView window);

}  // namespace holdfast
