// Mends a piece in memory whose bytes are not those that were sealed.
//
// A file may be whole, by its digests, and yet not hold what the training had: a bit that
// flips in memory after the tensor was sealed and before its digest was computed is
// written with a good digest. The seal shows it, and says what stood there if one word
// was hit (state/changed_word.h).
#pragma once

#include <string>

#include "holdfast/memory/local_state.h"
#include "holdfast/state/seal.h"

namespace holdfast {

// Makes the piece what it was when it had the seal `sealed`; `seen` is its seal now.
// Returns a sentence that names the element and its two values. Fails with kCorrupt,
// and changes nothing, if more than one word differs.
Result<std::string> mend_piece(const LocalPiece& piece, const Seal& sealed,
                               const Seal& seen);

}  // namespace holdfast
