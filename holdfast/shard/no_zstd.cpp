#include "holdfast/shard/zstd.h"

namespace holdfast {
namespace {

Error not_built() {
  return unsupported("compressed shards: built without libzstd (HOLDFAST_ZSTD)");
}

}  // namespace

Result<Compressed> compress(ByteView, int, int) { return not_built(); }
Result<void> decompress(ByteView, int, ByteSpan) { return not_built(); }

}  // namespace holdfast
