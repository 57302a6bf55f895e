// LZF, the compression that h5py has beside deflate. It has no checksum.
//
// A stream is a row of runs. A first byte below 32 says that so many bytes and one more
// follow as they are. Any other repeats bytes of the output: its highest 3 bits are the
// length less 2, or 7 if a byte follows that is added to it; the rest and the next byte
// are how far back the bytes begin, less 1.
#pragma once

#include "holdfast/base/bytes.h"

namespace holdfast::hdf5 {

// The most bytes that a stream of so many bytes can stand for.
int64_t most_lzf(int64_t stored);

// Fails with kCorrupt unless the stream gives just `bytes` bytes.
Result<Bytes> decompress_lzf(ByteView stored, int64_t bytes);

// The result may be longer than the input.
Bytes compress_lzf(ByteView bytes);

}  // namespace holdfast::hdf5
