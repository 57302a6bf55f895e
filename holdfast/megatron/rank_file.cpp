#include "holdfast/megatron/rank_file.h"

#include "holdfast/base/json_text.h"
#include "holdfast/env/source_sink.h"
#include "holdfast/formats/torch_zip.h"

namespace holdfast::megatron {
namespace {

Result<void> read_model(RankFile& file, const RuleSet& rules) {
  const Object* model = find_key(file.contents.objects, "model");
  if (model == nullptr || model->as<Object::Dict>() == nullptr) {
    const bool chunks = find_key(file.contents.objects, "model0") != nullptr;
    return unsupported("{}: has no model{}; expected one stage of one model", file.name,
                       chunks ? ", but interleaved stages (model0, model1, ...)" : "");
  }
  for (Leaf& leaf : HOLDFAST_TRY(collect_leaves(*model).within(file.name))) {
    ModelLeaf made{.leaf = std::move(leaf)};
    const auto* tensor = made.leaf.value.as<Object::TensorName>();
    if (tensor != nullptr) made.tensor = file.contents.collection.find(tensor->name);
    if (const auto layer = layer_of(made.leaf.path)) {
      file.layers = std::max(file.layers, *layer + 1);
    }
    if (made.tensor) {
      const Tensor& stored = file.contents.collection.tensor(*made.tensor);
      file.parameters.push_back(file.model.size());
      std::string name = joined(made.leaf.path);
      const Rule* rule = rule_of_name(rules, name);
      file.local.push_back({.name = std::move(name),
                            .dtype = stored.dtype,
                            .shape = stored.shape,
                            .buffer = rule != nullptr && rule->buffer});
    }
    file.model.push_back(std::move(made));
  }
  return {};
}

}  // namespace

Result<RankFile> open_rank_file(Env& env, const Path& path, const RuleSet& rules) {
  std::shared_ptr<const Source> source = HOLDFAST_TRY(FileSource::open(env, path));
  Contents contents = HOLDFAST_TRY(open_torch(std::move(source)));
  if (!contents.left_out.empty()) {
    return unsupported("{}: {}", path.native(), contents.left_out.front());
  }
  RankFile file{.name = path.native(), .contents = std::move(contents)};
  HOLDFAST_TRY(read_model(file, rules));
  const Object* optimizer = find_key(file.contents.objects, "optimizer");
  if (optimizer == nullptr || optimizer->none()) return file;
  file.optimizer =
      HOLDFAST_TRY(name_state(*optimizer, file.local, file.contents.collection)
                       .within(file.name));
  file.has_optimizer = true;
  return file;
}

}  // namespace holdfast::megatron
