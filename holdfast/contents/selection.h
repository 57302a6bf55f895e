// Some tensors of opened contents, under other names and as other dtypes, as contents of
// their own. They can be written in any format. Nothing is read before that.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "holdfast/contents/contents.h"

namespace holdfast {

// A tensor of the contents, as it will be called.
struct Pick {
  TensorId tensor = 0;
  std::string name{};
  std::vector<std::string> aliases{};
  Dtype dtype = Dtype::kF32;  // the tensor's own, or one that it is converted to
  // If it is set, only this box of the tensor, under this shape, which has as many elements.
  std::optional<std::pair<Box, Shape>> part{};
};

// Contents with these tensors and nothing else. The same tensor may be picked several
// times: it is then stored several times. Fails with kInvalid for a name that is there
// twice. A dtype that differs from the tensor's must be convertible
// (state/float_convert.h), as that of the tensor.
Result<Contents> select_tensors(const std::shared_ptr<const Contents>& from,
                                std::span<const Pick> picks);

}  // namespace holdfast
