// How a checkpoint is cut for another configuration, before anything is read or written:
//
//   1. The source is opened: a folder of Megatron, or anything that use_any() opens.
//   2. The format of the target is chosen.
//   3. Rules by the names of tensors cut them for the new configuration (cut_target), and
//      each box gets the file that it is written to. A folder of Megatron has copies of
//      some tensors, and names and shapes of its own (plan_megatron_target).
//   4. The moves from the source to these files are planned (plan_moves).
#include <algorithm>
#include <tuple>

#include "holdfast/base/json_place.h"
#include "holdfast/formats/format.h"
#include "holdfast/plan/writer_assignment.h"
#include "holdfast/reshard/reshard.h"

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
int64_t head_size(Env& env, const ReshardPlan& plan) {
  const Path& from = plan.from.path;
  const Result<FileInfo> info = env.info(from);
  if (plan.step || plan.megatron || !info.ok()) return 0;
  const Path path = (info->folder ? from : folder_of(from)) / "config.json";
  const Result<std::string> text = env.read_text(path, kMostConfigBytes);
  if (!text.ok()) return 0;
  const auto config = JsonDocument::parse(*text, path.native());
  if (!config.ok()) return 0;
  const auto number = [root = config->root()](std::initializer_list<const char*> keys) {
    for (const char* key : keys) {
      if (const auto size = root.member_as<int64_t>(key)) return *size;
    }
    return int64_t{0};
  };
  const int64_t head = number({"head_dim"});
  const int64_t hidden = number({"hidden_size", "n_embd"});
  const int64_t heads = number({"num_attention_heads", "n_head"});
  const int64_t size = head > 0 || heads <= 0 ? head : hidden / heads;
  return size > 0 && size <= kMostHead ? size : 0;
}

Result<RuleSet> read_rule_file(Env& env, const std::string& path) {
  const std::string text = HOLDFAST_TRY(env.read_text(path, int64_t{16} << 20));
  return parse_rule_set(text, path);
}

// The rule set of what Megatron has saved. Without a name it is the built-in one.
Result<RuleSet> megatron_rules(Env& env, const std::string& name) {
  if (name.ends_with(".json")) return read_rule_file(env, name);
  return find_rule_set(name.empty() || name == "as-cut" ? "megatron-gpt" : name);
}

// The rules of this name, or in this file, with what they say of each tensor of the source.
Result<RuledModel> rules_for(Env& env, const std::string& name,
                             const ReshardPlan& plan) {
  const Collection& collection = plan.contents->collection;
  const int64_t head = head_size(env, plan);
  if (!plan.rule_set.rules.empty() && name != "as-cut") {
    return apply_rules(plan.rule_set, collection.tensors(), head);
  }
  if (!name.ends_with(".json")) {
    return choose_rules(name, collection, plan.parallel, head);
  }
  return apply_rules(HOLDFAST_TRY(read_rule_file(env, name)), collection.tensors(),
                     head);
}

// Refuses files of old versions of Megatron-LM, which order the rows of a fused QKV in
// another way than by head. Files that do not tell their version are taken for new ones.
Result<void> check_row_order(const Object& objects) {
  const double version = megatron_version(objects).value_or(2.0);
  if (version >= 2.0) return {};
  return unsupported(
      "checkpoint_version: is {}, in which the rows of query_key_value are not ordered "
      "by head; expected 2 or newer, or the folder that Megatron has saved",
      version);
}

// All tensors whole in one file, in the order of the source; also those without elements.
Result<Collection> whole_in_one_file(const Collection& source) {
  const auto tensors = source.tensors();
  std::vector<Tensor> own(tensors.begin(), tensors.end());
  LayoutBuilder builder(own, {{.name = "position-0", .kind = HolderKind::kFile}});
  int64_t offset = 0;
  for (TensorId t = 0; t < own.size(); ++t) {
    builder.add(t, Box::whole(own[t].shape), 0, offset);
    offset += own[t].bytes();
  }
  Layout layout = HOLDFAST_TRY(std::move(builder).build());
  return Collection::create(std::move(own), std::move(layout));
}

