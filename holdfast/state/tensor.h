// A logical tensor of the job's state, independent of where and how it is cut.
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
  // Canonical: without vocabulary padding, with every packed component on an axis of its
  // own (a fused SwiGLU weight is [2, F, H], a fused QKV is [groups, heads + 2, dim, H]).
  Shape shape{};
  Role role = Role::kParameter;
  // The parameter that a slot or master belongs to; empty otherwise. State is addressed
  // by name, never by position: positions change with the parallel configuration.
  std::string of{};
  // Other names for the same values (a tied output head). One tensor, many holders.
  std::vector<std::string> ties{};
  // Where ranks pad dimension 0 before cutting it in T parts: to a multiple of this times
  // T (a vocabulary). Padding is an attribute of memory, not state: it has no box.
  // 0 means none.
  int64_t pad_multiple = 0;

  int64_t bytes() const { return shape.elements() * bytes_of(dtype); }
  friend bool operator==(const Tensor&, const Tensor&) = default;
};

}  // namespace holdfast
