// The header of NumPy's .npy files and of the records of .npz files.
//
//   "\x93NUMPY", version (2 bytes), length of the text (2 bytes in version 1, else 4),
//   {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), } with spaces behind it
//
// The text is a Python literal. It is read by a small grammar and never evaluated.
#pragma once

#include <string>

#include "holdfast/env/source_sink.h"
#include "holdfast/state/tensor.h"

namespace holdfast {

struct NpyHeader {
  Dtype dtype = Dtype::kF32;
  Shape shape{};
  bool big_endian = false;
  bool fortran_order = false;
  // An array of Python objects, which are a pickle behind the header. `dtype` has no
  // meaning.
  bool objects = false;
  int64_t bytes = 0;  // of the header with its mark; the data begins here

  // Maps the elements to bytes of the source, if the header begins at `offset`.
  Map map(int64_t offset) const;
};

// Reads the header at the front of a source. Fails with kCorrupt if it is none, or if the
// rest of the source is not exactly the array; fails with kUnsupported, naming the
// dtype, for text, dates, records and others that are no numbers.
Result<NpyHeader> read_npy_header(const Source& source);

// The header of an array in row-major order, as NumPy writes it. The dtype must be one
// that NumPy has.
Bytes write_npy_header(Dtype dtype, const Shape& shape);

// Whether NumPy has the dtype.
bool is_numpy_dtype(Dtype dtype);

}  // namespace holdfast
