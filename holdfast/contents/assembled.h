// Contents whose tensors are put together from parts while they are read, such as the boxes
// of other contents. Whatever writes contents can so write any cut of them, without a copy
// of the tensors in memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "holdfast/contents/contents.h"

namespace holdfast {

// Some bytes of a tensor, in canonical form.
struct AssembledPart {
  int64_t bytes = 0;
  // Fills `into` with the bytes from `first` on. Called from any thread.
  std::function<Result<void>(int64_t first, ByteSpan into)> read{};
};

// A box of other contents, as the bytes of its stream (state/box_stream.h).
AssembledPart part_of_box(std::shared_ptr<const Contents> source, TensorId tensor,
                          const Box& box);
// The same bytes, several times.
AssembledPart part_of_bytes(Bytes bytes, int64_t times = 1);

struct AssembledTensor {
  Tensor tensor{};
  // One behind the other they are all bytes of the tensor.
  std::vector<AssembledPart> parts{};
};

// Called before bytes are read, with their number. A failure fails the read.
using OnRead = std::function<Result<void>(int64_t bytes)>;

// `name` is for messages. Fails as Collection::create().
Result<Contents> assemble(std::string name, std::vector<AssembledTensor> tensors,
                          Object objects, OnRead on_read = {});

}  // namespace holdfast
