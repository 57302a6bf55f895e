// Checks that master weights belong to the weights that their numbers say.
#include <cmath>
#include <cstring>

#include "holdfast/base/json_text.h"
#include "holdfast/megatron/rank_file.h"
#include "holdfast/state/float_convert.h"

namespace holdfast::megatron {
namespace {

// How many values of a tensor are compared.
constexpr int64_t kCompared = 64;

// The first values of a tensor, rounded to `dtype`, and then as floats.
Result<std::vector<float>> first_values(const Contents& contents, TensorId id,
                                        Dtype dtype) {
  const Tensor& tensor = contents.collection.tensor(id);
  const int64_t count = std::min(kCompared, tensor.shape.elements());
  Bytes stored(static_cast<size_t>(count * bytes_of(tensor.dtype)));
  HOLDFAST_TRY(read_canonical(contents, id, 0, stored));
  Bytes rounded(static_cast<size_t>(count * bytes_of(dtype)));
  convert_floats(tensor.dtype, stored, dtype, rounded);
  std::vector<float> values(static_cast<size_t>(count));
  convert_floats(dtype, rounded, Dtype::kF32,
                 std::as_writable_bytes(std::span(values)));
  return values;
}

bool same_values(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i] && !(std::isnan(a[i]) && std::isnan(b[i]))) return false;
  }
  return true;
}

}  // namespace

Result<void> check_masters(const RankFile& file) {
  for (const StateTensor& state : file.optimizer.tensors) {
    if (state.slot != kMasterSlot) continue;
    const LocalParameter& parameter = file.local[state.parameter];
    const TensorId master = file.contents.collection.find(state.stored).value();
    const TensorId weight = *file.model[file.parameters[state.parameter]].tensor;
    if (!is_convertible(file.contents.collection.tensor(master).dtype)) {
      return unsupported("{}: {}: has no floating-point values", file.name,
                         shown(state.stored));
    }
    const auto rounded =
        HOLDFAST_TRY(first_values(file.contents, master, parameter.dtype));
    const auto values =
        HOLDFAST_TRY(first_values(file.contents, weight, parameter.dtype));
    if (same_values(rounded, values)) continue;
    return invalid(
        "{}: {}: does not round to {}, so the order of the optimizer's state is in doubt; "
        "expected the master of that weight",
        file.name, shown(state.stored), shown(parameter.name));
  }
  return {};
}

}  // namespace holdfast::megatron
