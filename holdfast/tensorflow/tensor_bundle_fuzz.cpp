// Fuzz target: reads any bytes as the index of a checkpoint that has a shard. If it
// opens, its tensors must be readable or damaged, and writing and opening it again must
// give the same checkpoint. The bytes are read as they are and, because nearly all of
// them have wrong checksums, as the entries of a table that has right ones.
#include <cstddef>
#include <cstdint>

#include "holdfast/env/memory_env.h"
#include "holdfast/tensorflow/bundle_entry.h"
#include "holdfast/tensorflow/table_writer.h"
#include "holdfast/tensorflow/tensor_bundle.h"

namespace {

using namespace holdfast;

void read_all(const Contents& contents) {
  for (TensorId t = 0; t < contents.collection.tensors().size(); ++t) {
    Bytes bytes(static_cast<size_t>(contents.collection.tensor(t).bytes()));
    CanonicalStream stream(contents, t);
    (void)stream.read(bytes);
  }
}

void open(ByteView index) {
  MemoryEnv env;
  env.write_file("f.index", index).value();
  env.write_file("f.data-00000-of-00001", Bytes(256)).value();
  (void)verify_tensor_bundle(env, "f", {});
  const auto opened = open_tensor_bundle(env, "f");
  if (!opened.ok()) return;
  read_all(*opened);
  if (!write_tensor_bundle(env, "again", *opened).ok()) return;
  const Contents again = open_tensor_bundle(env, "again").value();
  HOLDFAST_CHECK(again.objects == opened->objects, "the objects differ");
}

// Makes entries of the bytes: a key of one byte each, and up to 63 bytes of a value.
std::string table_of(ByteView bytes) {
  bundle::TableWriter table;
  table.add("", bundle::encode_header({}));
  for (char key = '\0'; bytes.size() > 1 && key < 'z'; ++key) {
    const size_t size = std::min(static_cast<size_t>(bytes[0]) % 64, bytes.size() - 1);
    table.add(std::string(2, key), text_of(bytes.subspan(1, size)));
    bytes = bytes.subspan(1 + size);
  }
  return std::move(table).finish();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const ByteView bytes = std::as_bytes(std::span(data, size));
  open(bytes);
  open(bytes_of(table_of(bytes)));
  return 0;
}
