// A CUDA kernel that computes the sums of seals (state/seal.h) of bytes in a device's
// memory. It is PTX text, like the copier, for all devices from compute capability 7.0
// on.
//
// The parameters of a launch are a table of up to kSealRunsPerLaunch entries, and the
// address for the sums. All blocks (x, y) with the same y sum up entry y together, and
// each writes its own sums of both lanes at place y * CudaSealRun::kSums + x. So nothing
// has to be cleared before and no two blocks write to one place.
//
// A block has 256 threads and takes 1024 words of the tensor at a time, those that share
// one A_j(h): thread t always takes the words 4t to 4t + 3, so that its eight constants
// K_j stay in registers. The 32 threads of a warp each compute A_j of another of the next
// 32 values of h, and pass it to the others when it comes up. Words are loaded by 16
// bytes, with four loads under way at once. Only at the ends of a run, or if memory and
// tensor are not aligned alike, they are put together byte by byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace holdfast {

inline constexpr size_t kSealRunsPerLaunch = 84;
inline constexpr unsigned kSealThreads = 256;

struct SealTable {
  struct Entry {
    uint64_t from;
    uint64_t offset;  // of the first byte in the tensor
    uint64_t bytes;   // of a row
    uint64_t rows;
    uint64_t from_pitch;
    uint64_t offset_pitch;
  };
  Entry entries[kSealRunsPerLaunch];
};
static_assert(sizeof(SealTable) == 4032);

inline constexpr const char* kSealerName = "holdfast_seal";
std::string make_sealer();

}  // namespace holdfast
