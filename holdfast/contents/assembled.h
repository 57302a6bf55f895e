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

// Reads for a file that is put together: fills `into` with the bytes from `first` on of the
// stream of a box (state/box_stream.h). `file` is the number of the file's holder in the
// target, and `tensor` that of the tensor in the source. Called from any thread.
using ReadForFile = std::function<Result<void>(
    HolderId file, TensorId tensor, const Box& box, int64_t first, ByteSpan into)>;

// A box of a tensor of this dtype, as it is read for a file.
AssembledPart part_of_box(ReadForFile read, HolderId file, TensorId tensor, Dtype dtype,
                          const Box& box);
// The same bytes, several times.
AssembledPart part_of_bytes(Bytes bytes, int64_t times = 1);

struct AssembledTensor {
  Tensor tensor{};
  // One behind the other they are all bytes of the tensor.
  std::vector<AssembledPart> parts{};
  // How many bytes a reader of all of it should ask for at once (read_ahead_of()).
  int64_t ahead = 0;
};

// `name` is for messages. Fails as Collection::create().
Result<Contents> assemble(std::string name, std::vector<AssembledTensor> tensors,
                          Object objects);

}  // namespace holdfast
