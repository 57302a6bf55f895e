#include "holdfast/models/training.h"

#include <fmt/ranges.h>

#include <array>
#include <iterator>

namespace holdfast {
namespace {

struct Regime {
  std::string_view name;
  Training training;
};
constexpr std::array kRegimes{
    Regime{"mixed-adam", {}},
    Regime{"mixed-sgd", {.optimizer = Optimizer::kSgd}},
    Regime{"adam", {.dtype = Dtype::kF32, .master = false}},
    Regime{"sgd",
           {.dtype = Dtype::kF32, .optimizer = Optimizer::kSgd, .master = false}},
    Regime{"bf16-adam", {.master = false, .slot_dtype = Dtype::kBf16}},
    Regime{"weights", {.optimizer = Optimizer::kNone, .master = false}},
};

std::vector<std::string_view> slot_names(Optimizer optimizer) {
  switch (optimizer) {
    case Optimizer::kNone: return {};
    case Optimizer::kSgd: return {"momentum"};
    case Optimizer::kAdam: return {"exp_avg", "exp_avg_sq"};
  }
  HOLDFAST_CHECK(false, "optimizer {}", static_cast<int>(optimizer));
}

// The state called `suffix` of a parameter. It has the parameter's shape and cut, and
// its name and aliases with the suffix.
Tensor state_of(const Tensor& parameter, std::string_view suffix, Role role,
                Dtype dtype) {
  Tensor tensor = parameter;
  tensor.name = fmt::format("{}.{}", parameter.name, suffix);
  for (std::string& alias : tensor.aliases) alias = fmt::format("{}.{}", alias, suffix);
  tensor.role = role;
  tensor.dtype = dtype;
  tensor.of = parameter.name;
  return tensor;
}

}  // namespace

std::vector<Tensor> state_tensors(const Tensor& parameter, const Training& training) {
  std::vector<Tensor> tensors{parameter};
  if (parameter.role != Role::kParameter) return tensors;
  tensors[0].dtype = training.dtype;
  if (training.master) {
    tensors.push_back(
        state_of(tensors[0], "master", Role::kMaster, training.master_dtype));
  }
  for (const std::string_view slot : slot_names(training.optimizer)) {
    tensors.push_back(state_of(tensors[0], slot, Role::kSlot, training.slot_dtype));
  }
  return tensors;
}

std::vector<std::string> training_names() {
  std::vector<std::string> names;
  for (const Regime& regime : kRegimes) names.emplace_back(regime.name);
  return names;
}

Result<Training> find_training(std::string_view name) {
  for (const Regime& regime : kRegimes) {
    if (regime.name == name) return regime.training;
  }
  return not_found("training \"{}\": not known; expected one of {}", name.substr(0, 80),
                   fmt::join(training_names(), ", "));
}

}  // namespace holdfast
