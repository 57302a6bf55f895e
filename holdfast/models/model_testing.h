// For tests of models: their sizes, which are compared with published numbers, and their
// tensors as one file has them.
#pragma once

#include "holdfast/models/model.h"
#include "holdfast/state/collection.h"

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

// The tensors, one behind the other in one file.
inline Collection file_of(std::vector<Tensor> tensors) {
  LayoutBuilder builder(tensors, {{.name = "file", .kind = HolderKind::kFile}});
  int64_t offset = 0;
  for (TensorId t = 0; t < tensors.size(); ++t) {
    builder.add(t, Box::whole(tensors[t].shape), 0, offset);
    offset += tensors[t].bytes();
  }
  Layout layout = std::move(builder).build().value();
  return Collection::create(std::move(tensors), std::move(layout)).value();
}

}  // namespace holdfast::tests
