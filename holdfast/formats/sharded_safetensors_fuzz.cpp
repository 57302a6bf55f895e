// Fuzz target: reads any bytes as the index of a folder that has one good file.
#include <cstddef>
#include <cstdint>

#include "holdfast/env/memory_env.h"
#include "holdfast/formats/safetensors.h"
#include "holdfast/formats/sharded_safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace holdfast;
  static constexpr const char* kIndex = "model.safetensors.index.json";
  MemoryEnv env;
  const SafetensorsEntry entry{.name = "a", .dtype = Dtype::kU8, .shape = {}};
  auto layout = lay_out_safetensors(std::span(&entry, 1), {}).value();
  layout.header.resize(static_cast<size_t>(layout.file_bytes));
  env.write_file("data_cut_off.safetensors", layout.header).value();
  env.write_file(kIndex, std::as_bytes(std::span(data, size))).value();
  (void)open_sharded_safetensors(env, kIndex);
  return 0;
}