// The format of the source, if it can hold what is asked.
std::string default_format(const ReshardPlan& plan) {
  if (plan.step) return std::string(kNativeFormat);
  if (plan.megatron) return std::string(kMegatronFormat);
  if (plan.kind() == kDcpFormat) return std::string(kDcpFormat);
  return std::string(plan.whole ? kFolderFormat : kNativeFormat);
}

Result<std::string> choose_format(const ReshardPlan& plan, const std::string& asked) {
  if (asked.empty()) return default_format(plan);
  if (asked == kNativeFormat || asked == kDcpFormat || asked == kMegatronFormat) {
    return asked;
  }
  if (asked != "safetensors" && asked != kFolderFormat) {
    return invalid(
        "format \"{}\": cannot be cut again; expected native, dcp, megatron or "
        "safetensors",
        asked.substr(0, 80));
  }
  if (!plan.whole) {
    return unsupported(
        "format safetensors: holds whole tensors; expected --to whole, or --format "
        "native");
  }
  return std::string(kFolderFormat);
}

Result<void> open_megatron_source(Env& env, const std::string& rules,
                                  const MegatronFolder& folder, ReshardPlan& plan) {
  OpenedMegatron opened = HOLDFAST_TRY(
      open_megatron(env, folder, HOLDFAST_TRY(megatron_rules(env, rules))));
  plan.from.path = folder.path;
  plan.megatron = folder;
  plan.contents = std::make_shared<const Contents>(std::move(opened.contents));
  plan.rule_set = std::move(opened.rules);
  plan.notes = std::move(opened.notes);
  return {};
}

// Opens the source and fills what the plan says about it.
Result<void> open_source(Env& env, const Path& path, const std::string& rules,
                         ReshardPlan& plan) {
  if (const auto folder = HOLDFAST_TRY(find_megatron(env, path))) {
    HOLDFAST_TRY(open_megatron_source(env, rules, *folder, plan));
  } else {
    plan.from = HOLDFAST_TRY(use_any(env, path, [&](const Found& one) -> Result<void> {
      plan.contents =
          std::make_shared<const Contents>(HOLDFAST_TRY(open_found(env, one)));
      if (one.step()) plan.step = HOLDFAST_TRY(open_step(env, one.path));
      return {};
    }));
  }
  if (!plan.contents->left_out.empty()) {
    return unsupported("{}: {}; expected a source of which nothing is left out",
                       plan.from.path.native(), plan.contents->left_out.front());
  }
  return plan.contents->collection.check_covered().within(plan.from.path.native());
}

// How far the planning is, in hundredths, when one of its parts is done. With very many
// positions nearly all of the time goes into the cut.
constexpr int64_t kOpened = 1, kCut = 96, kAssigned = 98, kPlanned = 100;

void tell_planned(const ReshardOptions& options, int64_t hundredths) {
  if (options.planning) options.planning(hundredths, kPlanned);
}

Result<Collection> cut_target(Env& env, const ReshardOptions& options,
                              ReshardPlan& plan) {
  const Collection& source = plan.contents->collection;
  if (plan.whole) return whole_in_one_file(source);
  const RuledModel ruled = HOLDFAST_TRY(rules_for(env, options.rules, plan));
  plan.rules = ruled.rules;
  if (plan.rules == "megatron-gpt" && plan.parallel.tp > 1) {
    HOLDFAST_TRY(
        check_row_order(plan.contents->objects).within(plan.from.path.native()));
    HOLDFAST_TRY(check_megatron_heads(plan.contents->objects, plan.parallel.tp));
  }
  const auto tell_cut = [&](int64_t done, int64_t total) {
    tell_planned(options, kOpened + (kCut - kOpened) * done / total);
  };
  const Collection cut =
      HOLDFAST_TRY(cut_by_rules(ruled, source.tensors(), plan.parallel, tell_cut));
  tell_planned(options, kCut);
  return assign_writers(cut, Topology::uniform(1));
}

