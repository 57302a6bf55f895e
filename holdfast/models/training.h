// Training regimes: what a training keeps for each parameter. That is its dtype,
// perhaps a master copy, and the optimizer's slots.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/state/tensor.h"

namespace holdfast {

enum class Optimizer : uint8_t {
  kNone,
  kSgd,   // one slot: momentum
  kAdam,  // two slots: exp_avg, exp_avg_sq
};

// What a training keeps for each parameter. The default is mixed-precision Adam, which
// keeps 14 bytes for each element.
struct Training {
  Dtype dtype = Dtype::kBf16;  // of the parameters
  Optimizer optimizer = Optimizer::kAdam;
  bool master = true;  // there is a copy in master_dtype
  Dtype master_dtype = Dtype::kF32;
  Dtype slot_dtype = Dtype::kF32;

  friend bool operator==(const Training&, const Training&) = default;
};

// The parameter's own tensor, then the master and slots that the training keeps for it.
// For a buffer or counter only the tensor itself.
std::vector<Tensor> state_tensors(const Tensor& parameter, const Training& training);

// The names of the regimes. With their bytes for each element of a parameter:
// mixed-adam (14), mixed-sgd (10), adam (12, all f32), sgd (8, all f32), bf16-adam (6,
// all bf16), weights (2, only the parameters in bf16).
std::vector<std::string> training_names();
// Fails with kNotFound, listing the names, on an unknown name.
Result<Training> find_training(std::string_view name);

}  // namespace holdfast
