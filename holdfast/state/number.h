// What the bits of an element mean as a number.
#pragma once

#include "holdfast/base/bytes.h"
#include "holdfast/state/tensor.h"

namespace holdfast {

// The number that `bits` stand for, as one component of the dtype (for a complex number
// the real or the imaginary part). It is exact except for 64-bit integers beyond 2^53.
// Bits above those of the component are ignored.
double to_double(Dtype dtype, uint64_t bits);

// How far two elements are from each other.
struct Gap {
  double absolute = 0;  // |a - b|
  double relative = 0;  // |a - b| / max(|a|, |b|), 0 between zeros
};

// The gap between two elements of bytes_of(dtype) bytes each, little-endian. Both
// numbers of the gap are NaN if either element is NaN, and both are infinite if one
// element is infinite and the other is not the same. Integers are subtracted exactly;
// complex numbers are compared as points of the plane.
Gap gap_between(Dtype dtype, ByteView a, ByteView b);

}  // namespace holdfast
