// Rule sets: how the tensors of a checkpoint are cut, by their names. A rule set reads the
// names and shapes of a checkpoint as a Model, so that a parallel configuration such as
// tp=2,pp=4 means something for files that other programs have written.
//
// A rule is a pattern of names and words that say what tensors of such a name are:
//
//   layers.#.self_attn.q_proj.weight     rows
//   layers.#.experts.%.w2.weight         columns
//   embed_tokens.weight                  first vocabulary tied
//
// In a pattern, '#' is the number of the layer and '%' that of an expert. Modules around
// the model may stand before the pattern, such as "model." or "module.". The words:
//
//   first, last      the stage of a tensor outside the layers
//   whole            not cut: every tensor-parallel rank has all of it
//   rows, columns    cut along the first or the second dimension
//   rows/3           that dimension has 3 components one after the other, each of which is
//                    cut: queries, keys and values, or gate and up ("columns/3", too)
//   vocabulary       cut by rows, which are words, as Megatron pads them
//   stacked          one dimension for the experts stands before all others
//   tied             the last stage needs it too, if the checkpoint has no head
//   tied=NAME        the same, if the checkpoint has a tensor of that name, too
//   buffer           it has no optimizer state
//   optional         either all layers have it, or none
//   some             any layers may have it
//   unit=64          cut only between multiples of 64, such as the size of a head
//   heads            cut only between heads, if their size is known
//   kv_heads         the same for the heads of keys and values, which may be fewer
//   heads*3          each head has 3 components one after the other
//   groups           heads of queries, a key and a value for each group, group by group
//   by_head          its heads have another size than others
//   transposed       the tensor is [inputs, outputs], so that its rows are columns here
//   with=NAME        the module beside it whose columns tell what the rows are: with rows/3
//                    they are the queries, and with rows they tell whether there is a gate
//
// Optimizer state follows its parameter. Its name is that of the parameter with another
// module before it and with the name of the slot behind it, as in
// "optimizer.layers.0.mlp.up.weight.exp_avg".
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/models/build.h"
#include "holdfast/models/model.h"
#include "holdfast/models/parallel.h"
#include "holdfast/state/collection.h"

namespace holdfast {

// What the dimension that is cut consists of.
enum class HeadKind : uint8_t { kNone, kQueries, kKeyValues, kGroups, kOtherSize };

struct Rule {
  std::string pattern{};
  Site site = Site::kLayer;  // kLayer for patterns with '#'
  Cut cut = Cut::kReplicated;
  int axis = 0;  // for kAxis, of the stored tensor
  bool transposed = false;
  int64_t parts = 1;  // how many components lie along the axis
  int64_t unit = 1;
  HeadKind heads = HeadKind::kNone;
  int64_t in_head = 1;  // components of each head
  bool stacked = false;
  bool tied = false;
  std::string tied_with{};  // the other name of "tied=NAME"; "" for "tied"
  bool buffer = false;
  bool required = true;  // every layer has it
  bool some = false;     // not required, and some layers may have it without the others
  std::string with{};    // the module beside it that "with=NAME" names
  std::string in_files{};  // patterns of TensorRow::in_files, for built-in rules

