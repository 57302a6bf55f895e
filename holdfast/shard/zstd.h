// Compresses and decompresses one chunk. Raw weights compress badly: their exponents
// repeat, but mantissas that do not repeat stand between them. So the bytes are first
// grouped by their position in an element (all first bytes, then all second bytes, ...),
// as in a byte shuffle, and zstd compresses the groups. `width` is the bytes of an element.
//
// In a build without libzstd both functions fail with kUnsupported, naming the build
// option.
#pragma once

#include "holdfast/base/bytes.h"

namespace holdfast {

inline constexpr int64_t kMaxPackWidth = 16;

struct Compressed {
  Bytes bytes;
  // 0 if the chunk is stored as it is, because it does not compress.
  int width = 0;
};

// `width` is the size of an element, 1 to kMaxPackWidth. A wrong width gives a correct
// result that is larger.
Result<Compressed> compress(ByteView chunk, int width, int level);

// Fills `chunk`, which must have the size of the original chunk. Fails with kCorrupt if
// `packed` does not decompress to exactly this size.
Result<void> decompress(ByteView packed, int width, ByteSpan chunk);

}  // namespace holdfast
