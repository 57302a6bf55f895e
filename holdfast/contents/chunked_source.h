// A source in which some tensors lie in chunks that are decoded as a whole.
#pragma once

#include "holdfast/env/source_sink.h"
#include "holdfast/state/box.h"

namespace holdfast {

// Its bytes are those of the decoded tensors, so it can be read like any other source.
// But a range of bytes goes over whole rows, and so over chunks that a reader of a few
// columns does not need. read_box() of contents.h therefore asks for boxes.
class ChunkedSource : public Source {
 public:
  // Whether a tensor that lies in chunks begins at this offset.
  virtual bool has_chunks(int64_t offset) const = 0;
  // Reads a box of the tensor that begins at this offset. `into` says where each
  // element goes, relative to memory.data(); no two elements may share a byte. Decodes
  // just the chunks that have a part of the box, each once.
  virtual Result<void> read_chunks(int64_t offset, const Box& box, const Map& into,
                                   ByteSpan memory) const = 0;
  // How many bytes of the tensor that begins at this offset a reader of all its bytes in
  // row-major order should ask for at once: then no chunk is decoded twice, and several
  // are decoded at the same time. 0 if it does not matter.
  virtual int64_t best_part(int64_t offset) const = 0;
  // Whether the element at this offset has bytes in the file. One that was never written
  // has the fill value of its tensor.
  virtual bool is_stored(int64_t offset) const = 0;
};

}  // namespace holdfast