  // True if queries, keys and values lie along the axis.
  bool is_fused_qkv() const {
    const bool three = heads == HeadKind::kQueries && parts * in_head == 3;
    return three || heads == HeadKind::kGroups;
  }
};

struct RuleSet {
  std::string name{};
  std::vector<Rule> rules{};
};

// A rule from its pattern and words. Fails with kInvalid, naming the pattern, also on words
// that contradict each other.
Result<Rule> parse_rule(std::string_view pattern, std::string_view words);

// The words alone, as a rule without a pattern.
Result<Rule> parse_words(std::string_view words);

// hf-gpt2, hf-llama, ..., megatron-gpt: those of tensor_tables.cpp.
std::vector<std::string> rule_set_names();
// Fails with kNotFound, listing the names, if there is no built-in set of that name.
Result<RuleSet> find_rule_set(std::string_view name);

// Reads {"holdfast": "rules", "version": 1, "name": ..., "rules": {PATTERN: WORDS}}.
Result<RuleSet> parse_rule_set(std::string_view json, std::string_view where);

// Where a tensor of the checkpoint is in the model, whose shape has an axis of its own
// for the components: the dimension `axis` of the stored tensor is the dimensions
// `axis` and `axis + 1` of the model's, [parts, size / parts]. With `queries`, the rows are
// all queries, then all keys, then all values, and the model has them as Cut::kQkv says.
struct StoredTensor {
  TensorId tensor = 0;  // in the checkpoint
  int axis = 0;
  int64_t parts = 1;
  int64_t queries = 0;  // query heads for each KV head
};

// A checkpoint as a model.
struct RuledModel {
  Model model{};
  std::string rules{};  // the name of the rule set
  // For each parameter of the model, its own tensor and then its optimizer state.
  std::vector<std::vector<StoredTensor>> states{};
  // For each parameter: cuts lie between multiples of this number along its axis.
  std::vector<int64_t> units{};
};

// The rule for tensors of this name; null if the set has none.
const Rule* rule_of_name(const RuleSet& rules, std::string_view name);
// How many of the tensors have a rule of the set.
int64_t count_ruled(const RuleSet& rules, std::span<const Tensor> tensors);

// A tensor as save_pretrained() of transformers stores it: a box of the model's tensor. If
// that has all experts, the file has one for each of them.
struct FileTensor {
  std::string name{};
  Box box{};
  Shape shape{};  // of the box, without the dimension of the experts
};
// What becomes of a tensor of the model in such files; empty if it stays as it is.
std::vector<FileTensor> file_tensors(const RuleSet& rules, std::string_view name,
                                     const Shape& shape);

// Fails with kInvalid, naming the tensor: if it has no rule, if its shape does not fit the
// rule or its bias, and if a tensor that the rules require is missing.
// `head` is the size of a head; 0 if it is not known.
Result<RuledModel> apply_rules(const RuleSet& rules, std::span<const Tensor> tensors,
                               int64_t head = 0);

// The same without rules: each tensor is cut along the axis along which the checkpoint
// cuts it, and stages divide the numbered layers of the names. Fails with kInvalid, naming
// the tensor, if its boxes are not cut along one axis.
Result<RuledModel> rules_of_cut(const Collection& collection);

// The rules for a checkpoint: the set with that name, rules_of_cut() if the name is
// "as-cut", and otherwise the first built-in set that fits. If none fits, they are
// rules_of_cut(), too, if no set has a rule for any tensor, or if the configuration has no
// tensor parallelism and no experts to divide. Fails like apply_rules() with the set that
// has rules for most tensors: cut as its files are, a model that has one tensor more than
// the set knows would not be cut as its ranks need it.
Result<RuledModel> choose_rules(std::string_view name, const Collection& collection,
                                const Parallel& parallel, int64_t head = 0);

// Fails with kInvalid, naming a tensor, unless the configuration cuts all tensors into
// equal parts. A vocabulary may have short parts. Also fails if rules_of_cut() shall cut
// for tensor parallelism and the source cuts no tensor.
Result<void> check_degrees(const RuledModel& ruled, const Parallel& parallel);

// The tensors of the checkpoint, cut by the configuration. Holder p is position p, a file.
// The tensors keep their names and shapes, and are in the order of the model. Fails like
// check_degrees() and build_collection(), and with kInvalid if `parallel` orders the rows
// of a fused QKV anew, because rules leave them as they are stored.
Result<Collection> cut_by_rules(const RuledModel& ruled,
                                std::span<const Tensor> tensors,
                                const Parallel& parallel,
                                const CutProgress& progress = {});

}  // namespace holdfast
