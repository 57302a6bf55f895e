#include "holdfast/base/crc32.h"

#include <isa-l/crc.h>

namespace holdfast {

Crc32 crc32(ByteView bytes) { return crc32_extend(0, bytes); }

Crc32 crc32_extend(Crc32 of_a, ByteView b) {
  // ISA-L inverts the register before and after, so we do not.
  return crc32_gzip_refl(of_a, reinterpret_cast<const unsigned char*>(b.data()),
                         b.size());
}

}  // namespace holdfast
