// Compares build_collection() with an element-wise account of the same rules. The
// account lists, for every position, the elements of each tensor in the order of its
// memory.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "holdfast/models/build.h"
#include "holdfast/models/named_model.h"
#include "holdfast/models/transformers.h"

namespace holdfast::build_property_test {
namespace {

using Index = std::vector<int64_t>;     // one number for each dimension
using Elements = std::vector<int64_t>;  // canonical flat indices, in memory order

Index index_of(const Shape& shape, int64_t flat) {
  Index index(static_cast<size_t>(shape.rank()));
  for (int k = shape.rank() - 1; k >= 0; --k) {
    index[static_cast<size_t>(k)] = flat % shape[k];
    flat /= shape[k];
  }
  return index;
}

bool owns(SplitRule rule, int64_t n, int64_t x, int64_t t, int64_t ways) {
  if (rule == SplitRule::kChunk) return x / ((n + ways - 1) / ways) == t;
  return n * t / ways <= x && x < n * (t + 1) / ways;
}

// The account of one configuration.
class Account {
 public:
  Account(const Model& model, const Parallel& parallel) : model_(model), p_(parallel) {}

  // The elements that position `rank` has of parameter i, and of its optimizer state.
  Elements parameter(size_t i, int64_t rank) const {
    return p_.zero == 3 ? sharded(i, rank) : held(i, rank);
  }
  Elements state(size_t i, int64_t rank) const {
    return p_.zero > 0 ? sharded(i, rank) : held(i, rank);
  }

 private:
  int64_t seats() const { return p_.tp * p_.dp; }

  int64_t stage_of_layer(int64_t layer) const {
    const int64_t chunks = p_.pp * p_.vpp;
    for (int64_t c = 0; c < chunks; ++c) {
      if (owns(SplitRule::kEven, model_.layers, layer, c, chunks)) return c % p_.pp;
    }
    return -1;
  }

  // The unit of ZeRO that parameter i belongs to on a stage; -2 if it is not on the
  // stage.
  int64_t unit_on(size_t i, int64_t stage) const {
    const Parameter& parameter = model_.parameters[i];
    const bool first = stage == 0, last = stage == p_.pp - 1;
    if (parameter.site == Site::kFirst && first) return -1;
    if (parameter.site == Site::kLast && last) return model_.layers;
    if (parameter.site == Site::kFirst && last && parameter.also_last) {
      return model_.layers;
    }
    if (parameter.site != Site::kLayer) return -2;
    return stage_of_layer(parameter.layer) == stage ? parameter.layer : -2;
  }

  bool query_head_owned(const Parameter& parameter, int64_t head, int64_t t) const {
    const int64_t groups = parameter.groups, m = parameter.queries;
    if (p_.tp <= groups) return owns(p_.split, groups, head / m, t, p_.tp);
    return owns(p_.split, groups * m, head, t, p_.tp);
  }

  // A rank has a KV head if it has one of the query heads that use it.
  bool key_owned(const Parameter& parameter, int64_t group, int64_t t) const {
    const int64_t m = parameter.queries;
    for (int64_t c = 0; c < m; ++c) {
      if (query_head_owned(parameter, group * m + c, t)) return true;
    }
    return false;
  }

  bool qkv_owned(const Parameter& parameter, const Index& x, int64_t t) const {
    const Shape& shape = parameter.tensor.shape;
    const int64_t m = parameter.queries;
    if (p_.qkv == QkvLayout::kInterleaved) {
      const int64_t row = (x[0] * shape[1] + x[1]) * shape[2] + x[2];
      return owns(p_.split, shape[0] * shape[1] * shape[2], row, t, p_.tp);
    }
    if (p_.qkv != QkvLayout::kBlocked) return owns(p_.split, shape[0], x[0], t, p_.tp);
    if (x[1] < m) return query_head_owned(parameter, x[0] * m + x[1], t);
    return key_owned(parameter, x[0], t);
  }

  bool vocabulary_owned(const Tensor& tensor, int64_t row, int64_t t) const {
    const int64_t multiple = std::max<int64_t>(tensor.pad_multiple, 1) * p_.tp;
    int64_t padded = tensor.shape[0];
    while (padded % multiple != 0) ++padded;
    return row / (padded / p_.tp) == t;
  }

