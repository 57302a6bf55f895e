// Compresses and decompresses one chunk. Weights as they are hardly compress: their
// exponents repeat, but they stand between mantissas that do not repeat. So the bytes
// are first sorted into planes (all first bytes of the elements, then all second bytes,
// ...), and the planes are compressed by zstd.
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
