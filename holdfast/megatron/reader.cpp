// Merges the files of all ranks of Megatron into one state.
#include <algorithm>
#include <map>

#include "holdfast/base/json_text.h"
#include "holdfast/megatron/cut.h"
#include "holdfast/megatron/megatron.h"
#include "holdfast/megatron/rank_file.h"

namespace holdfast {
namespace megatron {
namespace {

constexpr double kNewestVersion = 3;  // of checkpoints

// Asks the file of a holder to check its digests.
class ChecksOfFiles : public DigestCheck {
 public:
  void add(const Contents& contents) {
    for (HolderId h = 0; h < contents.sources.size(); ++h) {
      checks_.emplace_back(contents.digests, h);
    }
  }
  Result<void> check_record(HolderId holder, int64_t offset,
                            bool whole) const override {
    const auto& [check, own] = checks_[holder];
    return check == nullptr ? Result<void>() : check->check_record(own, offset, whole);
  }

 private:
  std::vector<std::pair<std::shared_ptr<const DigestCheck>, HolderId>> checks_;
};

// Where a file's tensor lies.
Map map_in_file(const Contents& file, TensorId id) {
  const Layout& layout = file.collection.layout();
  const PieceId piece = layout.slices(id).front().first;
  return layout.map(piece, bytes_of(file.collection.tensor(id).dtype));
}

// Carries out one call of open_megatron().
class Reader {
 public:
  Reader(Env& env, const MegatronFolder& folder, const RuleSet& rules)
      : env_(env), folder_(folder), rules_(rules) {}

  Result<OpenedMegatron> run() {
    HOLDFAST_TRY(open_files());
    HOLDFAST_TRY(read_args());
    HOLDFAST_TRY(number_layers());
    for (int64_t stage = 0; stage < folder_.pp; ++stage) {
      HOLDFAST_TRY(add_stage(stage));
    }
    HOLDFAST_TRY(merge_objects());
    return finish();
  }

 private:
  // A tensor of the whole state while its pieces are collected.
  struct Whole {
    Tensor tensor;
    Rule rule;
    std::string from;  // the file it was first seen in
  };
  struct Piece {
    size_t tensor;
    Box box;
    HolderId holder;
    Map map;
  };

  RankFile& file(int64_t tensor, int64_t stage) {
    return files_[static_cast<size_t>(stage * folder_.tp + tensor)];
  }

  Result<void> open_files() {
    HolderId next = 0;
    for (int64_t stage = 0; stage < folder_.pp; ++stage) {
      for (int64_t tensor = 0; tensor < folder_.tp; ++tensor) {
        files_.push_back(HOLDFAST_TRY(open_rank_file(
            env_, folder_.path / folder_.rank_name(tensor, stage) / kMegatronFile,
            rules_)));
        HOLDFAST_TRY(check_masters(files_.back()));
        first_holder_.push_back(next);
        next += static_cast<HolderId>(files_.back().contents.sources.size());
      }
    }
    return {};
  }

  Result<void> read_args() {
    const Object& objects = files_.front().contents.objects;
    const Object* args = find_key(objects, "args");
    if (args != nullptr) args_ = *args;
    HOLDFAST_TRY(check_no_experts());
    HOLDFAST_TRY(check_degree("tensor_model_parallel_size", folder_.tp));
    HOLDFAST_TRY(check_degree("pipeline_model_parallel_size", folder_.pp));
    rules_ = with_gates(std::move(rules_), objects);
    const bool told = find_key(objects, "checkpoint_version") != nullptr;
    const double version = megatron_version(objects).value_or(0.0);
    const bool known = version >= 0 && version <= kNewestVersion;
    if (!known || (told && !megatron_version(objects))) {
      return unsupported("{}: checkpoint_version is not known; expected 0 to {}",
                         files_.front().name, kNewestVersion);
    }
    qkv_.version = version < 1.0 ? 0 : version < 2.0 ? 1 : 2;
    qkv_.heads = integer_at(args_, "num_attention_heads").value_or(0);
    return {};
  }

  // Without stages, the names of ranks of experts look like those of stages.
  Result<void> check_no_experts() const {
    const auto degree = integer_at(args_, "expert_model_parallel_size");
    if (!degree || *degree <= 1) return {};
    return unsupported(
        "{}: args.expert_model_parallel_size is {}, so ranks have experts of their own; "
        "expected files saved without expert parallelism",
        folder_.path.native(), *degree);
  }

