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

// The role that a tensor alone suggests; roles/roles.h asks the rest of the file, too. It
// is Tensor::role, if that says more than kParameter. Otherwise
// the name tells it, because most files do not record roles: "running_var", Keras'
// "moving_variance" and Chainer's "avg_var" are buffers, "exp_avg" and "momentum_buffer"
// are slots, "step" and "num_batches_tracked" are counters, and so is the state of a
// random generator. Everything else is a parameter.
Role role_of(const Tensor& tensor);

// The layer of a tensor: its name without the last part, "model.conv2" for
// "model.conv2.weight". Empty if the name has only one part. What TensorFlow puts behind
// the name of a variable is no part of it.
std::string_view layer_of(std::string_view name);

// The order of names: part by part, and numbers as numbers, so that layer.2 comes before
// layer.10. It does not depend on the format of a file, because the two separators are
// equal in it. Names that differ only in separators or leading zeros are ordered by their
// characters.
struct NameOrder {
  bool operator()(std::string_view a, std::string_view b) const;
};

}  // namespace holdfast