  bool owned(const Parameter& parameter, const Index& x, int64_t seat) const {
    const Shape& shape = parameter.tensor.shape;
    int64_t t = seat % p_.tp, ways = p_.tp;
    if (parameter.expert) {
      ways = p_.expert_tp();
      t = seat % ways;
      const int64_t e = seat / ways % p_.ep;
      if (!owns(SplitRule::kEven, shape[0], x[0], e, p_.ep)) return false;
    }
    const auto k = static_cast<size_t>(parameter.axis);
    switch (parameter.cut) {
      case Cut::kReplicated: return true;
      case Cut::kAxis: return owns(p_.split, shape[parameter.axis], x[k], t, ways);
      case Cut::kVocabulary: return vocabulary_owned(parameter.tensor, x[0], t);
      case Cut::kQkv: return qkv_owned(parameter, x, t);
      case Cut::kHeads:
      case Cut::kKvHeads: break;
    }
    if (p_.qkv == QkvLayout::kInterleaved) {
      return owns(p_.split, shape[parameter.axis], x[k], t, ways);
    }
    if (parameter.cut == Cut::kKvHeads) {
      const int64_t group = x[k] / (shape[parameter.axis] / parameter.groups);
      return key_owned(parameter, group, t);
    }
    const int64_t head = shape[parameter.axis] / (parameter.groups * parameter.queries);
    return query_head_owned(parameter, x[k] / head, t);
  }

  // A key that sorts indices in the order of a rank's memory.
  Index memory_key(const Parameter& parameter, const Index& x) const {
    Index key = x;
    if (parameter.cut != Cut::kQkv) return key;
    if (p_.qkv == QkvLayout::kBlocked) {
      const int64_t block = std::max<int64_t>(x[1] - parameter.queries + 1, 0);
      key.insert(key.begin(), block);
    } else if (p_.qkv == QkvLayout::kMegatron0) {
      std::swap(key[0], key[1]);
    } else if (p_.qkv == QkvLayout::kMegatron1) {
      std::swap(key[1], key[2]);
    }
    return key;
  }

  const Elements& cut(size_t i, int64_t seat) const {
    const auto [found, fresh] = cuts_.try_emplace({i, seat});
    if (fresh) found->second = count(i, seat);
    return found->second;
  }

  Elements count(size_t i, int64_t seat) const {
    const Parameter& parameter = model_.parameters[i];
    std::vector<std::pair<Index, int64_t>> found;
    for (int64_t e = 0; e < parameter.tensor.shape.elements(); ++e) {
      const Index x = index_of(parameter.tensor.shape, e);
      if (owned(parameter, x, seat)) found.emplace_back(memory_key(parameter, x), e);
    }
    std::sort(found.begin(), found.end());
    Elements elements;
    for (const auto& [key, e] : found) elements.push_back(e);
    return elements;
  }

  Elements held(size_t i, int64_t rank) const {
    if (unit_on(i, rank / seats()) == -2) return {};
    return cut(i, rank % seats());
  }

  int64_t row_count(size_t i, const Elements& elements) const {
    std::set<Index> rows;
    for (const int64_t e : elements) {
      Index x = index_of(model_.parameters[i].tensor.shape, e);
      x.resize(static_cast<size_t>(model_.parameters[i].rows));
      rows.insert(x);
    }
    return std::ssize(rows);
  }

  Elements sharded(size_t i, int64_t rank) const {
    const int64_t stage = rank / seats(), seat = rank % seats();
    if (unit_on(i, stage) == -2) return {};
    const Parameter& parameter = model_.parameters[i];
    const int64_t group = parameter.expert ? p_.ep * p_.expert_tp() : p_.tp;
    const int64_t replicas = seats() / group, replica = seat / group;
    const Elements& mine = cut(i, seat);
    int64_t offset = 0, total = 0, grain = 1;
    for (size_t j = 0; j < model_.parameters.size(); ++j) {
      const bool same_unit =
          p_.shard == ShardUnit::kStage
              ? unit_on(j, stage) != -2
              : p_.shard == ShardUnit::kLayer && unit_on(j, stage) == unit_on(i, stage);
      if (j != i && (!same_unit || model_.parameters[j].expert != parameter.expert)) {
        continue;
      }
      if (j == i) offset = total;
      total += std::ssize(j == i ? mine : cut(j, seat));
    }
    if (p_.shard == ShardUnit::kRows && !mine.empty()) {
      const int64_t rows = row_count(i, mine);
      grain = std::ssize(mine) / rows;
      total = rows;
    }
    const int64_t chunk = (total + replicas - 1) / replicas;
    Elements result;
    for (int64_t e = 0; e < std::ssize(mine); ++e) {
      if ((offset + e) / grain / chunk == replica) {
        result.push_back(mine[static_cast<size_t>(e)]);
      }
    }
    return result;
  }

