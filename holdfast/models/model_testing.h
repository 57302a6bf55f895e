// The size of a model, for tests that compare it with published numbers.
#pragma once

#include "holdfast/models/model.h"

namespace holdfast::tests {

// The number of elements of role kParameter. A tensor with aliases counts once; buffers
// and counters do not count.
inline int64_t parameter_count(const Model& model) {
  int64_t total = 0;
  for (const Parameter& parameter : model.parameters) {
    if (parameter.tensor.role == Role::kParameter) {
      total += parameter.tensor.shape.elements();
    }
  }
  return total;
}

}  // namespace holdfast::tests
