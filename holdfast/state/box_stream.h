// The stream of a box: its elements in row-major order and without gaps, as a file has
// them. A window is any range of the stream's bytes, even one that cuts an element.
// Writers and readers move windows that are no larger than their buffers, and need to
// know nothing about tensors.
//
// `first` is the window's offset in the stream. A window that leaves the stream, or a
// map that leaves its memory, is a bug and aborts. All functions are pure and safe from
// any thread.
#pragma once

#include <vector>

#include "holdfast/base/bytes.h"
#include "holdfast/state/seal.h"
#include "holdfast/state/strided.h"

namespace holdfast {

// Says where the elements of a box are in memory that somebody else owns.
struct BoxMemory {
  Box box;
  int64_t element_bytes = 1;
  Map map;  // relative to the memory's first byte
};

// Contiguous bytes, as a box of one dimension.
inline BoxMemory plain_bytes(int64_t bytes) {
  const Box box{{0, bytes}};
  return {.box = box, .element_bytes = 1, .map = Map::dense(box, 1)};
}

// Fills `into` with the bytes [first, first + into.size()) of the box's stream.
void gather(const BoxMemory& from, ByteView memory, int64_t first, ByteSpan into);

// The reverse: copies a window of the stream to where its elements are in memory.
void scatter(const BoxMemory& to, ByteSpan memory, int64_t first, ByteView from);

// The copies that gather() and scatter() would make, for memory that only somebody else
// can copy, such as a device. Their offsets count from the first byte of the memory and
// from the first byte of the window.
std::vector<StridedCopy> plan_gather(const BoxMemory& from, int64_t first,
                                     int64_t size);
std::vector<StridedCopy> plan_scatter(const BoxMemory& to, int64_t first, int64_t size);

// The part of the tensor's seal that comes from a window of the stream of `box`.
Seal seal_stream(const Shape& shape, Dtype dtype, const Box& box, int64_t first,
                 ByteView window);

}  // namespace holdfast