  const Model& model_;
  const Parallel& p_;
  mutable std::map<std::pair<size_t, int64_t>, Elements> cuts_;
};

// One tensor as a layout describes it: for each holder, the canonical element at each
// address.
using Memory = std::map<int64_t, int64_t>;

std::vector<Memory> memories(const Collection& collection, TensorId id) {
  std::vector<Memory> result(collection.layout().holders().size());
  const Tensor& tensor = collection.tensor(id);
  const int64_t bytes = bytes_of(tensor.dtype);
  for (const Slice& slice : collection.layout().slices(id)) {
    for (int64_t i = 0; i < slice.box.elements(); ++i) {
      const Index x = index_of(slice.box.shape(), i);
      int64_t flat = 0;
      for (int k = 0; k < slice.box.rank(); ++k) {
        flat = flat * tensor.shape[k] + slice.box[k].lo + x[static_cast<size_t>(k)];
      }
      for (PieceId piece = slice.first; piece < slice.last; ++piece) {
        const Map map = collection.layout().map(piece, bytes);
        int64_t address = map.offset;
        for (size_t k = 0; k < x.size(); ++k) address += map.strides[k] * x[k];
        const bool fresh =
            result[collection.layout().holder(piece)].emplace(address, flat).second;
        RC_ASSERT(fresh);
      }
    }
  }
  return result;
}

struct Case {
  Model model;
  Parallel parallel;
};

// A random number that is uniform from the first run on, because the ranges are small
// and each value tests another rule.
int64_t pick(int64_t least, int64_t most) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<int64_t>(least, most + 1));
}

Parallel random_parallel(bool experts) {
  Parallel p;
  p.tp = pick(1, 4);
  p.pp = pick(1, 3);
  p.dp = pick(1, 4);
  p.vpp = pick(1, 2);
  p.zero = pick(0, 3);
  p.shard = static_cast<ShardUnit>(pick(0, 3));
  p.qkv = static_cast<QkvLayout>(pick(0, 3));
  p.split = static_cast<SplitRule>(pick(0, 1));
  if (!experts) return p;
  const auto divisor = [](int64_t n) {
    int64_t d = pick(1, n);
    while (n % d != 0) --d;
    return d;
  };
  p.etp = divisor(p.tp * p.dp);
  p.ep = divisor(p.tp * p.dp / p.etp);
  return p;
}

// A model that is known by the names of its tensors, as those of transformers are.
Model random_named_model(int64_t layers, HeadCounts heads, bool experts) {
  const int64_t hidden = pick(1, 4), inner = pick(1, 5), head = pick(1, 2);
  const int64_t count = pick(1, 5);
  std::vector<NamedTensor> tensors;
  const auto add = [&](std::string name, Shape shape, bool transposed = false) {
    tensors.push_back({{.name = std::move(name), .shape = shape}, transposed});
  };
  add("model.embed_tokens.weight", {pick(1, 12), hidden});
  const bool fused = pick(0, 1) == 1, transposed = pick(0, 1) == 1;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string at = fmt::format("model.layers.{}.", layer);
    if (fused) {
      add(at + "qkv_proj.weight", {(heads.heads + 2 * heads.kv_heads) * head, hidden});
    } else {
      add(at + "q_proj.weight", {heads.heads * head, hidden});
      add(at + "k_proj.weight", {heads.kv_heads * head, hidden});
      add(at + "v_proj.bias", {heads.kv_heads * head});
    }
    add(at + "o_proj.weight", {hidden, heads.heads * head});
    if (experts) {
      add(at + "mlp.experts.gate_up_proj", {count, 2 * inner, hidden});
      add(at + "mlp.experts.down_proj", {count, hidden, inner});
    } else if (transposed) {
      add(at + "mlp.c_fc.weight", {hidden, inner}, true);
      add(at + "mlp.c_proj.weight", {inner, hidden}, true);
    } else {
      add(at + "mlp.gate_up_proj.weight", {2 * inner, hidden});
      add(at + "mlp.down_proj.weight", {hidden, inner});
    }
  }
  add("model.norm.weight", {hidden});
  return model_of_tensors("named", std::move(tensors), heads).value();
}

