#include "holdfast/models/model.h"

#include <algorithm>

namespace holdfast {

int64_t Model::parameter_count() const {
  int64_t total = 0;
  for (const Parameter& parameter : parameters) {
    if (parameter.tensor.role == Role::kParameter) {
      total += parameter.tensor.shape.elements();
    }
  }
  return total;
}

bool Model::can_cut() const {
  return std::ranges::any_of(
      parameters, [](const Parameter& p) { return p.cut != Cut::kReplicated; });
}

}  // namespace holdfast
