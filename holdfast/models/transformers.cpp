#include "holdfast/models/transformers.h"

namespace holdfast {
namespace {

struct Attention {
  int64_t hidden, groups, queries, head;
  bool bias;  // the QKV projection has a bias
  bool output_bias;
};

// Collects the parameters of a model. Each is added at the current site, with the
// current prefix of names.
class Assembler {
 public:
  explicit Assembler(std::string name, int64_t layers) {
    model_.name = std::move(name);
    model_.layers = layers;
  }

  void enter(Site site, int64_t layer = 0) {
    site_ = site;
    layer_ = layer;
    prefix_ = site == Site::kLayer ? fmt::format("layers.{}.", layer) : "";
  }

  // Adds a parameter that is not cut. The caller may then set how it is cut.
  Parameter& add(std::string_view name, Shape shape) {
    Parameter parameter;
    parameter.tensor.name = fmt::format("{}{}", prefix_, name);
    parameter.tensor.shape = shape;
    parameter.site = site_;
    parameter.layer = layer_;
    model_.parameters.push_back(std::move(parameter));
    return model_.parameters.back();
  }

  Parameter& add_cut(std::string_view name, Shape shape, int axis) {
    Parameter& parameter = add(name, shape);
    parameter.cut = Cut::kAxis;
    parameter.axis = axis;
    return parameter;
  }

  Parameter& add_vocabulary(std::string_view name, int64_t rows, int64_t hidden) {
    Parameter& parameter = add(name, {rows, hidden});
    parameter.cut = Cut::kVocabulary;
    parameter.tensor.pad_multiple = kVocabularyPad;
    return parameter;
  }

  void add_embedding(int64_t vocabulary, int64_t hidden, bool tied) {
    Parameter& words = add_vocabulary("embedding.word.weight", vocabulary, hidden);
    words.also_last = tied;
    if (tied) words.tensor.aliases = {"head.weight"};
  }

  void add_norm(std::string_view name, int64_t hidden, bool bias) {
    add(fmt::format("{}.weight", name), {hidden});
    if (bias) add(fmt::format("{}.bias", name), {hidden});
  }

  void add_attention(const Attention& a) {
    const auto heads = [&](Parameter& parameter, Cut cut, int rows) {
      parameter.cut = cut;
      parameter.axis = 1;
      parameter.groups = a.groups;
      parameter.queries = a.queries;
      parameter.rows = rows;
    };
    const int64_t parts = a.queries + 2;
    heads(add("attention.qkv.weight", {a.groups, parts, a.head, a.hidden}), Cut::kQkv,
          3);
    if (a.bias)
      heads(add("attention.qkv.bias", {a.groups, parts, a.head}), Cut::kQkv, 3);
    heads(add("attention.output.weight", {a.hidden, a.groups * a.queries * a.head}),
          Cut::kHeads, 1);
    if (a.output_bias) add("attention.output.bias", {a.hidden});
  }

  void add_gpt_mlp(int64_t hidden, int64_t inner) {
    add_cut("mlp.up.weight", {inner, hidden}, 0);
    add_cut("mlp.up.bias", {inner}, 0);
    add_cut("mlp.down.weight", {hidden, inner}, 1);
    add("mlp.down.bias", {hidden});
  }

  void add_glu_mlp(int64_t hidden, int64_t inner, bool bias) {
    add_cut("mlp.gate_up.weight", {2, inner, hidden}, 1).rows = 2;
    if (bias) add_cut("mlp.gate_up.bias", {2, inner}, 1).rows = 2;
    add_cut("mlp.down.weight", {hidden, inner}, 1);
    if (bias) add("mlp.down.bias", {hidden});
  }

  void add_experts(int64_t experts, int64_t hidden, int64_t inner) {
    model_.experts = experts;
    add("router.weight", {experts, hidden});
    add_cut("experts.gate_up.weight", {experts, 2, inner, hidden}, 2).expert = true;
    add_cut("experts.down.weight", {experts, hidden, inner}, 2).expert = true;
  }

  Model finish() && { return std::move(model_); }

 private:
  Model model_;
  Site site_ = Site::kFirst;
  int64_t layer_ = 0;
  std::string prefix_;
};

}  // namespace

Model make_gpt(const GptDims& dims) {
  HOLDFAST_CHECK(dims.layers > 0 && dims.heads > 0 && dims.hidden > 0 &&
                     dims.vocabulary > 0 && dims.positions > 0 && dims.inner >= 0 &&
                     dims.hidden % dims.heads == 0,
                 "{}: bad dimensions", dims.name);
  const int64_t h = dims.hidden;
  const int64_t inner = dims.inner > 0 ? dims.inner : 4 * h;
  const Attention attention{h, dims.heads, 1, h / dims.heads, true, true};
  Assembler model(dims.name, dims.layers);
  model.enter(Site::kFirst);
  model.add_embedding(dims.vocabulary, h, dims.tied);
  model.add("embedding.position.weight", {dims.positions, h});
  for (int64_t layer = 0; layer < dims.layers; ++layer) {
    model.enter(Site::kLayer, layer);
    model.add_norm("attention_norm", h, true);
    model.add_attention(attention);
    model.add_norm("mlp_norm", h, true);
    model.add_gpt_mlp(h, inner);
  }
  model.enter(Site::kLast);
  model.add_norm("norm", h, true);
  if (!dims.tied) model.add_vocabulary("head.weight", dims.vocabulary, h);
  return std::move(model).finish();
}

Model make_llama(const LlamaDims& dims) {
  HOLDFAST_CHECK(dims.layers > 0 && dims.heads > 0 && dims.kv_heads > 0 &&
                     dims.hidden > 0 && dims.inner > 0 && dims.vocabulary > 0 &&
                     dims.head >= 0 && dims.experts >= 0 &&
                     dims.heads % dims.kv_heads == 0 &&
                     (dims.head > 0 || dims.hidden % dims.heads == 0),
                 "{}: bad dimensions", dims.name);
  const int64_t h = dims.hidden;
  const int64_t head = dims.head > 0 ? dims.head : h / dims.heads;
  const Attention attention{h,    dims.kv_heads,       dims.heads / dims.kv_heads,
                            head, dims.attention_bias, dims.attention_bias};
  Assembler model(dims.name, dims.layers);
  model.enter(Site::kFirst);
  model.add_embedding(dims.vocabulary, h, dims.tied);
  for (int64_t layer = 0; layer < dims.layers; ++layer) {
    model.enter(Site::kLayer, layer);
    model.add_norm("attention_norm", h, false);
    model.add_attention(attention);
    model.add_norm("mlp_norm", h, false);
    if (dims.experts > 0) {
      model.add_experts(dims.experts, h, dims.inner);
    } else {
      model.add_glu_mlp(h, dims.inner, dims.mlp_bias);
    }
  }
  model.enter(Site::kLast);
  model.add_norm("norm", h, false);
  if (!dims.tied) model.add_vocabulary("head.weight", dims.vocabulary, h);
  return std::move(model).finish();
}

}  // namespace holdfast
