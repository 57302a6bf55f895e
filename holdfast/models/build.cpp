#include "holdfast/models/build.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "holdfast/base/checked.h"
#include "holdfast/models/parameter_split.h"

namespace holdfast {
namespace {

constexpr int64_t kAlignment = 64;

Result<void> check_fits(const Model& model, const Parallel& parallel) {
  HOLDFAST_TRY(check(parallel));
  if (parallel.tp > 1 && !model.can_cut()) {
    return invalid("{}: tp={}, but none of its tensors can be cut; expected tp=1",
                   model.name, parallel.tp);
  }
  if (model.experts == 0 && (parallel.ep > 1 || parallel.etp > 0)) {
    return invalid("{}: {}={}, but it has no experts", model.name,
                   parallel.ep > 1 ? "ep" : "etp",
                   parallel.ep > 1 ? parallel.ep : parallel.etp);
  }
  for (const Parameter& parameter : model.parameters) {
    HOLDFAST_TRY(check_split(parameter, parallel));
  }
  return {};
}

// The device of each position, checked.
Result<std::vector<HolderId>> devices_of(const Parallel& parallel,
                                         std::span<const Holder> devices,
                                         std::span<const uint32_t> chosen) {
  const auto positions = static_cast<size_t>(parallel.positions());
  if (positions > devices.size()) {
    return invalid("parallel: {} needs {} devices, there are {}", to_string(parallel),
                   positions, devices.size());
  }
  std::vector<HolderId> device_of(positions);
  std::iota(device_of.begin(), device_of.end(), 0);
  if (chosen.empty()) return device_of;
  if (chosen.size() != positions) {
    return invalid("placement: {} positions; expected {}", chosen.size(), positions);
  }
  std::vector<int64_t> taken(devices.size(), -1);
  for (size_t p = 0; p < positions; ++p) {
    const uint32_t device = chosen[p];
    if (device >= devices.size()) {
      return invalid("placement: position {} on device {}, there are {}", p, device,
                     devices.size());
    }
    if (taken[device] >= 0) {
      return invalid("placement: positions {} and {} are both on {}", taken[device], p,
                     devices[device].name);
    }
    taken[device] = static_cast<int64_t>(p);
    device_of[p] = device;
  }
  return device_of;
}

// How ZeRO divides one cut of a parameter over its replicas. Elements are counted
// through the unit that the parameter belongs to, such as a layer. Replica z has the
// elements whose count is in [z * chunk, (z + 1) * chunk).
struct FlatCut {
  int64_t offset = 0;  // where the parameter begins in its unit
  int64_t chunk = 1;
};

// The parts of one cut of a parameter.
struct CutParts {
  std::vector<Part> all;
  std::vector<std::vector<Part>> of_replica;  // with ZeRO: the parts of each replica
};

class Assembly {
 public:
  Assembly(const Model& model, const Parallel& parallel, const StatesOf& states_of)
      : model_(model), parallel_(parallel), states_of_(states_of) {}

  Result<Collection> build(std::vector<Holder> devices,
                           std::span<const uint32_t> device_of_position,
                           const CutProgress& progress);

 private:
  // A stage that a parameter is on, and the unit of ZeRO that it belongs to there.
  struct Home {
    int64_t stage;
    int64_t unit;
    std::vector<FlatCut> cuts;  // one for each cut; empty without ZeRO
  };

  Result<void> add_tensors();
  Result<void> find_homes();
  void add_units();
  FlatCut own_cut(const Parameter& parameter, std::span<const Part> parts) const;
  CutParts shard(std::vector<Part> parts, const FlatCut& cut, int64_t replicas) const;
  void add_pieces(size_t parameter, LayoutBuilder& builder) const;
  void add_stage(size_t parameter, int64_t stage, std::span<const CutParts> cuts,
                 LayoutBuilder& builder) const;
  void add_parts(TensorId tensor, HolderId holder, std::span<const Part> parts,
                 LayoutBuilder& builder) const;
  bool sharded(const Parameter& parameter, Role role) const;

