// A tensor of the job's state as the whole job sees it, however it is cut and wherever
// its pieces are.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/state/box.h"
#include "holdfast/state/dtype.h"

namespace holdfast {

enum class Role : uint8_t {
  kParameter,
  kSlot,     // optimizer state with its parameter's shape: moments, momentum
  kMaster,   // full-precision copy of a parameter
  kBuffer,   // BatchNorm statistics and the like
  kCounter,  // step counts and other scalars
};

std::string_view name_of(Role role);  // "parameter", "slot", ...
Result<Role> parse_role(std::string_view name);

struct Tensor {
  std::string name{};
  Dtype dtype = Dtype::kF32;
  // The canonical shape: without vocabulary padding, and with an axis of its own for
  // packed components (a fused SwiGLU weight is [2, F, H], a fused QKV is [groups,
  // heads + 2, dim, H]).
  Shape shape{};
  Role role = Role::kParameter;
  // The name of the parameter that a slot or master belongs to; empty otherwise. It is
  // a name and not a position, because positions change with the parallel
  // configuration.
  std::string of{};
  // Aliases: other names of the same tensor, such as a tied output head. It stays one
  // tensor, which may have many holders.
  std::vector<std::string> aliases{};
  // If not 0: ranks that cut dimension 0 (a vocabulary) in T parts first pad it to a
  // multiple of pad_multiple * T. Padding exists only in a rank's memory. It is not
  // state and has no box.
  int64_t pad_multiple = 0;

  int64_t bytes() const { return shape.elements() * bytes_of(dtype); }
  friend bool operator==(const Tensor&, const Tensor&) = default;
};

}  // namespace holdfast
