// Fuzz target: reads any bytes as a safetensors file. If the file opens, its tensors
// must be readable, and writing and opening it again must give the same file.
#include <cstddef>
#include <cstdint>

#include "holdfast/env/memory_sink_testing.h"
#include "holdfast/formats/safetensors.h"

namespace {

using namespace holdfast;

Bytes read_all(const Contents& contents) {
  Bytes all;
  for (TensorId t = 0; t < contents.collection.tensors().size(); ++t) {
    Bytes bytes(static_cast<size_t>(contents.collection.tensor(t).bytes()));
    read_canonical(contents, t, 0, bytes).value();
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

Bytes written(const Contents& contents) {
  MemorySink sink;
  write_safetensors(sink, contents).value();
  return std::move(sink).take_bytes();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto opened = open_safetensors(std::make_shared<MemorySource>(
      "fuzz", copy_of(std::as_bytes(std::span(data, size)))));
  if (!opened.ok()) return 0;
  (void)read_all(*opened);
  const Bytes once = written(*opened);
  const Contents again =
      open_safetensors(std::make_shared<MemorySource>("again", once)).value();
  HOLDFAST_CHECK(written(again) == once, "written twice, {} bytes", once.size());
  return 0;
}
