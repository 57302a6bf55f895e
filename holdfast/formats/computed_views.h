// Tensors that are computed from the bytes of a file when they are read, because the file
// does not have each of their elements as it is: views that repeat elements (expand) or
// whose elements share bytes, and views that torch conjugates or negates when it uses
// them.
#pragma once

#include <memory>
#include <vector>

#include "holdfast/contents/contents.h"
#include "holdfast/env/source_sink.h"
#include "holdfast/state/box.h"
#include "holdfast/state/tensor.h"

namespace holdfast {

struct ComputedView {
  Dtype dtype = Dtype::kF32;
  Shape shape{};
  // Where the elements lie in the file. Strides are 0 or more, and all elements are
  // inside the file.
  Map map{};
  Bytes mask{};  // XORed to each element; empty, or as long as an element
};

// A source in which the views lie one behind the other, in canonical form. Each read first
// checks the digests of the bytes that it is computed from; `digests` may be null. It
// keeps at most 64 MiB of the file in memory.
std::shared_ptr<const Source> make_computed_views(
    std::shared_ptr<const Source> file, std::shared_ptr<const DigestCheck> digests,
    std::vector<ComputedView> views);

}  // namespace holdfast