// Plans the moves that fill these files. Their order is that in which PlannedReads looks
// for them; any order can be carried out, because all moves read from the source.
Result<void> plan_moves(std::shared_ptr<const Collection> filled, ReshardPlan& plan) {
  Plan made = HOLDFAST_TRY(holdfast::plan(plan.contents->collection, *filled,
                                          Topology::uniform(1),
                                          {.forwarding = false, .new_holders = true}));
  std::ranges::sort(made.moves, [](const Move& a, const Move& b) {
    return std::tie(a.tensor, a.to_holder, a.box) <
           std::tie(b.tensor, b.to_holder, b.box);
  });
  plan.filled = std::move(filled);
  plan.figures = made.figures;
  plan.moves = std::make_shared<const Plan>(std::move(made));
  return {};
}

// The bytes of all boxes, if those that several files have are counted once.
int64_t bytes_once(const Collection& filled) {
  int64_t bytes = 0;
  for (TensorId t = 0; t < filled.tensors().size(); ++t) {
    for (const Slice& slice : filled.layout().slices(t)) {
      bytes += slice.box.elements() * bytes_of(filled.tensor(t).dtype);
    }
  }
  return bytes;
}

// Plans a folder of Megatron. Its files have copies of some tensors, so each is read as
// often as it is written.
Result<void> plan_megatron_target(Env& env, const ReshardOptions& options,
                                  ReshardPlan& plan) {
  if (!is_megatron_objects(plan.contents->objects)) {
    return unsupported(
        "format megatron: {} has no objects of Megatron; expected a checkpoint of "
        "Megatron, or one that was cut from it",
        plan.from.path.native());
  }
  if (plan.rule_set.rules.empty()) {
    plan.rule_set = with_gates(HOLDFAST_TRY(megatron_rules(env, options.rules)),
                               plan.contents->objects);
  }
  const RuledModel ruled =
      HOLDFAST_TRY(apply_rules(plan.rule_set, plan.contents->collection.tensors()));
  HOLDFAST_TRY(check_degrees(ruled, plan.parallel));
  HOLDFAST_TRY(check_row_order(plan.contents->objects));
  plan.rules = ruled.rules;
  plan.vocabulary = options.vocabulary;
  plan.megatron_target = std::make_shared<const MegatronTarget>(
      HOLDFAST_TRY(MegatronTarget::create(plan.contents, plan.rule_set, plan.parallel,
                                          {.vocabulary = options.vocabulary})));
  tell_planned(options, kCut);
  plan.notes.insert(plan.notes.end(), plan.megatron_target->notes().begin(),
                    plan.megatron_target->notes().end());
  plan.files = std::make_shared<const Collection>(
      HOLDFAST_TRY(whole_in_one_file(plan.contents->collection)));
  // It shares the ownership of the target.
  HOLDFAST_TRY(
      plan_moves({plan.megatron_target, &plan.megatron_target->reads()}, plan));
  plan.figures.moved_bound = bytes_once(*plan.filled);
  return {};
}

}  // namespace

Result<ReshardPlan> plan_reshard(Env& env, const Path& from,
                                 const ReshardOptions& options) {
  ReshardPlan plan;
  plan.parallel = HOLDFAST_TRY(parse_target(options.to));
  plan.whole = options.to == "whole";
  tell_planned(options, 0);
  HOLDFAST_TRY(open_source(env, from, options.rules, plan));
  tell_planned(options, kOpened);
  plan.format = HOLDFAST_TRY(choose_format(plan, options.format));
  if (plan.format == kMegatronFormat) {
    HOLDFAST_TRY(plan_megatron_target(env, options, plan));
    tell_planned(options, kPlanned);
    return plan;
  }
  if (options.vocabulary != 0) {
    return invalid(
        "--vocabulary {}: is for targets of Megatron, and this one is {}; expected "
        "--format megatron, or no --vocabulary",
        options.vocabulary, plan.format);
  }
  plan.files =
      std::make_shared<const Collection>(HOLDFAST_TRY(cut_target(env, options, plan)));
  tell_planned(options, kAssigned);
  HOLDFAST_TRY(plan_moves(plan.files, plan));
  tell_planned(options, kPlanned);
  return plan;
}

}  // namespace holdfast
