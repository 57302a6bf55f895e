// A whole file, read in order at the speed of the device.
#pragma once

#include <cstdint>
#include <functional>

#include "holdfast/base/env.h"

namespace holdfast {

// Gets the bytes in order, block by block, from offset 0 on.
using TakeBlock = std::function<void(int64_t offset, ByteView block)>;

// Reads the first `size` bytes in blocks of 4 MiB, several in flight. kCorrupt if there
// are fewer. With `direct`, kUnsupported or another error where the file system cannot
// read past its cache.
Result<void> scan_file(Env& env, const Path& path, int64_t size, bool direct,
                       const TakeBlock& take);

}  // namespace holdfast
