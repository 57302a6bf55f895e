// Measures how fast the storage device itself is: a file is written and read in blocks,
// several of them in flight, and nothing is computed. This goes through the same Env as
// a save, so that a benchmark can measure both in turns in one run and compare them.
#pragma once

#include <cstdint>

#include "holdfast/env/env.h"

namespace holdfast {

struct RawShape {
  int64_t bytes = int64_t{2} << 30;  // a multiple of `block`
  int64_t block = int64_t{4} << 20;  // of one transfer; a multiple of kDirectAlignment
  int64_t depth = 4;                 // transfers in flight
  bool direct = true;                // with O_DIRECT, which bypasses the page cache
};

// Random bytes, which no disk can compress, aligned for O_DIRECT.
AlignedBytes make_noise(int64_t bytes);

// Each of the following functions returns bytes per second. Blocks go from or to
// `memory` in order. If `memory` is shorter than the file, it is used again from its
// beginning. Fails with kInvalid if `memory` is shorter than `depth` blocks.

// Removes a file of that name. Then measures how long it takes to create the file,
// allocate it (if the file system can), write it, sync its data, and close it.
Result<double> measure_raw_write(Env& env, const Path& path, const RawShape& shape,
                                 ByteView memory);
// Opens the file and reads its first `bytes`. Call forget() before, for a cold read.
Result<double> measure_raw_read(Env& env, const Path& path, const RawShape& shape,
                                ByteSpan memory);

// Copies the first `bytes` of a file to a new one, which replaces a file of that name: what
// is read is written as soon as it is there, with `depth` blocks in flight, and the new file
// is synced. A program that changes only where bytes lie cannot be faster.
Result<double> measure_raw_copy(Env& env, const Path& from, const Path& to,
                                const RawShape& shape, ByteSpan memory);

// Writing and reading with system calls alone: one blocking pwrite or pread after the other.
// `depth` does not count.
Result<double> measure_plain_write(const Path& path, const RawShape& shape,
                                   ByteView memory);
Result<double> measure_plain_read(const Path& path, const RawShape& shape,
                                  ByteSpan memory);

// Removes the synced file from the page cache. As root it drops the whole page cache.
// If this is a virtual machine, its host may still have the file cached.
Result<void> forget(const Path& path);

}  // namespace holdfast