  Result<void> check_degree(std::string_view key, int64_t there) const {
    const auto degree = integer_at(args_, key);
    if (!degree || *degree == there) return {};
    return invalid("{}: has the files of {} ranks, but args.{} is {}; expected all files",
                   folder_.path.native(), there, key, *degree);
  }

  Result<void> number_layers() {
    int64_t next = 0;
    for (int64_t stage = 0; stage < folder_.pp; ++stage) {
      first_layer_.push_back(next);
      next += file(0, stage).layers;
    }
    const auto layers = integer_at(args_, "num_layers");
    if (!layers || *layers == next) return {};
    return invalid("{}: has {} layers, but args.num_layers is {}; expected all of them",
                   folder_.path.native(), next, *layers);
  }

  Result<void> add_stage(int64_t stage) {
    const RankFile& first = file(0, stage);
    std::vector<Leaf> leaves;
    for (const ModelLeaf& leaf : first.model) {
      Leaf whole = leaf.leaf;
      if (const auto layer = layer_of(whole.path)) {
        whole.path = with_layer(std::move(whole.path),
                                *layer + first_layer_[static_cast<size_t>(stage)]);
      }
      leaves.push_back(std::move(whole));
    }
    for (int64_t tensor = 0; tensor < folder_.tp; ++tensor) {
      HOLDFAST_TRY(check_alike(first, file(tensor, stage)));
      HOLDFAST_TRY(add_rank(leaves, tensor, stage));
    }
    for (size_t i = 0; i < leaves.size(); ++i) {
      const std::string name = joined(leaves[i].path);
      if (is_tied(name, stage)) continue;
      if (first.model[i].tensor) {
        leaves[i].value = Object(Object::TensorName{"model." + name});
      }
      add_leaf(tree_, leaves[i]);
    }
    return {};
  }

  // Tensor ranks of a stage have the same names, shapes, dtypes and objects.
  static Result<void> check_alike(const RankFile& a, const RankFile& b) {
    const auto differ = [&](const std::string& name, std::string_view what) {
      return invalid("{}: {} has {} than in {}; expected the same on all tensor ranks",
                     b.name, shown(name), what, a.name);
    };
    for (size_t i = 0; i < std::max(a.model.size(), b.model.size()); ++i) {
      if (i >= a.model.size() || i >= b.model.size() ||
          a.model[i].leaf.path != b.model[i].leaf.path ||
          a.model[i].tensor.has_value() != b.model[i].tensor.has_value()) {
        const auto& longer = i < a.model.size() ? a.model : b.model;
        return differ(joined(longer[i].leaf.path), "another place");
      }
      if (!a.model[i].tensor && a.model[i].leaf.value != b.model[i].leaf.value) {
        return differ(joined(a.model[i].leaf.path), "another value");
      }
    }
    for (size_t i = 0; i < a.local.size(); ++i) {
      if (a.local[i].shape != b.local[i].shape) {
        return differ(a.local[i].name, "another shape");
      }
      if (a.local[i].dtype != b.local[i].dtype) {
        return differ(a.local[i].name, "another dtype");
      }
    }
    if (a.optimizer.tensors.size() == b.optimizer.tensors.size()) return {};
    return invalid("{}: has {} tensors of optimizer state; expected {} as {} has",
                   b.name, b.optimizer.tensors.size(), a.optimizer.tensors.size(),
                   a.name);
  }

  // Whether a leaf of the last stage is a copy of the embedding.
  bool is_tied(const std::string& name, int64_t stage) const {
    if (stage == 0 || stage != folder_.pp - 1) return false;
    if (name == "word_embeddings_for_head.weight") return true;
    const Object* untied = find_key(args_, "untie_embeddings_and_output_weights");
    const auto* truth = untied == nullptr ? nullptr : untied->as<bool>();
    return name == "output_layer.weight" && truth != nullptr && !*truth;
  }

  Result<std::string> whole_name(const std::string& name, int64_t stage) const {
    if (!is_tied(name, stage)) return name;
    if (!embedding_.empty()) return embedding_;
    return invalid("{}: is tied to the embedding, but the first stage has none",
                   shown(name));
  }

