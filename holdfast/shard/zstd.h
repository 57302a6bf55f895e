// A chunk, compressed. Weights hardly compress as they are: their exponents repeat, but
// each stands between mantissas that do not. So the bytes are sorted into planes first
// (all first bytes of the elements, all second ones, ...), then given to zstd.
//
// A build without libzstd packs and unpacks nothing: kUnsupported, naming the option.
#pragma once

#include "holdfast/base/bytes.h"

namespace holdfast {

inline constexpr int64_t kMaxPackWidth = 16;

struct Compressed {
  Bytes bytes;
  int width = 0;  // 0: the chunk as it is, because it does not compress
};

// `width` is the size of an element, 1 to kMaxPackWidth; any is right, a wrong one
// compresses less.
Result<Compressed> compress(ByteView chunk, int width, int level);

// Fills `chunk`, whose size is that of what was packed. kCorrupt if the bytes do not make
// exactly that.
Result<void> decompress(ByteView packed, int width, ByteSpan chunk);

}  // namespace holdfast
