#include "holdfast/megatron/target.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "holdfast/base/json_text.h"
#include "holdfast/megatron/cut.h"
#include "holdfast/megatron/objects.h"
#include "holdfast/megatron/optimizer.h"
#include "holdfast/megatron/rank_objects.h"
#include "holdfast/megatron/vocabulary.h"

namespace holdfast {

using megatron::Leaf;
using megatron::LocalParameter;

class MegatronTarget::State {
 public:
  State(std::shared_ptr<const Contents> source, const RuleSet& rules,
        const Parallel& parallel)
      : source_(std::move(source)), rules_(rules), parallel_(parallel) {}

  Result<void> plan(const MegatronOptions& options);

  int64_t files() const { return parallel_.tp * parallel_.pp; }
  std::string file_name(int64_t file) const;
  std::string iteration_folder() const;
  std::string tracker_text() const;
  Result<Contents> contents_of(int64_t file, const OnRead& on_read) const;
  int64_t bytes() const;
  Reads reads() const;
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  // A value of the model, and which stage has it.
  struct Entry {
    Leaf leaf{};
    std::optional<TensorId> tensor{};
    Rule rule{};
    int64_t stage = 0;
  };

  Result<void> check_parallel() const;
  Result<void> check_optimizer() const;
  Result<void> add_entries();
  void add_head();
  Result<void> pad_vocabulary(int64_t asked);
  void plan_random_states();

  // Calls `visit` for each tensor of the source that a file has because of the entry: the
  // parameter itself and its optimizer state.
  void for_each_state(
      const std::function<void(const Entry& entry, TensorId tensor)>& visit) const;
  bool is_vocabulary(const Entry& entry, TensorId tensor) const;
  Shape shape_of(const Entry& entry, TensorId tensor) const;
  std::vector<AssembledPart> parts_of(const Entry& entry, TensorId tensor,
                                      int64_t rank) const;
  std::optional<TensorId> find_state(const Entry& entry, const std::string& slot) const;

  struct RankParts;
  Object add_part(RankParts& rank, const Entry& entry, TensorId tensor) const;
  Object model_of(RankParts& rank) const;
  Object optimizer_of(RankParts& rank, const Object& common) const;

  const std::shared_ptr<const Contents> source_;
  const RuleSet rules_;
  const Parallel parallel_;
  std::vector<Entry> entries_;
  int64_t layers_ = 0;
  megatron::PaddedRows rows_;
  // For pad rows that the source does not have: the bytes of a pad row, by tensor.
  std::map<TensorId, Bytes> pad_rows_;
  megatron::RandomStates random_;
  std::vector<std::string> notes_;
};

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
  return {};
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
  const Object* optimizer = megatron::find_key(source_->objects, "optimizer");
  const Object* inner =
      optimizer == nullptr ? nullptr : megatron::inner_optimizer(*optimizer);
  if (inner == nullptr) return {};
  const Object* groups = megatron::find_key(*inner, megatron::kGroupsKey);
  const auto& list = groups->as<Object::List>()->items;
  const bool dicts = std::ranges::all_of(list, [](const Object& group) {
    return group.as<Object::Dict>() != nullptr;
  });
  if (dicts && !list.empty() && list.size() <= 2) return {};
  return unsupported("optimizer.param_groups: has {} items; expected one or two groups",
                     list.size());
}