  Result<void> add_rank(const std::vector<Leaf>& leaves, int64_t tensor,
                        int64_t stage) {
    const RankFile& from = file(tensor, stage);
    std::vector<std::string> names;
    std::vector<Rule> of_names;
    for (const size_t leaf : from.parameters) {
      const std::string own = joined(leaves[leaf].path);
      names.push_back(HOLDFAST_TRY(whole_name(own, stage).within(from.name)));
      const Rule* rule = rule_of_name(rules_, names.back());
      if (rule == nullptr) {
        return invalid("{}: has no rule in {}; expected rules for every tensor",
                       shown("model." + own), rules_.name);
      }
      if (stage == 0 && rule->tied && rule->cut == Cut::kVocabulary) {
        embedding_ = names.back();
      }
      of_names.push_back(*rule);
      HOLDFAST_TRY(add_tensor(from, *from.model[leaf].tensor, "model." + names.back(),
                              *rule, tensor, stage));
    }
    for (const StateTensor& state : from.optimizer.tensors) {
      const TensorId id = from.contents.collection.find(state.stored).value();
      Rule rule = of_names[state.parameter];
      const bool like = from.contents.collection.tensor(id).shape ==
                        from.local[state.parameter].shape;
      if (!like) rule.cut = Cut::kReplicated;
      HOLDFAST_TRY(add_tensor(
          from, id,
          fmt::format("optimizer.{}.{}", names[state.parameter], state.slot), rule,
          tensor, stage));
    }
    return {};
  }

  Result<void> add_tensor(const RankFile& from, TensorId id, const std::string& name,
                          const Rule& rule, int64_t rank, int64_t stage) {
    const Tensor& local = from.contents.collection.tensor(id);
    const Shape shape = HOLDFAST_TRY(
        whole_shape(rule, local.shape, folder_.tp).within(shown(name)));
    const auto [known, is_new] = by_name_.emplace(name, wholes_.size());
    if (is_new) {
      wholes_.push_back({.tensor = {.name = name, .dtype = local.dtype, .shape = shape},
                         .rule = rule,
                         .from = from.name});
    }
    const Whole& whole = wholes_[known->second];
    if (whole.tensor.shape != shape || whole.tensor.dtype != local.dtype) {
      return invalid("{}: {} is {} {}; expected {} {} as in {}", from.name, shown(name),
                     name_of(local.dtype), to_string(shape),
                     name_of(whole.tensor.dtype), to_string(whole.tensor.shape),
                     whole.from);
    }
    const bool old =
        qkv_.version < 2 && rule.cut == Cut::kAxis && is_old_qkv(name);
    const auto parts =
        old ? HOLDFAST_TRY(
                  old_qkv_parts(shape, folder_.tp, rank, qkv_).within(shown(name)))
            : local_parts(rule, shape, folder_.tp, rank);
    old_rows_ += old ? 1 : 0;
    add_pieces(from, id, known->second, parts, holder_of(from, id, rank, stage));
    return {};
  }

  HolderId holder_of(const RankFile& from, TensorId id, int64_t rank, int64_t stage) {
    const Layout& layout = from.contents.collection.layout();
    return first_holder_[static_cast<size_t>(stage * folder_.tp + rank)] +
           layout.holder(layout.slices(id).front().first);
  }

  void add_pieces(const RankFile& from, TensorId id, size_t whole,
                  const std::vector<LocalPart>& parts, HolderId holder) {
    if (from.contents.collection.tensor(id).shape.elements() == 0) return;
    const Map map = map_in_file(from.contents, id);
    const Rule& rule = wholes_[whole].rule;
    const auto axis =
        static_cast<size_t>(rule.cut == Cut::kVocabulary ? 0 : rule.axis);
    for (const LocalPart& part : parts) {
      Map own = map;
      if (rule.cut != Cut::kReplicated) {
        own.offset += part.first * map.strides[axis];
        own.strides[axis] *= part.step;
      }
      pieces_.push_back({whole, part.box, holder, own});
    }
  }

  // What all ranks have saved, apart from tensors.
  Result<void> merge_objects() {
    objects_ = Object(Object::Dict{});
    const RankFile& first = files_.front();
    for (const auto& [key, value] : first.contents.objects.as<Object::Dict>()->items) {
      const auto* name = key.as<std::string>();
      if (name == nullptr) return unsupported("{}: has a key that is no text", first.name);
      if (*name == kRanksKey) {
        return unsupported("{}: has the key {}; expected what Megatron saves",
                           first.name, kRanksKey);
      }
      HOLDFAST_TRY(merge_key(*name, value));
    }
    if (qkv_.version < 2) set_key(objects_, "checkpoint_version", Object(2.0));
    return {};
  }

