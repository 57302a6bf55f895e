// Tensors, and what they consist of, in JSON documents (base/json_fields.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "holdfast/base/json_fields.h"
#include "holdfast/state/tensor.h"

namespace holdfast {

inline void put_json(JsonWriter& out, Dtype dtype) { out.put(name_of(dtype)); }
inline Result<void> read_json(const JsonPlace& at, Dtype& dtype) {
  return read_text(at, dtype, parse_dtype);
}

inline void put_json(JsonWriter& out, Role role) { out.put(name_of(role)); }
inline Result<void> read_json(const JsonPlace& at, Role& role) {
  return read_text(at, role, parse_role);
}

inline void put_json(JsonWriter& out, const Shape& shape) {
  const auto sizes = shape.sizes();
  put_json(out, std::vector<int64_t>(sizes.begin(), sizes.end()));
}
inline Result<void> read_json(const JsonPlace& at, Shape& shape) {
  std::vector<int64_t> sizes;
  HOLDFAST_TRY(read_json(at, sizes));
  shape = HOLDFAST_TRY(Shape::create(sizes).within(at.struct_text()));
  return {};
}

void fields(Is<Tensor> auto& self, auto&& field) {
  field("name", self.name);
  field("dtype", self.dtype);
  field("shape", self.shape);
  field.maybe("role", self.role);
  field.optional("of", self.of);
  field.optional("ties", self.aliases);
  field.optional("pad_multiple", self.pad_multiple, 0, int64_t{1} << 32);
}

}  // namespace holdfast