Result<void> MegatronTarget::State::add_entries() {
  const Object* model = megatron::find_key(source_->objects, "model");
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

bool MegatronTarget::State::is_vocabulary(const Entry& entry, TensorId tensor) const {
  return entry.rule.cut == Cut::kVocabulary &&
         source_->collection.tensor(tensor).shape ==
             source_->collection.tensor(*entry.tensor).shape;
}

// The shape of a rank's part.
Shape MegatronTarget::State::shape_of(const Entry& entry, TensorId tensor) const {
  const Shape& whole = source_->collection.tensor(tensor).shape;
  const Shape& of_parameter = source_->collection.tensor(*entry.tensor).shape;
  if (entry.rule.cut == Cut::kReplicated || whole != of_parameter) return whole;
  const auto sizes = whole.sizes();
  std::vector<int64_t> own(sizes.begin(), sizes.end());
  if (is_vocabulary(entry, tensor)) {
    own[0] = rows_.after / parallel_.tp;
  } else {
    own[static_cast<size_t>(entry.rule.axis)] /= parallel_.tp;
  }
  return Shape::create(own).value();
}

std::vector<AssembledPart> MegatronTarget::State::parts_of(const Entry& entry,
                                                           TensorId tensor,
                                                           int64_t rank) const {
  const Tensor& whole = source_->collection.tensor(tensor);
  std::vector<AssembledPart> parts;
  if (!is_vocabulary(entry, tensor)) {
    const bool like =
        whole.shape == source_->collection.tensor(*entry.tensor).shape;
    const Rule rule = like ? entry.rule : Rule{};
    for (const auto& part :
         megatron::local_parts(rule, whole.shape, parallel_.tp, rank)) {
      parts.push_back(part_of_box(source_, tensor, part.box));
    }
    return parts;
  }
  const int64_t own = rows_.after / parallel_.tp;
  const int64_t begin = rank * own, end = begin + own;
  const int64_t there = std::clamp(rows_.before, begin, end);
  if (there > begin) {
    parts.push_back(
        part_of_box(source_, tensor, Box::whole(whole.shape).with(0, {begin, there})));
  }
  if (there == end) return parts;
  const auto pad = pad_rows_.find(tensor);
  parts.push_back(part_of_bytes(
      pad != pad_rows_.end()
          ? pad->second
          : Bytes(static_cast<size_t>(whole.bytes() / std::max<int64_t>(whole.shape[0], 1))),
      end - there));
  return parts;
}

std::optional<TensorId> MegatronTarget::State::find_state(
    const Entry& entry, const std::string& slot) const {
  const std::string& name = source_->collection.tensor(*entry.tensor).name;
  const std::string bare = name.starts_with("model.") ? name.substr(6) : name;
  return source_->collection.find(fmt::format("optimizer.{}.{}", bare, slot));
}

// The parts of one rank while its file is put together.
struct MegatronTarget::State::RankParts {
  megatron::RankPlace place{};
  std::vector<AssembledTensor> tensors{};
  std::vector<const Entry*> parameters{};
  std::vector<LocalParameter> local{};  // the same ones
};

// Adds the rank's part of a tensor, and returns the leaf that names it.
Object MegatronTarget::State::add_part(RankParts& rank, const Entry& entry,
                                       TensorId tensor) const {
  rank.tensors.push_back({.tensor = {.name = fmt::format("part.{}", rank.tensors.size()),
                                     .dtype = source_->collection.tensor(tensor).dtype,
                                     .shape = shape_of(entry, tensor)},
                          .parts = parts_of(entry, tensor, rank.place.tensor)});
  return Object(Object::TensorName{rank.tensors.back().tensor.name});
}

Object MegatronTarget::State::model_of(RankParts& rank) const {
  Object model{Object::Dict{}};
  const int64_t of_stage = std::max<int64_t>(layers_ / parallel_.pp, 1);
  for (const Entry& entry : entries_) {
    if (entry.stage != rank.place.stage) continue;
    Leaf leaf = entry.leaf;
    if (const auto layer = megatron::layer_of(leaf.path)) {
      leaf.path = megatron::with_layer(std::move(leaf.path), *layer % of_stage);
    }
    if (entry.tensor) {
      rank.parameters.push_back(&entry);
      rank.local.push_back({.name = megatron::joined(leaf.path),
                            .dtype = source_->collection.tensor(*entry.tensor).dtype,
                            .shape = shape_of(entry, *entry.tensor),
                            .buffer = entry.rule.buffer});
      leaf.value = add_part(rank, entry, *entry.tensor);
    }
    megatron::add_leaf(model, leaf);
  }
  return model;
}

Object MegatronTarget::State::optimizer_of(RankParts& rank, const Object& common) const {
  const auto leaf_of = [&](size_t i, const std::string& slot) -> Object {
    const Entry& entry = *rank.parameters[i];
    const auto state = find_state(entry, slot);
    return state ? add_part(rank, entry, *state) : Object();
  };
  return megatron::number_state(megatron::with_tensors(common, rank.tensors), rank.local,
                                leaf_of);
}

Result<Contents> MegatronTarget::State::contents_of(int64_t file,
                                                    const OnRead& on_read) const {
  RankParts rank{.place = {file % parallel_.tp, file / parallel_.tp}};
  // The model comes first, because the optimizer is numbered by its parameters.
  const Object model = model_of(rank);
  Object objects{Object::Dict{}};
  for (const auto& [key, value] : source_->objects.as<Object::Dict>()->items) {
    const auto* name = key.as<std::string>();
    if (name == nullptr) continue;
    if (*name == "model") {
      megatron::set_key(objects, *name, model);
    } else if (*name == "args") {
      megatron::set_key(
          objects, *name,
          megatron::args_of_rank(value, parallel_, rank.place, rows_.after));
    } else if (*name == "optimizer") {
      megatron::set_key(objects, *name, optimizer_of(rank, value));
    } else if (*name != megatron::kRanksKey) {
      megatron::set_key(objects, *name, megatron::with_tensors(value, rank.tensors));
    } else if (random_.enough()) {
      const Object state = random_.state_of(rank.place);
      megatron::set_key(objects, megatron::kRandomKey,
                        megatron::with_tensors(state, rank.tensors));
    }
  }
  return assemble(file_name(file), std::move(rank.tensors), std::move(objects), on_read);
}

void MegatronTarget::State::for_each_state(
    const std::function<void(const Entry& entry, TensorId tensor)>& visit) const {
  for (const Entry& entry : entries_) {
    if (!entry.tensor) continue;
    const std::string& name = source_->collection.tensor(*entry.tensor).name;
    const std::string bare = name.starts_with("model.") ? name.substr(6) : name;
    const std::string prefix = fmt::format("optimizer.{}.", bare);
    for (TensorId t = 0; t < source_->collection.tensors().size(); ++t) {
      const Tensor& tensor = source_->collection.tensor(t);
      if (t == *entry.tensor || tensor.name.starts_with(prefix)) visit(entry, t);
    }
  }
}

int64_t MegatronTarget::State::bytes() const {
  int64_t bytes = 0;
  for_each_state([&](const Entry& entry, TensorId t) {
    bytes += shape_of(entry, t).elements() *
             bytes_of(source_->collection.tensor(t).dtype) * parallel_.tp;
  });
  return bytes;
}

MegatronTarget::Reads MegatronTarget::State::reads() const {
  Reads reads;
  std::set<TensorId> seen;
  for_each_state([&](const Entry& entry, TensorId t) {
    const Tensor& tensor = source_->collection.tensor(t);
    const bool words = is_vocabulary(entry, t);
    const int64_t kept = std::min(rows_.before, rows_.after);
    const int64_t once = words && rows_.before > 0
                             ? tensor.bytes() / rows_.before * kept
                             : tensor.bytes();
    const bool whole = shape_of(entry, t) == tensor.shape && !words;
    reads.all += whole ? once * parallel_.tp : once;
    if (seen.insert(t).second) reads.once += once;
  });
  return reads;
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
                                             const OnRead& on_read) const {
  return state_->contents_of(file, on_read);
}
int64_t MegatronTarget::bytes() const { return state_->bytes(); }
MegatronTarget::Reads MegatronTarget::reads() const { return state_->reads(); }
const std::vector<std::string>& MegatronTarget::notes() const {
  return state_->notes();
}

}  // namespace holdfast
