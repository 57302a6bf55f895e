// An array in this process's memory, as Python describes it: name, address, dtype, shape
// and strides. Whoever owns the memory keeps it alive.
#pragma once

#include <string>
#include <vector>

#include "errors.h"
#include "holdfast/memory/local_state.h"

namespace holdfast::python {

struct Array {
  // Raises ValueError or NotImplementedError, naming the array, on what is no tensor.
  static Array create(const std::string& name, uint64_t address,
                      const std::string& dtype, const std::vector<int64_t>& shape,
                      const std::vector<int64_t>& strides,
                      std::vector<std::string> ties, bool on_device = false);

  LocalPiece piece;  // all of a tensor
};

LocalPieces pieces_of(const std::vector<Array>& arrays);

}  // namespace holdfast::python
