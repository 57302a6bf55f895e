// Object (state/object.h) as Python values and back. The types are exact: what is not one
// of None, bool, int, float, str, bytes, list, tuple, dict and TensorName is refused, by
// its place in the tree, and so are their subclasses, which would not come back.
#pragma once

#include "errors.h"
#include "holdfast/state/object.h"

namespace holdfast::python {

// `what` names the tree in messages. Both need the GIL.
Object to_object(nb::handle value, const char* what);
// Raises on what Python cannot hold apart, such as a dict with the keys 1 and True.
nb::object to_python(const Object& object);

}  // namespace holdfast::python
