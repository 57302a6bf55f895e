// Converts Python values to Object (state/object.h) and back. Only None, bool, int,
// float, str, bytes, list, tuple, dict and TensorName are accepted. Any other type is
// refused with a message that names its place in the tree. Subclasses are refused too,
// because they would come back as their base class.
#pragma once

#include "errors.h"
#include "holdfast/state/object.h"

namespace holdfast::python {

// `what` names the tree in messages. Both need the GIL.
Object to_object(nb::handle value, const char* what);
// Raises if the value cannot exist in Python, such as a dict with the keys 1 and True,
// which are equal there.
nb::object to_python(const Object& object);

}  // namespace holdfast::python
