// Fuzz target: reads any bytes as the metadata of a DCP folder that has good items. If
// the folder opens, its tensors must be readable or damaged, and writing and opening it
// again must give the same tensors and objects.
#include <cstddef>
#include <cstdint>

#include "holdfast/env/memory_env.h"
#include "holdfast/env/source_sink.h"
#include "holdfast/formats/dcp.h"

namespace {

using namespace holdfast;

// {"model": {"w": a tensor of 4 floats}, "step": 7, "name": "x"}. The first inputs are
// the metadata of this folder, and changed ones.
Contents make_contents() {
  std::vector<Tensor> tensors{{.name = "model.w", .dtype = Dtype::kF32, .shape = {4}}};
  LayoutBuilder builder(tensors, {{.name = "memory", .kind = HolderKind::kFile}});
  builder.add(0, Box::whole(tensors[0].shape), 0, 0);
  Layout layout = std::move(builder).build().value();
  const auto text = [](const char* value) { return Object(std::string(value)); };
  Object model(Object::Dict{{{text("w"), Object(Object::TensorName{"model.w"})}}});
  return {
      .collection = Collection::create(std::move(tensors), std::move(layout)).value(),
      .sources = {std::make_shared<MemorySource>("memory", Bytes(16))},
      .objects = Object(Object::Dict{{{text("model"), std::move(model)},
                                      {text("step"), Object(int64_t{7})},
                                      {text("name"), text("x")}}}),
      .metadata = {}};
}

void read_all(const Contents& contents) {
  for (TensorId t = 0; t < contents.collection.tensors().size(); ++t) {
    Bytes bytes(static_cast<size_t>(contents.collection.tensor(t).bytes()));
    CanonicalStream stream(contents, t);
    (void)stream.read(bytes);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Contents kContents = make_contents();
  MemoryEnv env;
  write_dcp(env, "f", kContents).value();
  env.write_file("f/.metadata", std::as_bytes(std::span(data, size))).value();
  (void)verify_dcp(env, "f", {});
  const auto opened = open_dcp(env, "f");
  if (!opened.ok()) return 0;
  read_all(*opened);
  if (!write_dcp(env, "again", *opened).ok()) return 0;
  const Contents again = open_dcp(env, "again").value();
  HOLDFAST_CHECK(again.objects == opened->objects, "the objects differ");
  HOLDFAST_CHECK(
      again.collection.tensors().size() == opened->collection.tensors().size(),
      "the tensors differ");
  return 0;
}