  Result<void> merge_key(const std::string& key, const Object& value) {
    if (key == "model") {
      set_key(objects_, key, tree_);
      return {};
    }
    if (key == kRandomKey) return merge_random();
    const RankFile& first = files_.front();
    const bool optimizer = key == "optimizer" && first.has_optimizer;
    const Object own = HOLDFAST_TRY(with_bytes_of_tensors(
        first.contents, optimizer ? first.optimizer.common : value));
    for (const RankFile& other : files_) {
      const Object* found = optimizer ? &other.optimizer.common
                                      : find_key(other.contents.objects, key);
      if (key == "args") break;  // they tell the number of the rank
      if (found != nullptr &&
          HOLDFAST_TRY(with_bytes_of_tensors(other.contents, *found)) == own) {
        continue;
      }
      return invalid("{}: {} is another than in {}; expected the same on all ranks",
                     other.name, shown(key), first.name);
    }
    set_key(objects_, key, own);
    return {};
  }

  Result<void> merge_random() {
    Object ranks{Object::Dict{}};
    for (int64_t stage = 0; stage < folder_.pp; ++stage) {
      for (int64_t tensor = 0; tensor < folder_.tp; ++tensor) {
        const RankFile& from = file(tensor, stage);
        const Object* state = find_key(from.contents.objects, kRandomKey);
        if (state == nullptr) continue;
        set_key(ranks, fmt::format("{:02}_{:03}", tensor, stage),
                HOLDFAST_TRY(with_bytes_of_tensors(from.contents, *state)));
      }
    }
    set_key(objects_, kRanksKey, std::move(ranks));
    return {};
  }

  Result<OpenedMegatron> finish() {
    std::vector<Tensor> tensors;
    for (Whole& whole : wholes_) tensors.push_back(std::move(whole.tensor));
    std::vector<Holder> holders;
    std::vector<std::shared_ptr<const Source>> sources;
    auto checks = std::make_shared<ChecksOfFiles>();
    for (const RankFile& from : files_) {
      checks->add(from.contents);
      for (const Holder& holder : from.contents.collection.layout().holders()) {
        holders.push_back(holder);
      }
      sources.insert(sources.end(), from.contents.sources.begin(),
                     from.contents.sources.end());
    }
    LayoutBuilder builder(tensors, std::move(holders));
    for (const Piece& piece : pieces_) {
      builder.add(static_cast<TensorId>(piece.tensor), piece.box, piece.holder,
                  piece.map);
    }
    Layout layout = HOLDFAST_TRY(std::move(builder).build());
    Collection collection =
        HOLDFAST_TRY(Collection::create(std::move(tensors), std::move(layout)));
    OpenedMegatron opened{
        .folder = folder_,
        .contents = {.collection = std::move(collection),
                     .sources = std::move(sources),
                     .objects = std::move(objects_),
                     .metadata = {},
                     .digests = std::move(checks),
                     .simplified = files_.front().contents.simplified},
        .rules = std::move(rules_)};
    if (old_rows_ > 0) {
      opened.notes.push_back(fmt::format(
          "rows of query_key_value: were ordered as in checkpoint_version {}, and are "
          "ordered by head now, as in version 2",
          qkv_.version));
    }
    return opened;
  }

  Env& env_;
  const MegatronFolder& folder_;
  RuleSet rules_;
  Object args_;
  QkvRows qkv_;
  std::vector<RankFile> files_;  // stage by stage
  std::vector<HolderId> first_holder_;
  std::vector<int64_t> first_layer_;  // by stage
  std::string embedding_;             // the name of what an output layer is tied to
  std::vector<Whole> wholes_;
  std::map<std::string, size_t> by_name_;
  std::vector<Piece> pieces_;
  Object tree_{Object::Dict{}};
  Object objects_;
  int64_t old_rows_ = 0;
};

}  // namespace
}  // namespace megatron

Result<OpenedMegatron> open_megatron(Env& env, const MegatronFolder& folder,
                                     const RuleSet& rules) {
  return megatron::Reader(env, folder, rules).run();
}

}  // namespace holdfast
