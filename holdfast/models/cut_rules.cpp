// Cuts a checkpoint by rules, and finds the rules of a checkpoint without names that are
// known.
#include <algorithm>
#include <map>
#include <optional>

#include "holdfast/base/checked.h"
#include "holdfast/models/build.h"
#include "holdfast/models/named_model.h"
#include "holdfast/models/parameter_split.h"
#include "holdfast/models/rules.h"

namespace holdfast {
namespace {

// The axis along which the boxes cut the tensor; -1 if they are not cut. Returns nullopt if
// there is no such axis.
std::optional<int> axis_of_boxes(const Shape& shape, std::span<const Slice> slices) {
  int axis = -1;
  for (const Slice& slice : slices) {
    for (int k = 0; k < shape.rank(); ++k) {
      if (slice.box.size(k) == shape[k]) continue;
      if (axis >= 0 && axis != k) return std::nullopt;
      axis = k;
    }
  }
  return axis;
}

// The name after its first module: "0.weight" of "model.0.weight".
std::string_view behind_first(std::string_view name) {
  const size_t dot = name.find('.');
  return dot == name.npos ? name : name.substr(dot + 1);
}

std::string_view without_last(std::string_view name) {
  return name.substr(0, name.rfind('.'));
}

// The boxes of a stored [queries; keys; values] that a box of Cut::kQkv is.
std::vector<Box> stored_qkv_boxes(const Box& box, const Shape& model) {
  const int64_t queries = model[1] - 2, size = model[2];
  std::vector<Extent> rows;  // of each component of each group
  for (int64_t group = box[0].lo; group < box[0].hi; ++group) {
    for (int64_t c = box[1].lo; c < box[1].hi; ++c) {
      const int64_t head = c < queries ? group * queries + c : model[0] * c + group;
      rows.push_back({head * size + box[2].lo, head * size + box[2].hi});
    }
  }
  std::ranges::sort(rows);
  std::vector<Box> boxes;
  for (const Extent& each : rows) {
    if (!boxes.empty() && boxes.back()[0].hi == each.lo) {
      boxes.back() = boxes.back().with(0, {boxes.back()[0].lo, each.hi});
    } else {
      boxes.push_back({each, box[3]});
    }
  }
  return boxes;
}

// The boxes of a stored tensor that a box of the model's tensor is.
std::vector<Box> stored_boxes(const Box& box, const Shape& model, const Shape& shape,
                              const StoredTensor& stored) {
  if (stored.queries > 0) return stored_qkv_boxes(box, model);
  if (stored.parts == 1) return {box};
  const int axis = stored.axis;
  const int64_t size = shape[axis] / stored.parts;
  const Extent parts = box[axis], inner = box[axis + 1];
  Box result = Box::whole(shape);
  for (int k = 0; k < result.rank(); ++k) {
    if (k != axis) result = result.with(k, box[k < axis ? k : k + 1]);
  }
  if (inner.size() == size) {
    return {result.with(axis, {parts.lo * size, parts.hi * size})};
  }
  std::vector<Box> boxes;
  for (int64_t p = parts.lo; p < parts.hi; ++p) {
    boxes.push_back(result.with(axis, {p * size + inner.lo, p * size + inner.hi}));
  }
  return boxes;
}

// The same layout for the tensors as they are stored.
Result<Collection> as_stored(const Collection& cut,
                             std::span<const StoredTensor> stored,
                             std::span<const Tensor> tensors,
                             const CutProgress& progress) {
  std::vector<Tensor> own;
  for (const StoredTensor& each : stored) own.push_back(tensors[each.tensor]);
  const Layout& layout = cut.layout();
  const auto holders = layout.holders();
  LayoutBuilder builder(own, {holders.begin(), holders.end()});
  std::vector<int64_t> ends(holders.size());
  for (TensorId t = 0; t < own.size(); ++t) {
    if (progress) progress(t, std::ssize(own));
    // The first file has at least the name of a tensor without elements.
    if (own[t].shape.elements() == 0) {
      builder.add(t, Box::whole(own[t].shape), 0, ends[0]);
      continue;
    }
    for (const Slice& slice : layout.slices(t)) {
      for (const Box& box :
           stored_boxes(slice.box, cut.tensor(t).shape, own[t].shape, stored[t])) {
        for (PieceId p = slice.first; p < slice.last; ++p) {
          const HolderId holder = layout.holder(p);
          builder.add(t, box, holder, ends[holder]);
          ends[holder] += box.elements() * bytes_of(own[t].dtype);
        }
      }
    }
  }
  Layout made = HOLDFAST_TRY(std::move(builder).build());
  return Collection::create(std::move(own), std::move(made));
}

Result<void> check_degree(const Parameter& parameter, int64_t unit,
                          const Parallel& parallel) {
  const std::string& name = parameter.tensor.name;
  if (parameter.expert) {
    const int64_t experts =
        parameter.only ? parameter.only->count : parameter.tensor.shape[0];
    if (experts % parallel.ep != 0) {
      return invalid("{}: ep={} does not divide its {} experts; expected a divisor",
                     name, parallel.ep, experts);
    }
  }
  if (parameter.cut != Cut::kAxis && parameter.cut != Cut::kQkv) return {};
  const int64_t ways = parameter.expert ? parallel.expert_tp() : parallel.tp;
  const Shape& shape = parameter.tensor.shape;
  // Of queries, keys and values in one weight, the keys have the fewest rows.
  const int64_t size =
      parameter.cut == Cut::kQkv ? shape[0] * shape[2] : shape[parameter.axis];
  if (size % (ways * unit) == 0) return {};
  return invalid("{}: {}={} does not divide its dimension of {}{}; expected a divisor",
                 name, parameter.expert && parallel.etp > 0 ? "etp" : "tp", ways, size,
                 unit == 1 ? "" : fmt::format(" in units of {}", unit));
}

Result<void> check_qkv(const Parallel& parallel) {
  if (parallel.qkv == QkvLayout::kInterleaved) return {};
  return invalid(
      "parallel: {}: rules do not reorder the rows of a weight; expected "
      "qkv=interleaved",
      to_string(parallel));
}

// Refuses too many pieces before the process runs out of memory.
Result<void> check_pieces(std::span<const StoredTensor> stored,
                          const Parallel& parallel) {
  int64_t components = 0;
  for (const StoredTensor& each : stored) components += each.parts;
  const auto pieces =
      checked_mul(divide_up(components, parallel.pp), parallel.positions());
  if (pieces && *pieces <= kMaxPieces) return {};
  return unsupported(
      "{}: {} tensors on {} ranks are too many pieces; expected at most {}",
      to_string(parallel), stored.size(), parallel.positions(), kMaxPieces);
}

}  // namespace

Result<RuledModel> rules_of_cut(const Collection& collection) {
  const std::span<const Tensor> tensors = collection.tensors();
  std::map<std::string_view, TensorId> by_tail;
  for (TensorId t = 0; t < tensors.size(); ++t) {
    by_tail.emplace(behind_first(tensors[t].name), t);
  }
  std::vector<NamedTensor> parameters;
  std::vector<TensorId> ids;
  std::multimap<TensorId, TensorId> slots;
  for (TensorId t = 0; t < tensors.size(); ++t) {
    const auto of = by_tail.find(without_last(behind_first(tensors[t].name)));
    if (of != by_tail.end() && of->second != t &&
        tensors[of->second].shape == tensors[t].shape) {
      slots.emplace(of->second, t);
      continue;
    }
    parameters.push_back({.tensor = tensors[t]});
    ids.push_back(t);
  }
  RuledModel ruled{.rules = "as-cut"};
  ruled.model = HOLDFAST_TRY(
      model_of_tensors("as-cut", std::move(parameters), {}, TensorOrder::kAny));
  ruled.model.experts = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const Tensor& tensor = tensors[ids[i]];
    const auto axis = axis_of_boxes(tensor.shape, collection.layout().slices(ids[i]));
    if (!axis) {
      return invalid("{}: is cut along several dimensions; expected rules for it",
                     tensor.name);
    }
    Parameter& parameter = ruled.model.parameters[i];
    parameter = {.tensor = tensor,
                 .site = parameter.site,
                 .layer = parameter.layer,
                 .also_last = parameter.also_last,
                 .cut = *axis < 0 ? Cut::kReplicated : Cut::kAxis,
                 .axis = std::max(*axis, 0)};
    std::vector<StoredTensor>& states = ruled.states.emplace_back();
    states.push_back({.tensor = ids[i]});
    const auto [first, last] = slots.equal_range(ids[i]);
    for (auto slot = first; slot != last; ++slot) {
      states.push_back({.tensor = slot->second});
    }
    ruled.units.push_back(1);
  }
  return ruled;
}

