// What the name of a tensor tells: whether a pattern selects it, which role it has, and
// which layer it belongs to. Names are paths whose parts are separated by '.' or '/'.
#pragma once

#include <string>
#include <string_view>

#include "holdfast/state/tensor.h"

namespace holdfast {

// Whether a pattern selects a name. In a pattern, '*' stands for any characters and '?'
// for one character. The pattern must match the whole name, or its beginning up to a
// separator: "conv1" selects conv1 and conv1.weight, but not conv10.weight. The two
// separators stand for each other, and a '/' at the beginning of either is ignored.
bool selects(std::string_view pattern, std::string_view name);

// The role of a tensor. It is Tensor::role, if that says more than kParameter. Otherwise
// the name tells it, because most files do not record roles: "running_var", Keras'
// "moving_variance" and Chainer's "avg_var" are buffers, "exp_avg" and "momentum_buffer"
// are slots, "step" and "num_batches_tracked" are counters. Everything else is a
// parameter.
Role role_of(const Tensor& tensor);

// The layer of a tensor: its name without the last part, "model.conv2" for
// "model.conv2.weight". Empty if the name has only one part.
std::string_view layer_of(std::string_view name);

}  // namespace holdfast
