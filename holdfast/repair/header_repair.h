// Finds the one flipped bit of a header because of which a file cannot be opened. For
// repair.cpp.
//
// Each bit of the header is tried: the file is read as if the bit was flipped back. The
// bit is found if the file can then be opened, all its checksums fit, and so do the seals
// beside it, and if no other bit does the same. What is searched:
//
//   .pt, .npz, .keras   entries of the zip directory that contradict themselves or the
//                       headers of their records, those headers, and the end of the file
//   .safetensors        the header, up to kMostHeader bytes
//   HDF5                the superblock
//   TensorFlow          the index file, up to kMostHeader bytes
#pragma once

#include "holdfast/repair/repair.h"

namespace holdfast {

// As in RepairSources.
struct HeaderSearch {
  Duration time = std::chrono::seconds(30);
  Progress progress{};
};

// Opening the file takes long if it has many tensors, so the search is bounded by time
// (RepairSources::search_time). What was tried until then is said, and nothing is mended:
// one of the other bits might explain the damage, too.
inline constexpr int64_t kMostHeader = int64_t{16} << 10;

// Whether the file cannot be opened, or has not all tensors that were sealed. Fails with
// the error of opening it if the file is more likely whole, but cannot be read by this
// code: kUnsupported or kInvalid, and no checksum or seal that could show a flipped bit.
Result<bool> has_bad_header(Env& env, const Found& found);

// Fails with kCorrupt if no bit explains the damage, or more than one, if the time was not
// enough to try all, or if the format has no header that is searched; with the error of
// opening the file if that is not kCorrupt.
Result<RepairReport> plan_by_header(Env& env, const Found& found,
                                    const HeaderSearch& limits);

}  // namespace holdfast
