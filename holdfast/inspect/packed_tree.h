// Values as the Python package packs them, turned into plain values.
//
// The package stores a value that is no plain data as {"holdfast:type": "its kind", ...}
// (python/holdfast/torch/values/trees.py), so that it comes back with its own type.
// Readers other than the package want plain values instead.
#pragma once

#include <string_view>

#include "holdfast/base/result.h"
#include "holdfast/state/object.h"

namespace holdfast {

// Dicts of all kinds and dataclasses become dicts, a deque and a namedtuple become lists,
// a number of numpy and a tensor of one element that is stored in the tree itself become
// numbers. Other tensors stay TensorNames. Fails with kUnsupported for other kinds;
// `where` names the value.
Result<Object> plain_values(const Object& packed, std::string_view where);

}  // namespace holdfast
