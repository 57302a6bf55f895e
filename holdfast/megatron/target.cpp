#include "holdfast/megatron/target.h"

#include <algorithm>

#include "holdfast/base/json_text.h"
#include "holdfast/megatron/cut.h"
#include "holdfast/megatron/target_internal.h"

namespace holdfast {

using megatron::Leaf;

Result<void> MegatronTarget::State::plan(const MegatronOptions& options) {
  HOLDFAST_TRY(check_parallel());
  HOLDFAST_TRY(check_megatron_heads(source_->objects, parallel_.tp));
  HOLDFAST_TRY(check_optimizer());
  HOLDFAST_TRY(add_entries());
  if (layers_ % parallel_.pp != 0) {
    return invalid("pp={}: does not divide the {} layers; expected a divisor",
                   parallel_.pp, layers_);
  }
  HOLDFAST_TRY(pad_vocabulary(options.vocabulary));
  plan_random_states();
  return plan_reads();
}

Result<void> MegatronTarget::State::check_parallel() const {
  const Parallel plain{.tp = parallel_.tp, .pp = parallel_.pp, .dp = parallel_.dp};
  Parallel own = parallel_;
  own.world.reset();
  if (own == plain) return {};
  return unsupported("{}: has more than tp, pp and dp; expected only those for Megatron",
                     to_string(parallel_));
}

// The objects may come from a step, and a step may have any objects.
Result<void> MegatronTarget::State::check_optimizer() const {
  const Object* optimizer = find_key(source_->objects, "optimizer");
  const Object* inner =
      optimizer == nullptr ? nullptr : megatron::inner_optimizer(*optimizer);
  if (inner == nullptr) return {};
  const Object* groups = find_key(*inner, megatron::kGroupsKey);
  const auto& list = groups->as<Object::List>()->items;
  const bool dicts = std::ranges::all_of(list, [](const Object& group) {
    return group.as<Object::Dict>() != nullptr;
  });
  if (dicts && !list.empty() && list.size() <= 2) return {};
  return unsupported("optimizer.param_groups: has {} items; expected one or two groups",
                     list.size());
}

Result<void> MegatronTarget::State::add_entries() {
  const Object* model = find_key(source_->objects, "model");
  if (model == nullptr || model->as<Object::Dict>() == nullptr) {
    return unsupported("the source has no objects of Megatron; expected a checkpoint of "
                       "Megatron, or one that was cut from it");
  }
  std::vector<std::optional<int64_t>> layer_of_entry;
  for (Leaf& leaf : HOLDFAST_TRY(megatron::collect_leaves(*model))) {
    Entry entry{.leaf = std::move(leaf)};
    const auto layer = megatron::layer_of(entry.leaf.path);
    if (layer) layers_ = std::max(layers_, *layer + 1);
    layer_of_entry.push_back(layer);
    const std::string name = megatron::joined(entry.leaf.path);
    if (const auto* tensor = entry.leaf.value.as<Object::TensorName>()) {
      entry.tensor = source_->collection.find(tensor->name);
      const Rule* rule = rule_of_name(rules_, name);
      if (!entry.tensor || rule == nullptr) {
        return invalid("{}: {}; expected a tensor with a rule", shown(tensor->name),
                       rule == nullptr ? "has no rule in " + rules_.name
                                       : "is not in the source");
      }
      // What cannot be read back must not be written.
      HOLDFAST_TRY(
          megatron::whole_shape(*rule, source_->collection.tensor(*entry.tensor).shape, 1)
              .within(shown(tensor->name)));
      entry.rule = *rule;
    }
    entries_.push_back(std::move(entry));
  }
  const auto stage_of = HOLDFAST_TRY(
      stages_of_layers(parallel_, std::max<int64_t>(layers_, parallel_.pp)));
  for (size_t i = 0; i < entries_.size(); ++i) {
    const bool last = entries_[i].tensor && entries_[i].rule.site == Site::kLast;
    entries_[i].stage = layer_of_entry[i]
                            ? stage_of[static_cast<size_t>(*layer_of_entry[i])]
                            : (last ? parallel_.pp - 1 : 0);
  }
  add_head();
  return {};
}

// With several stages, the last one has a copy of the embedding if the model has no
// output layer of its own.
void MegatronTarget::State::add_head() {
  const auto vocabulary = [](Site site) {
    return [site](const Entry& entry) {
      return entry.tensor && entry.rule.cut == Cut::kVocabulary &&
             entry.rule.site == site;
    };
  };
  if (parallel_.pp == 1 || std::ranges::any_of(entries_, vocabulary(Site::kLast))) return;
  const auto embedding = std::ranges::find_if(entries_, vocabulary(Site::kFirst));
  if (embedding == entries_.end()) return;
  Entry head = *embedding;
  const bool old = head.leaf.path.front() == "language_model";
  head.leaf.path = old ? std::vector<std::string>{"word_embeddings_for_head", "weight"}
                       : std::vector<std::string>{"output_layer.weight"};
  head.stage = parallel_.pp - 1;
  entries_.push_back(std::move(head));
}

Result<void> MegatronTarget::State::pad_vocabulary(int64_t asked) {
  const auto found = std::ranges::find_if(entries_, [](const Entry& entry) {
    return entry.tensor && entry.rule.cut == Cut::kVocabulary;
  });
  if (found == entries_.end()) return {};
  const Tensor& tensor = source_->collection.tensor(*found->tensor);
  rows_ = HOLDFAST_TRY(megatron::pad_rows(source_->objects, tensor.shape[0],
                                          parallel_.tp, asked)
                           .within(shown(tensor.name)));
  if (rows_.after == rows_.before) return {};
  if (rows_.after < rows_.before) {
    notes_.push_back(fmt::format("vocabulary: {} of {} pad rows are left out",
                                 rows_.before - rows_.after,
                                 rows_.before - rows_.words));
    return {};
  }
  notes_.push_back(fmt::format(
      "vocabulary: {} pad rows are added, which are {}", rows_.after - rows_.before,
      rows_.before > rows_.words
          ? "copies of the last one"
          : "zeros, because there is none to copy: mask them in the softmax"));
  if (rows_.before == rows_.words) return {};
  for (TensorId t = 0; t < source_->collection.tensors().size(); ++t) {
    const Tensor& each = source_->collection.tensor(t);
    if (each.shape.rank() == 0 || each.shape[0] != rows_.before) continue;
    Bytes row(static_cast<size_t>(each.bytes() / rows_.before));
    HOLDFAST_TRY(read_canonical(*source_, t, each.bytes() - std::ssize(row), row));
    pad_rows_.emplace(t, std::move(row));
  }
  return {};
}

void MegatronTarget::State::plan_random_states() {
  random_ = megatron::RandomStates(source_->objects, parallel_);
  if (random_.there() == 0 || random_.enough()) return;
  notes_.push_back(fmt::format(
      "rng_state: is left out, because {} ranks need more than the {} streams that the "
      "source has: start Megatron with --no-load-rng",
      files(), random_.there()));
}

std::string MegatronTarget::State::iteration_folder() const {
  const auto iteration = megatron_iteration(source_->objects);
  return iteration ? fmt::format("iter_{:07}", *iteration) : "release";
}

std::string MegatronTarget::State::tracker_text() const {
  const auto iteration = megatron_iteration(source_->objects);
  return iteration ? std::to_string(*iteration) : "release";
}

std::string MegatronTarget::State::file_name(int64_t file) const {
  const MegatronFolder folder{
      .tp = parallel_.tp, .pp = parallel_.pp, .staged = parallel_.pp > 1};
  return fmt::format("{}/{}/{}", iteration_folder(),
                     folder.rank_name(file % parallel_.tp, file / parallel_.tp),
                     kMegatronFile);
}

MegatronTarget::MegatronTarget(std::unique_ptr<State> state)
    : state_(std::move(state)) {}
MegatronTarget::~MegatronTarget() = default;
MegatronTarget::MegatronTarget(MegatronTarget&&) noexcept = default;
MegatronTarget& MegatronTarget::operator=(MegatronTarget&&) noexcept = default;

Result<MegatronTarget> MegatronTarget::create(std::shared_ptr<const Contents> source,
                                              const RuleSet& rules,
                                              const Parallel& parallel,
                                              const MegatronOptions& options) {
  auto state = std::make_unique<State>(std::move(source), rules, parallel);
  HOLDFAST_TRY(state->plan(options));
  return MegatronTarget(std::move(state));
}

int64_t MegatronTarget::files() const { return state_->files(); }
std::string MegatronTarget::file_name(int64_t file) const {
  return state_->file_name(file);
}
std::string MegatronTarget::iteration_folder() const {
  return state_->iteration_folder();
}
std::string MegatronTarget::tracker_text() const { return state_->tracker_text(); }
Result<Contents> MegatronTarget::contents_of(int64_t file,
                                             const ReadForFile& read) const {
  return state_->contents_of(file, read);
}
int64_t MegatronTarget::bytes() const { return state_->bytes(); }
const Collection& MegatronTarget::reads() const { return state_->reads(); }
const std::vector<std::string>& MegatronTarget::notes() const {
  return state_->notes();
}

}  // namespace holdfast
