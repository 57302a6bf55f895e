#include "holdfast/base/json.h"
#include "holdfast/elastic/reshard.h"
#include "holdfast/formats/format.h"
#include "holdfast/plan/writer_assignment.h"

namespace holdfast {
namespace {

constexpr std::string_view kFolderFormat = "safetensors-folder";

constexpr int64_t kMostConfigBytes = int64_t{1} << 20;
constexpr int64_t kMostHead = int64_t{1} << 20;

// A configuration, or "whole".
Result<Parallel> parse_target(std::string_view text) {
  return text == "whole" ? Result<Parallel>(Parallel()) : parse_parallel(text);
}

// The size of a head by the config.json of transformers beside the tensors; 0 without one.
int64_t head_size(Env& env, const Found& from) {
  const Result<FileInfo> info = env.info(from.path);
  if (from.step() || !info.ok()) return 0;
  const Path path = (info->folder ? from.path : folder_of(from.path)) / "config.json";
  const Result<std::string> text = env.read_text(path, kMostConfigBytes);
  if (!text.ok()) return 0;
  const Result<Json> config = parse_json(*text, path.native());
  if (!config.ok() || !config->is_object()) return 0;
  const auto number = [&](std::initializer_list<const char*> keys) -> int64_t {
    for (const char* key : keys) {
      const auto found = config->find(key);
      if (found == config->end() || !found->is_number_integer()) continue;
      return found->get<int64_t>();
    }
    return 0;
  };
  const int64_t head = number({"head_dim"});
  const int64_t hidden = number({"hidden_size", "n_embd"});
  const int64_t heads = number({"num_attention_heads", "n_head"});
  const int64_t size = head > 0 || heads <= 0 ? head : hidden / heads;
  return size > 0 && size <= kMostHead ? size : 0;
}

Result<RuledModel> find_rules(Env& env, const std::string& name,
                              const ReshardPlan& plan) {
  const Collection& collection = plan.contents->collection;
  const int64_t head = head_size(env, plan.from);
  if (!name.ends_with(".json")) {
    return choose_rules(name, collection, plan.parallel, head);
  }
  const std::string text = HOLDFAST_TRY(env.read_text(name, int64_t{16} << 20));
  const Json json = HOLDFAST_TRY(parse_json(text, name));
  return apply_rules(HOLDFAST_TRY(rule_set_from_json(json, name)), collection.tensors(),
                     head);
}

// Refuses files of old versions of Megatron-LM, which order the rows of a fused QKV in
// another way than by head. Files that do not tell their version are taken for new ones.
Result<void> check_megatron_version(const Object& objects) {
  const auto* dict = objects.as<Object::Dict>();
  if (dict == nullptr) return {};
  for (const auto& [key, value] : dict->items) {
    const auto* name = key.as<std::string>();
    if (name == nullptr || *name != "checkpoint_version") continue;
    const auto* integer = value.as<int64_t>();
    const auto* number = value.as<double>();
    const double version = integer != nullptr  ? static_cast<double>(*integer)
                           : number != nullptr ? *number
                                               : 2.0;
    if (version < 2.0) {
      return unsupported(
          "checkpoint_version: is {}, in which the rows of query_key_value are not "
          "ordered by head; expected 2 or newer",
          version);
    }
  }
  return {};
}

// All tensors whole in one file, in the order of the source.
Result<Collection> merge_all(const Collection& source) {
  const auto tensors = source.tensors();
  std::vector<Tensor> own(tensors.begin(), tensors.end());
  LayoutBuilder builder(own, {{.name = "position-0", .kind = HolderKind::kFile}});
  int64_t offset = 0;
  for (TensorId t = 0; t < own.size(); ++t) {
    const Box box = Box::whole(own[t].shape);
    if (!box.empty()) builder.add(t, box, 0, offset);
    offset += own[t].bytes();
  }
  Layout layout = HOLDFAST_TRY(std::move(builder).build());
  return Collection::create(std::move(own), std::move(layout));
}

Result<std::string> choose_format(const ReshardPlan& plan, const std::string& asked) {
  if (asked == kNativeFormat) return asked;
  if (asked.empty()) {
    const bool native = plan.from.step() || !plan.whole;
    return std::string(native ? kNativeFormat : kFolderFormat);
  }
  if (asked != "safetensors" && asked != kFolderFormat) {
    return invalid("format \"{}\": cannot be cut again; expected native or safetensors",
                   asked.substr(0, 80));
  }
  if (!plan.whole) {
    return unsupported(
        "format safetensors: holds whole tensors; expected --to whole, or --format "
        "native");
  }
  return std::string(kFolderFormat);
}

// Opens the source and fills what the plan says about it.
Result<void> open_source(Env& env, const Path& path, ReshardPlan& plan) {
  plan.from = HOLDFAST_TRY(use_any(env, path, [&](const Found& one) -> Result<void> {
    plan.contents =
        std::make_shared<const Contents>(HOLDFAST_TRY(open_found(env, one)));
    if (one.step()) plan.step = HOLDFAST_TRY(open_step(env, one.path));
    return {};
  }));
  return plan.contents->collection.check_covered().within(plan.from.path.native());
}

Result<Collection> cut_target(Env& env, const std::string& rules, ReshardPlan& plan) {
  const Collection& source = plan.contents->collection;
  if (plan.whole) return merge_all(source);
  const RuledModel ruled = HOLDFAST_TRY(find_rules(env, rules, plan));
  plan.rules = ruled.rules;
  if (plan.rules == "megatron-gpt" && plan.parallel.tp > 1) {
    HOLDFAST_TRY(
        check_megatron_version(plan.contents->objects).within(plan.from.path.native()));
  }
  const Collection cut =
      HOLDFAST_TRY(cut_by_rules(ruled, source.tensors(), plan.parallel));
  return assign_writers(cut, Topology::uniform(1));
}

}  // namespace

Result<ReshardPlan> plan_reshard(Env& env, const Path& from,
                                 const ReshardOptions& options) {
  ReshardPlan plan;
  plan.parallel = HOLDFAST_TRY(parse_target(options.to));
  plan.whole = options.to == "whole";
  HOLDFAST_TRY(open_source(env, from, plan));
  plan.format = HOLDFAST_TRY(choose_format(plan, options.format));
  plan.files = std::make_shared<const Collection>(
      HOLDFAST_TRY(cut_target(env, options.rules, plan)));
  plan.figures =
      HOLDFAST_TRY(holdfast::plan(plan.contents->collection, *plan.files,
                                  Topology::uniform(1), {.forwarding = false}))
          .figures;
  return plan;
}

}  // namespace holdfast
