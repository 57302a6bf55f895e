// Fuzz target: reads any bytes as an HDF5 file. If the file opens, reading its tensors
// must give their bytes or an error.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "holdfast/hdf5/hdf5.h"

namespace {

using namespace holdfast;

// Larger tensors are read in part: a few bytes of a file can stand for a gigabyte.
constexpr int64_t kMostRead = int64_t{1} << 20;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto opened = open_hdf5(std::make_shared<MemorySource>(
      "fuzz", copy_of(std::as_bytes(std::span(data, size)))));
  if (!opened.ok()) return 0;
  for (TensorId t = 0; t < opened->collection.tensors().size(); ++t) {
    const int64_t bytes = std::min(opened->collection.tensor(t).bytes(), kMostRead);
    Bytes memory(static_cast<size_t>(bytes));
    (void)read_canonical(*opened, t, 0, memory);
  }
  return 0;
}
