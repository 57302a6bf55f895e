// Converts floating-point numbers to another type, as torch's Tensor.to() does.
#pragma once

#include "holdfast/base/bytes.h"
#include "holdfast/state/tensor.h"

namespace holdfast {

// Whether convert_floats() knows the type: F16, BF16, F32 and F64.
bool is_convertible(Dtype dtype);

// Converts the elements of `from` to those of `into`, which must be as many. Rounds to
// the nearest value, and to the even one of two. A number that is too large becomes
// infinity. F64 becomes BF16 through F32, as in torch, so it is rounded twice. A NaN
// stays a NaN, but its payload may change. Both dtypes must be convertible.
void convert_floats(Dtype from_dtype, ByteView from, Dtype into_dtype, ByteSpan into);

}  // namespace holdfast
