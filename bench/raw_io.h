// How fast the device itself is: a file written and read in blocks, several in flight,
// with nothing computed. Through the same Env as the engine, so that a benchmark can
// measure both by turns in one run and compare.
#pragma once

#include <cstdint>

#include "holdfast/env/env.h"

namespace holdfast {

struct RawShape {
  int64_t bytes = int64_t{2} << 30;  // a multiple of `block`
  int64_t block = int64_t{4} << 20;  // of one transfer, a multiple of kDirectAlignment
  int64_t depth = 4;                 // transfers in flight
  bool direct = true;
};

// `bytes` of noise that no disk can compress, aligned for direct transfers.
AlignedBytes make_noise(int64_t bytes);

// Each gives bytes a second. Blocks go from or to `memory` in order, and from its
// beginning again where it is shorter than the file (kInvalid below `depth` blocks).

// A new file: allocated, written, its data synced, closed. One of that name is removed
// before. Where the file system cannot allocate it is written without.
Result<double> measure_raw_write(Env& env, const Path& path, const RawShape& shape,
                                 ByteView memory);
// The first `bytes` of the file, opened anew; forget() it before for a cold read.
Result<double> measure_raw_read(Env& env, const Path& path, const RawShape& shape,
                                ByteSpan memory);

// The same with system calls alone: one blocking pwrite or pread after the other, so
// without regard to `depth`.
Result<double> measure_plain_write(const Path& path, const RawShape& shape,
                                   ByteView memory);
Result<double> measure_plain_read(const Path& path, const RawShape& shape,
                                  ByteSpan memory);

// Puts the synced file out of this machine's memory, by its name and, where we may (as
// root), with all that the system has cached. A host under it may still have it cached.
Result<void> forget(const Path& path);

}  // namespace holdfast
