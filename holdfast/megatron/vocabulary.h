// How many rows a vocabulary has after Megatron has padded it for a number of ranks.
#pragma once

#include <cstdint>

#include "holdfast/base/result.h"
#include "holdfast/state/object.h"

namespace holdfast::megatron {

struct PaddedRows {
  int64_t words = 0;   // without pad rows; at most `before`
  int64_t before = 0;  // in the source
  int64_t after = 0;   // in the target
};

// `asked` is the number of words, or 0 if only `args` can tell it. `args` may be one too
// low: Megatron counts the word for the end of a document in some versions only. Fails
// with kInvalid if the number of rows depends on what is not known.
Result<PaddedRows> pad_rows(const Object& objects, int64_t rows, int64_t tp,
                            int64_t asked);

}  // namespace holdfast::megatron
