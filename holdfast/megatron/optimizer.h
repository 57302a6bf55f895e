// The optimizer's state of a rank file of Megatron, by the names of the parameters.
//
// Megatron numbers the parameters of a rank: first those with weight decay, then the others,
// each in the order of the model. So a number means another parameter on another rank:
//
//   {"optimizer": {"state": {0: {"exp_avg": tensor, ...}, ...},
//                  "param_groups": [{..., "params": [0, 1, ...]}, {...}]},
//    "fp32_from_fp16_params": [[tensor, ...], [...]], ...}
//
// In fp32 training the inner dict, with "state" and "param_groups", stands alone.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "holdfast/contents/contents.h"
#include "holdfast/state/object.h"

namespace holdfast::megatron {

inline constexpr const char* kMasterSlot = "master";
inline constexpr const char* kStateKey = "state";
inline constexpr const char* kGroupsKey = "param_groups";
inline constexpr const char* kNumbersKey = "params";
inline constexpr const char* kMastersKey = "fp32_from_fp16_params";

// A parameter or a buffer of a rank.
struct LocalParameter {
  std::string name{};  // without "model."
  Dtype dtype = Dtype::kF32;
  Shape shape{};
  bool buffer = false;  // the optimizer does not know it
};

// A tensor of the optimizer's state.
struct StateTensor {
  std::string stored{};  // the name of the tensor in the file
  size_t parameter = 0;
  std::string slot{};  // "exp_avg", or kMasterSlot
};

struct OptimizerState {
  std::vector<StateTensor> tensors{};
  // What is the same on all ranks. In place of "state" it has the list of the slots' names;
  // a slot that is no tensor is a tuple of its name and value. The lists of numbers and of
  // masters are empty.
  Object common{};
};

// The parameters of each group: with weight decay and without, or all of them if there is
// one group. A parameter has weight decay unless it is a bias or has one dimension. A
// buffer is in no group.
std::vector<std::vector<size_t>> parameters_of_groups(
    const std::vector<LocalParameter>& parameters, size_t groups);

// Whether a parameter has 16 bits, so that an optimizer with master weights (fp32 copies)
// has one for it.
bool has_master(const LocalParameter& parameter);

// The dict that has "state" and "param_groups"; null if there is none.
const Object* inner_optimizer(const Object& optimizer);

// Fails with kInvalid, naming the number, where number and shape do not tell the parameter,
// and with kUnsupported for optimizers of another form.
Result<OptimizerState> name_state(const Object& optimizer,
                                  const std::vector<LocalParameter>& parameters,
                                  const Collection& file);

// The reverse: the optimizer of a rank with these parameters. `leaf_of` returns the tensor
// of a parameter's slot, or None if the parameter has no such state.
using StateLeaf = std::function<Object(size_t parameter, const std::string& slot)>;
Object number_state(const Object& common, const std::vector<LocalParameter>& parameters,
                    const StateLeaf& leaf_of);

}  // namespace holdfast::megatron
