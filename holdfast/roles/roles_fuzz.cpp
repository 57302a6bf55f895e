// Fuzz target: reads any bytes as the graph of objects of a checkpoint, and as the text of
// a user's map. Every tensor must get a role.
#include <cstddef>
#include <cstdint>

#include "holdfast/roles/roles.h"
#include "holdfast/tensorflow/object_graph.h"

namespace {

using namespace holdfast;

Collection small_collection() {
  std::vector<Tensor> tensors;
  for (const char* name :
       {"optimizer/_trainable_variables/0", "optimizer/_variables/2", "save_counter"}) {
    tensors.push_back({.name = std::string(name) + "/.ATTRIBUTES/VARIABLE_VALUE",
                       .dtype = Dtype::kF32,
                       .shape = Shape{3, 3, 1, 2}});
  }
  LayoutBuilder builder(tensors, {{.name = "file", .kind = HolderKind::kFile}});
  for (TensorId t = 0; t < tensors.size(); ++t) {
    builder.add(t, Box::whole(tensors[t].shape), 0, 72 * static_cast<int64_t>(t));
  }
  return Collection::create(tensors, std::move(builder).build().value()).value();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Collection collection = small_collection();
  const ByteView bytes = std::as_bytes(std::span(data, size));
  Object::Dict dict;
  dict.items.emplace_back(Object(std::string(kObjectGraphKey)),
                          Object(Bytes(bytes.begin(), bytes.end())));
  const Object objects(std::move(dict));
  Roles roles = find_roles(
      {.collection = collection, .objects = objects, .metadata = {}, .recorded = false});
  HOLDFAST_CHECK(roles.size() == collection.tensors().size(), "{} roles", roles.size());
  const auto map = parse_role_map(text_of(bytes), "map");
  if (map.ok()) (void)give_roles(*map, collection, roles);
  return 0;
}