  const Model& model_;
  const Parallel& parallel_;
  const StatesOf& states_of_;
  std::vector<HolderId> device_of_;
  std::vector<Tensor> tensors_;
  std::vector<int64_t> base_;           // the first byte of each tensor
  std::vector<TensorId> first_tensor_;  // of each parameter, then the end
  std::vector<std::vector<Home>> homes_;
};

Result<void> Assembly::add_tensors() {
  int64_t base = 0;
  for (size_t i = 0; i < model_.parameters.size(); ++i) {
    first_tensor_.push_back(static_cast<TensorId>(tensors_.size()));
    for (Tensor& tensor : states_of_(i)) {
      base_.push_back(base);
      const auto end = checked_add(base, tensor.bytes());
      const auto next = end ? checked_add(*end, kAlignment - 1) : std::nullopt;
      if (!next) return invalid("{}: its state is larger than 2^63 bytes", model_.name);
      base = *next / kAlignment * kAlignment;
      tensors_.push_back(std::move(tensor));
    }
  }
  first_tensor_.push_back(static_cast<TensorId>(tensors_.size()));
  return {};
}

Result<void> Assembly::find_homes() {
  const auto stage_of = HOLDFAST_TRY(stages_of_layers(parallel_, model_.layers));
  const int64_t last = parallel_.pp - 1;
  for (const Parameter& parameter : model_.parameters) {
    std::vector<Home>& homes = homes_.emplace_back();
    switch (parameter.site) {
      case Site::kFirst: homes.push_back({0, -1, {}}); break;
      case Site::kLast: homes.push_back({last, model_.layers, {}}); break;
      case Site::kLayer:
        HOLDFAST_CHECK(0 <= parameter.layer && parameter.layer < model_.layers,
                       "{} is in layer {} of {}", parameter.tensor.name,
                       parameter.layer, model_.layers);
        homes.push_back(
            {stage_of[static_cast<size_t>(parameter.layer)], parameter.layer, {}});
    }
    if (parameter.also_last && homes[0].stage != last) {
      homes.push_back({last, model_.layers, {}});
    }
  }
  return {};
}

bool Assembly::sharded(const Parameter& parameter, Role role) const {
  if (parameter.tensor.role != Role::kParameter) return false;
  return parallel_.zero == 3 || (parallel_.zero > 0 && role != Role::kParameter);
}

FlatCut Assembly::own_cut(const Parameter& parameter,
                          std::span<const Part> parts) const {
  const int64_t replicas = spread_of(parameter, parallel_).replicas;
  const int64_t elements = elements_of(parts);
  int64_t row = 1;
  if (parallel_.shard == ShardUnit::kRows && !parts.empty()) {
    const Box& box = parts[0].box;
    for (int k = parameter.rows; k < box.rank(); ++k) row *= box.size(k);
  }
  return {0, std::max<int64_t>(divide_up(elements / row, replicas) * row, 1)};
}

// With ZeRO, finds where each parameter begins in its unit, for every stage that it is
// on. Experts have units of their own, because they have other replicas than other
// parameters.
void Assembly::add_units() {
  if (parallel_.zero == 0) return;
  const bool alone =
      parallel_.shard == ShardUnit::kTensor || parallel_.shard == ShardUnit::kRows;
  const bool by_stage = parallel_.shard == ShardUnit::kStage;
  using Key = std::tuple<int64_t, int64_t, bool>;  // stage, unit, expert
  std::map<Key, std::vector<int64_t>> totals;      // elements, by cut
  const auto key_of = [&](const Parameter& parameter, const Home& home) {
    return Key{home.stage, by_stage ? 0 : home.unit, parameter.expert};
  };
  for (size_t i = 0; i < model_.parameters.size(); ++i) {
    const Parameter& parameter = model_.parameters[i];
    if (parameter.tensor.role != Role::kParameter) continue;
    const int64_t ways = spread_of(parameter, parallel_).ways;
    for (int64_t way = 0; way < ways; ++way) {
      const std::vector<Part> parts = split_parameter(parameter, parallel_, way);
      for (Home& home : homes_[i]) {
        home.cuts.push_back(own_cut(parameter, parts));
        if (alone) continue;
        std::vector<int64_t>& total = totals[key_of(parameter, home)];
        total.resize(static_cast<size_t>(ways));
        home.cuts.back().offset = total[static_cast<size_t>(way)];
        total[static_cast<size_t>(way)] += elements_of(parts);
      }
    }
  }
  if (alone) return;
  for (size_t i = 0; i < model_.parameters.size(); ++i) {
    const Parameter& parameter = model_.parameters[i];
    const int64_t replicas = spread_of(parameter, parallel_).replicas;
    for (Home& home : homes_[i]) {
      for (size_t way = 0; way < home.cuts.size(); ++way) {
        const int64_t total = totals[key_of(parameter, home)][way];
        home.cuts[way].chunk = std::max<int64_t>(divide_up(total, replicas), 1);
      }
    }
  }
}

CutParts Assembly::shard(std::vector<Part> parts, const FlatCut& cut,
                         int64_t replicas) const {
  CutParts result;
  result.of_replica.resize(static_cast<size_t>(replicas));
  const int64_t size = elements_of(parts);
  for (int64_t done = 0; done < size;) {
    const int64_t replica = (cut.offset + done) / cut.chunk;
    const int64_t end = std::min((replica + 1) * cut.chunk - cut.offset, size);
    result.of_replica[static_cast<size_t>(replica)] = flat_range(parts, done, end);
    done = end;
  }
  result.all = std::move(parts);
  return result;
}

void Assembly::add_parts(TensorId tensor, HolderId holder, std::span<const Part> parts,
                         LayoutBuilder& builder) const {
  const int64_t bytes = bytes_of(tensors_[tensor].dtype);
  int64_t offset = base_[tensor];
  for (const Part& part : parts) {
    if (part.row_major()) {
      builder.add(tensor, part.box, holder, offset);
    } else {
      builder.add(tensor, part.box, holder, part.map(bytes, offset));
    }
    offset += part.box.elements() * bytes;
  }
}

void Assembly::add_stage(size_t parameter, int64_t stage,
                         std::span<const CutParts> cuts, LayoutBuilder& builder) const {
  const auto seats = static_cast<size_t>(parallel_.tp * parallel_.dp);
  const size_t first = static_cast<size_t>(stage) * seats;
  for (TensorId t = first_tensor_[parameter]; t < first_tensor_[parameter + 1]; ++t) {
    const bool by_replica = sharded(model_.parameters[parameter], tensors_[t].role);
    for (size_t l = 0; l < seats; ++l) {
      const CutParts& cut = cuts[l % cuts.size()];
      add_parts(t, device_of_[first + l],
                by_replica ? cut.of_replica[l / cuts.size()] : cut.all, builder);
    }
  }
}

void Assembly::add_pieces(size_t i, LayoutBuilder& builder) const {
  const Parameter& parameter = model_.parameters[i];
  const Spread spread = spread_of(parameter, parallel_);
  for (const Home& home : homes_[i]) {
    std::vector<CutParts> cuts;
    for (int64_t way = 0; way < spread.ways; ++way) {
      std::vector<Part> parts = split_parameter(parameter, parallel_, way);
      if (home.cuts.empty()) {
        cuts.push_back({std::move(parts), {}});
      } else {
        cuts.push_back(shard(std::move(parts), home.cuts[static_cast<size_t>(way)],
                             spread.replicas));
      }
    }
    add_stage(i, home.stage, cuts, builder);
  }
}

Result<Collection> Assembly::build(std::vector<Holder> devices,
                                   std::span<const uint32_t> device_of_position,
                                   const CutProgress& progress) {
  HOLDFAST_TRY(check_fits(model_, parallel_));
  device_of_ = HOLDFAST_TRY(devices_of(parallel_, devices, device_of_position));
  HOLDFAST_TRY(add_tensors());
  HOLDFAST_TRY(find_homes());
  add_units();
  LayoutBuilder builder(tensors_, std::move(devices));
  for (size_t i = 0; i < model_.parameters.size(); ++i) {
    if (progress) {
      progress(static_cast<int64_t>(i), std::ssize(model_.parameters));
    }
    add_pieces(i, builder);
  }
  Layout layout = HOLDFAST_TRY(std::move(builder).build());
  return Collection::create(std::move(tensors_), std::move(layout));
}

}  // namespace

namespace {

// About how many pieces the layout has. A position has about all tensors of its stage,
// except where ZeRO divides a layer or a stage as a whole: then it has one part of each
// of these units, which crosses few borders between tensors.
int64_t about_pieces(const Model& model, const Parallel& parallel,
                     const Training& training) {
  const auto states =
      static_cast<int64_t>(state_tensors({.name = "any"}, training).size());
  const auto parameters = static_cast<int64_t>(model.parameters.size());
  const auto whole = [&](int64_t tensors) {
    return divide_up(tensors * parameters, parallel.pp) * parallel.positions();
  };
  const bool by_unit =
      parallel.shard == ShardUnit::kLayer || parallel.shard == ShardUnit::kStage;
  if (parallel.zero == 0 || !by_unit) return whole(states);
  const int64_t units = parallel.shard == ShardUnit::kStage
                            ? 1
                            : divide_up(model.layers + 2, parallel.pp);
  const int64_t of_unit = parallel.tp * parameters + units * parallel.positions();
  const int64_t unsharded = parallel.zero == 3 ? 0 : 1;
  return whole(unsharded) + (states - unsharded) * of_unit;
}

}  // namespace

Result<Collection> build_collection(const Model& model, const Parallel& parallel,
                                    const Training& training,
                                    std::vector<Holder> devices,
                                    std::span<const uint32_t> device_of_position) {
  HOLDFAST_TRY(check(parallel));
  // Too many pieces are refused here, before the process runs out of memory.
  const int64_t pieces = about_pieces(model, parallel, training);
  if (pieces > kMaxPieces) {
    // ZeRO 1 and 2 cut the optimizer's state in another way than the weights.
    const bool alike = parallel.zero == 0 || parallel.zero == 3;
    return unsupported(
        "{} of {}: about {} pieces; expected at most {}: {}--training weights plans "
        "the "
        "weights alone{}",
        to_string(parallel), model.name, pieces, kMaxPieces,
        parallel.zero > 0 ? "shard=layer and shard=stage have far fewer; " : "",
        alike ? ", to which all bytes are in proportion" : "");
  }
  const auto states_of = [&](size_t i) {
    return state_tensors(model.parameters[i].tensor, training);
  };
  return build_collection_of(model, parallel, states_of, std::move(devices),
                             device_of_position);
}

Result<Collection> build_collection_of(const Model& model, const Parallel& parallel,
                                       const StatesOf& states_of,
                                       std::vector<Holder> devices,
                                       std::span<const uint32_t> device_of_position,
                                       const CutProgress& progress) {
  return Assembly(model, parallel, states_of)
      .build(std::move(devices), device_of_position, progress);
}

}  // namespace holdfast
