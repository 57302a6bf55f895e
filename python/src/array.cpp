#include "array.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "holdfast/base/checked.h"
#include "holdfast/state/strided.h"

namespace holdfast::python {
namespace {

// The map of an array whose strides may be negative: its offset leaves room in front of
// the first element. Sizes come from Python, so the arithmetic is checked.
Map map_of(const Tensor& tensor, const std::vector<int64_t>& strides) {
  const auto rank = static_cast<size_t>(tensor.shape.rank());
  if (strides.size() != rank) {
    throw Raised(
        invalid("{}: {} strides; expected {}", tensor.name, strides.size(), rank));
  }
  Map map;
  int64_t reach = 0;
  for (size_t k = 0; k < rank; ++k) {
    map.strides[k] = strides[k];
    const int64_t steps = std::max<int64_t>(tensor.shape[static_cast<int>(k)] - 1, 0);
    const auto there = checked_mul(steps, strides[k]);
    const auto size = there.has_value() && *there != INT64_MIN
                          ? checked_add(reach, std::abs(*there))
                          : std::nullopt;
    if (!size.has_value() || *size > int64_t{1} << 60) {
      throw Raised(
          invalid("{}: stride {} along {} elements; expected an array that fits "
                  "into memory",
                  tensor.name, strides[k], steps + 1));
    }
    reach = *size;
    if (*there < 0) map.offset -= *there;
  }
  return map;
}

}  // namespace

Array Array::create(const std::string& name, uint64_t address, const std::string& dtype,
                    const std::vector<int64_t>& shape,
                    const std::vector<int64_t>& strides,
                    std::vector<std::string> aliases, bool on_device) {
  Tensor tensor{.name = name,
                .dtype = unwrap(parse_dtype(dtype).within(name)),
                .shape = unwrap(Shape::create(shape).within(name)),
                .aliases = std::move(aliases)};
  const Map map = map_of(tensor, strides);
  ByteSpan memory;
  if (tensor.shape.elements() > 0) {
    if (address == 0) throw Raised(invalid("{}: address 0; expected memory", name));
    const ByteRange range = range_of(map, tensor.shape, bytes_of(tensor.dtype));
    // Python passes addresses as numbers.
    auto* first = reinterpret_cast<std::byte*>(address) - map.offset;  // NOLINT
    memory = ByteSpan(first, static_cast<size_t>(range.last));
  }
  const Device* device = nullptr;
  if (on_device && !memory.empty()) device = unwrap(device_of(memory).within(name));
  const Box box = Box::whole(tensor.shape);
  Array array{.piece = make_piece(std::move(tensor), box, memory, map)};
  array.piece.device = device;
  return array;
}

LocalPieces pieces_of(const std::vector<Array>& arrays) {
  std::vector<LocalPiece> made;
  made.reserve(arrays.size());
  for (const Array& array : arrays) made.push_back(array.piece);
  return made;
}

void bind_array(nb::module_& m) {
  nb::class_<Array>(m, "Array",
                    "Describes an array in memory. The caller keeps the memory alive.")
      .def(
          "__init__",
          [](Array* self, const std::string& name, uint64_t address,
             const std::string& dtype, const std::vector<int64_t>& shape,
             const std::vector<int64_t>& strides, std::vector<std::string> aliases,
             bool on_device) {
            new (self) Array(Array::create(name, address, dtype, shape, strides,
                                           std::move(aliases), on_device));
          },
          nb::arg("name"), nb::arg("address"), nb::arg("dtype"), nb::arg("shape"),
          nb::arg("strides"), nb::arg("aliases"), nb::arg("on_device") = false,
          "`strides` are in bytes; `aliases` are other names of the same array.")
      .def_prop_ro(
          "name", [](const Array& self) { return self.piece.tensor->name; },
          "The tensor's name.");
}

}  // namespace holdfast::python
