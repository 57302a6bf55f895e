// An array in this process's memory, as Python describes it: name, address, dtype,
// shape and strides. It does not own the memory: the caller keeps the memory alive.
#pragma once

#include <string>
#include <vector>

#include "errors.h"
#include "holdfast/memory/local_state.h"

namespace holdfast::python {

struct Array {
  // `strides` are in bytes. Raises ValueError or NotImplementedError, and names the
  // array, if the description is not that of a tensor.
  static Array create(const std::string& name, uint64_t address,
                      const std::string& dtype, const std::vector<int64_t>& shape,
                      const std::vector<int64_t>& strides,
                      std::vector<std::string> aliases, bool on_device = false);

  LocalPiece piece;  // a whole tensor
};

LocalPieces pieces_of(const std::vector<Array>& arrays);

}  // namespace holdfast::python