Model random_model(const Parallel& p, bool experts) {
  const int64_t layers = p.pp * p.vpp + pick(0, 2);
  const int64_t groups = pick(1, 6);
  const bool multi_head =
      p.qkv == QkvLayout::kMegatron0 || p.qkv == QkvLayout::kMegatron1;
  if (!experts && pick(0, 1) == 0) {
    return make_gpt({.layers = layers,
                     .hidden = groups * pick(1, 2),
                     .heads = groups,
                     .vocabulary = pick(1, 12),
                     .positions = pick(1, 3),
                     .inner = pick(1, 6),
                     .tied = pick(0, 1) == 1});
  }
  if (pick(0, 1) == 0) {
    const int64_t queries = multi_head ? 1 : pick(1, 3);
    return random_named_model(layers, {groups * queries, groups}, experts);
  }
  return make_llama({.layers = layers,
                     .hidden = pick(1, 4),
                     .heads = groups * (multi_head ? 1 : pick(1, 3)),
                     .kv_heads = groups,
                     .head = pick(1, 2),
                     .inner = pick(1, 5),
                     .vocabulary = pick(1, 12),
                     .experts = experts ? pick(1, 5) : 0,
                     .tied = pick(0, 1) == 1,
                     .attention_bias = pick(0, 1) == 1,
                     .mlp_bias = pick(0, 1) == 1});
}

Case random_case() {
  const bool experts = pick(0, 2) == 0;
  Parallel parallel = random_parallel(experts);
  Model model = random_model(parallel, experts);
  for (Parameter& parameter : model.parameters) {
    if (parameter.cut == Cut::kVocabulary) parameter.tensor.pad_multiple = pick(0, 3);
  }
  return {std::move(model), std::move(parallel)};
}

std::vector<uint32_t> random_placement(int64_t positions, uint32_t devices) {
  std::vector<uint32_t> order(devices);
  std::iota(order.begin(), order.end(), 0);
  for (uint32_t i = devices; i > 1; --i) {
    std::swap(order[i - 1], order[static_cast<size_t>(pick(0, i - 1))]);
  }
  order.resize(static_cast<size_t>(positions));
  return order;
}

RC_GTEST_PROP(BuildPropertyTest, EveryRankHoldsWhatTheElementWiseAccountSays, ()) {
  const Case c = random_case();
  RC_LOG() << to_string(c.parallel) << "\n";
  const int64_t positions = c.parallel.positions();
  const uint32_t count = static_cast<uint32_t>(positions + pick(0, 2));
  const auto placement = random_placement(positions, count);
  const auto built =
      build_collection(c.model, c.parallel, {}, make_devices(1, count), placement);
  RC_ASSERT(built.ok());
  RC_ASSERT(built->check_covered().ok());

  const Account account(c.model, c.parallel);
  int64_t base = 0;
  TensorId id = 0;
  for (size_t i = 0; i < c.model.parameters.size(); ++i) {
    for (const char* suffix : {"", ".master", ".exp_avg", ".exp_avg_sq"}) {
      const Tensor& tensor = built->tensor(id);
      RC_ASSERT(tensor.name == c.model.parameters[i].tensor.name + suffix);
      const std::vector<Memory> seen = memories(*built, id++);
      std::vector<Memory> want(count);
      for (int64_t rank = 0; rank < positions; ++rank) {
        Memory& memory = want[placement[static_cast<size_t>(rank)]];
        int64_t address = base;
        for (const int64_t e :
             *suffix ? account.state(i, rank) : account.parameter(i, rank)) {
          memory[address] = e;
          address += bytes_of(tensor.dtype);
        }
      }
      RC_ASSERT(seen == want);
      base = (base + tensor.bytes() + 63) / 64 * 64;
    }
  }
  RC_ASSERT(id == built->tensors().size());
}

}  // namespace
}  // namespace holdfast::build_property_test
