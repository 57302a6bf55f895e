// Replaces zstd.cpp in a build without libzstd.
#include "holdfast/shard/zstd.h"

namespace holdfast {
namespace {

Error not_built() {
  return unsupported(
      "compressed shards: this build has no libzstd; expected one with the option "
      "HOLDFAST_ZSTD");
}

}  // namespace

Result<Compressed> compress(ByteView, int, int) { return not_built(); }
Result<void> decompress(ByteView, int, ByteSpan) { return not_built(); }

}  // namespace holdfast
