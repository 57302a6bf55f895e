// Tensors in memory as the contents of a file, so that a flip plan can be made for them
// (make_plan.h) that is the same as for a checkpoint of them.
#pragma once

#include "holdfast/contents/contents.h"
#include "holdfast/memory/local_state.h"

namespace holdfast {

// The contents read the memory of the pieces, on the host or on devices, whenever they
// are read. Fails with kUnsupported, naming the tensor, if a piece is not a whole tensor.
Result<Contents> live_contents(const LocalPieces& pieces);

}  // namespace holdfast