Result<RuledModel> choose_rules(std::string_view name, const Collection& collection,
                                const Parallel& parallel, int64_t head) {
  if (name == "as-cut") return rules_of_cut(collection);
  if (!name.empty()) {
    return apply_rules(HOLDFAST_TRY(find_rule_set(name)), collection.tensors(), head);
  }
  std::optional<Error> refusal;
  int64_t most = 0;  // tensors for which the set of the refusal has rules
  for (const std::string& each : rule_set_names()) {
    const RuleSet set = HOLDFAST_TRY(find_rule_set(each));
    auto ruled = apply_rules(set, collection.tensors(), head);
    if (ruled.ok()) return ruled;
    const int64_t known = count_ruled(set, collection.tensors());
    if (known > most) refusal = ruled.error();
    most = std::max(most, known);
  }
  const bool cuts = parallel.tp > 1 || parallel.ep > 1 || parallel.expert_tp() > 1;
  if (!refusal || !cuts) return rules_of_cut(collection);
  return Error(refusal->code(),
               refusal->message() +
                   ", or --rules as-cut to cut the tensors as the files are cut");
}

Result<void> check_degrees(const RuledModel& ruled, const Parallel& parallel) {
  if (ruled.rules == "as-cut" && parallel.tp > 1 && !ruled.model.can_cut()) {
    return invalid(
        "as-cut: tp={}, but the source cuts no tensor; expected tp=1, or other rules "
        "(--rules)",
        parallel.tp);
  }
  for (size_t i = 0; i < ruled.model.parameters.size(); ++i) {
    HOLDFAST_TRY(check_degree(ruled.model.parameters[i], ruled.units[i], parallel));
  }
  return {};
}

