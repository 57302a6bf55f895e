// What the bits of an element mean as a number.
#pragma once

#include "holdfast/base/bytes.h"
#include "holdfast/state/dtype.h"

namespace holdfast {

// The number that `bits` are, where one component of the dtype is taken (of a complex
// number its real or imaginary part). Exact but for 64-bit integers beyond 2^53. Bits
// above the component's are ignored.
double to_double(Dtype dtype, uint64_t bits);

// How far two elements are from each other.
struct Gap {
  double absolute = 0;  // |a - b|
  double relative = 0;  // |a - b| / max(|a|, |b|), 0 between zeros
};

// Of one element each, little-endian, of bytes_of(dtype) bytes. Both are NaN if either
// element is one, and both infinite if one is infinite and the other is not the same.
// Integers are subtracted exactly; complex numbers are points of the plane.
Gap gap_between(Dtype dtype, ByteView a, ByteView b);

}  // namespace holdfast
