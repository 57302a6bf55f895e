#include "holdfast/store/pack.h"

namespace holdfast {
namespace {

Error not_built() {
  return unsupported("compressed shards: built without libzstd (HOLDFAST_ZSTD)");
}

}  // namespace

Result<Packed> pack(ByteView, int, int) { return not_built(); }
Result<void> unpack(ByteView, int, ByteSpan) { return not_built(); }

}  // namespace holdfast
