// Fuzz target: reads any bytes as a .npy and as a .npz file, and as the text of the
// header of a .npy file. Must end in a value or an error. A value is read in full and
// written again.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "holdfast/env/memory_sink_testing.h"
#include "holdfast/formats/npz.h"

namespace {

using namespace holdfast;

// A deflated array can be much larger than its file.
constexpr int64_t kMostBytes = int64_t{16} << 20;

std::shared_ptr<const Source> fuzz_source(Bytes bytes) {
  return std::make_shared<MemorySource>("fuzz", std::move(bytes));
}

void write_again(const Contents& contents) {
  if (contents.collection.bytes() > kMostBytes) return;
  MemorySink sink;
  if (!write_npz(sink, contents).ok()) return;
  const auto again = open_npz(fuzz_source(std::move(sink).take_bytes()));
  HOLDFAST_CHECK(again.ok(), "{}", again.error().message());
  HOLDFAST_CHECK(again->objects == contents.objects, "the objects differ");
}

// Puts the mark and the length of a header before the bytes.
Bytes as_header(ByteView bytes) {
  const size_t length = std::min<size_t>(bytes.size(), 400);
  Bytes file = copy_of(bytes_of("\x93NUMPY\x01"));
  file.insert(file.end(), {std::byte{0}, static_cast<std::byte>(length & 0xff),
                           static_cast<std::byte>(length >> 8)});
  file.insert(file.end(), bytes.begin(), bytes.end());
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const ByteView bytes = std::as_bytes(std::span(data, size));
  for (const auto& source :
       {fuzz_source(copy_of(bytes)), fuzz_source(as_header(bytes))}) {
    const auto array = open_npy(source);
    if (array.ok()) write_again(*array);
  }
  const auto source = fuzz_source(copy_of(bytes));
  (void)verify_npz(source);
  const auto archive = open_npz(source);
  if (archive.ok()) write_again(*archive);
  return 0;
}
