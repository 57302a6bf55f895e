#include "holdfast/campaign/state_distance.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "holdfast/inspect/diff.h"
#include "holdfast/state/number.h"

namespace holdfast {
namespace {

constexpr int64_t kDistanceWindow = int64_t{1} << 20;

// One component of an element, such as the imaginary part of a complex number.
double component(Dtype dtype, ByteView bytes) {
  uint64_t bits = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    bits |= static_cast<uint64_t>(bytes[i]) << (8 * i);
  }
  return to_double(dtype, bits);
}

struct SquareSums {
  double difference = 0, golden = 0;

  void add(Dtype dtype, ByteView wanted, ByteView seen) {
    const auto size = static_cast<size_t>(info(dtype).bytes / info(dtype).components);
    for (size_t at = 0; at < wanted.size(); at += size) {
      const double a = component(dtype, wanted.subspan(at, size));
      const bool same = std::memcmp(&wanted[at], &seen[at], size) == 0;
      const double b = same ? a : component(dtype, seen.subspan(at, size));
      // Equal bits add nothing, also if they are infinite or NaN.
      if (!same) difference += (a - b) * (a - b);
      golden += a * a;
    }
  }

  double relative() const {
    return difference == 0 ? 0 : std::sqrt(difference) / std::sqrt(golden);
  }
};

Result<double> tensor_distance(const Contents& golden, TensorId wanted,
                               const Contents& state, TensorId seen, bool& equal) {
  const Tensor& tensor = golden.collection.tensor(wanted);
  CanonicalStream of_golden(golden, wanted), of_state(state, seen);
  SquareSums sums;
  for (int64_t at = 0; at < tensor.bytes(); at += kDistanceWindow) {
    const auto size =
        static_cast<size_t>(std::min(kDistanceWindow, tensor.bytes() - at));
    Bytes a(size), b(size);
    HOLDFAST_TRY(of_golden.read(a));
    HOLDFAST_TRY(of_state.read(b));
    if (a != b) equal = false;
    sums.add(tensor.dtype, a, b);
  }
  return sums.relative();
}

}  // namespace

Result<StateDistance> distance_between(const Contents& golden, const Contents& state) {
  StateDistance distance;
  for (TensorId t = 0; t < golden.collection.tensors().size(); ++t) {
    const Tensor& tensor = golden.collection.tensor(t);
    const auto seen = state.collection.find(tensor.name);
    if (!seen) {
      return invalid("{}: is not in the state; expected the tensors of the golden run",
                     tensor.name);
    }
    const Tensor& other = state.collection.tensor(*seen);
    if (other.dtype != tensor.dtype || other.shape != tensor.shape) {
      return invalid("{}: is {} {}; expected {} {}, as in the golden run", tensor.name,
                     name_of(other.dtype), to_string(other.shape),
                     name_of(tensor.dtype), to_string(tensor.shape));
    }
    distance.relative[tensor.name] =
        HOLDFAST_TRY(tensor_distance(golden, t, state, *seen, distance.equal));
  }
  return distance;
}

Result<std::optional<std::string>> state_difference(const Contents& a,
                                                    const Contents& b) {
  const DiffReport report = HOLDFAST_TRY(diff(a, b, {.objects = false}));
  for (const TensorDiff& tensor : report.tensors) {
    if (tensor.verdict == Verdict::kEqual) continue;
    return std::optional(fmt::format("state: {} {}, in {} elements", tensor.name,
                                     name_of(tensor.verdict), tensor.differing));
  }
  return std::optional<std::string>();
}

}  // namespace holdfast