Result<Collection> cut_by_rules(const RuledModel& ruled,
                                std::span<const Tensor> tensors,
                                const Parallel& parallel, const CutProgress& progress) {
  HOLDFAST_TRY(check(parallel));
  HOLDFAST_TRY(check_qkv(parallel));
  std::vector<StoredTensor> stored;
  for (const auto& states : ruled.states) {
    stored.insert(stored.end(), states.begin(), states.end());
  }
  HOLDFAST_TRY(check_pieces(stored, parallel));
  HOLDFAST_TRY(check_degrees(ruled, parallel));
  const auto states_of = [&](size_t i) {
    std::vector<Tensor> states;
    for (const StoredTensor& each : ruled.states[i]) {
      Tensor& tensor = states.emplace_back(ruled.model.parameters[i].tensor);
      tensor.name = tensors[each.tensor].name;
      tensor.aliases = tensors[each.tensor].aliases;
      tensor.dtype = tensors[each.tensor].dtype;
      if (states.size() > 1) tensor.role = Role::kSlot;
    }
    return states;
  };
  std::vector<Holder> files;
  for (int64_t p = 0; p < parallel.positions(); ++p) {
    files.push_back({.name = fmt::format("position-{}", p), .kind = HolderKind::kFile});
  }
  // The tensors are cut once as the model has them, and once as they are stored.
  const auto half = [&](int64_t first) {
    return [&progress, first](int64_t done, int64_t total) {
      if (progress) progress(first * total + done, 2 * total);
    };
  };
  const Collection cut = HOLDFAST_TRY(build_collection_of(
      ruled.model, parallel, states_of, std::move(files), {}, half(0)));
  return as_stored(cut, stored, tensors, half(1));
}

}  // namespace holdfast
