// Bindings of state/: names, types and docs only.
#include <nanobind/operators.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>
#include <vector>

#include "errors.h"
#include "holdfast/state/box.h"
#include "holdfast/state/tensor.h"

namespace holdfast::python {
namespace {

using Extents = std::vector<std::pair<int64_t, int64_t>>;

// The C++ functions trust their caller that a box has not too many elements and that
// two boxes have equally many dimensions. A Python caller must not be able to abort the
// process, so make_box() and check_ranks() check both.
Box make_box(const Extents& extents) {
  std::vector<Extent> converted;
  std::vector<int64_t> sizes;
  for (const auto& [lo, hi] : extents) converted.push_back({lo, hi});
  const Box box = unwrap(Box::create(converted));
  for (const Extent& extent : box.extents()) sizes.push_back(extent.size());
  (void)unwrap(Shape::create(sizes));
  return box;
}

void check_ranks(const Box& a, const Box& b) {
  if (a.rank() != b.rank()) {
    throw Raised(invalid("boxes {} and {}: {} and {} dimensions; expected equally many",
                         to_string(a), to_string(b), a.rank(), b.rank()));
  }
}

Extents extents_of(const Box& box) {
  Extents extents;
  for (const Extent& extent : box.extents()) extents.emplace_back(extent.lo, extent.hi);
  return extents;
}

std::vector<int64_t> shape_of(const Box& box) {
  const Shape shape = box.shape();
  return {shape.sizes().begin(), shape.sizes().end()};
}

void bind_dtype(nb::module_& m) {
  auto dtype =
      nb::enum_<Dtype>(m, "Dtype", "An element type, by its safetensors name.");
  for (const DtypeInfo& info : all_dtypes()) {
    dtype.value(info.name.data(), info.dtype);  // the name is a literal: it ends in NUL
  }
  m.def(
      "parse_dtype", [](const std::string& name) { return unwrap(parse_dtype(name)); },
      nb::arg("name"),
      "The dtype of that name: the name in safetensors (in upper or lower case), or "
      "the\n"
      "name in torch.\n\n"
      "Raises NotImplementedError for any other name.");
  m.def("bytes_of", nb::overload_cast<Dtype>(&bytes_of), nb::arg("dtype"),
        "The size of one element in bytes.");
}

void bind_box(nb::module_& m) {
  nb::class_<Box>(
      m, "Box",
      "An axis-aligned block of a tensor: one half-open range (lo, hi) of indices for\n"
      "each dimension.")
      .def(
          "__init__",
          [](Box* self, const Extents& extents) { new (self) Box(make_box(extents)); },
          nb::arg("extents"),
          "Raises ValueError on more than 8 dimensions, on lo < 0 or hi < lo, and on\n"
          "2**59 or more elements.")
      .def_prop_ro("extents", &extents_of, "The (lo, hi) of each dimension.")
      .def_prop_ro("rank", &Box::rank, "The number of dimensions.")
      .def_prop_ro("shape", &shape_of, "The size of each dimension.")
      .def_prop_ro("elements", &Box::elements,
                   "The number of elements; a scalar has 1.")
      .def_prop_ro("empty", &Box::empty, "True if some dimension has size 0.")
      .def(
          "contains",
          [](const Box& self, const Box& inner) {
            return check_ranks(self, inner), self.contains(inner);
          },
          nb::arg("inner"),
          "True if `inner` lies inside. Raises ValueError if the boxes have different\n"
          "numbers of dimensions.")
      .def(nb::self == nb::self, nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__hash__",
           [](const Box& self) { return nb::hash(nb::cast(to_string(self))); })
      .def("__repr__", [](const Box& self) {
        return fmt::format("Box({})", nb::repr(nb::cast(extents_of(self))).c_str());
      });
  m.def(
      "intersect",
      [](const Box& a, const Box& b) { return check_ranks(a, b), intersect(a, b); },
      nb::arg("a"), nb::arg("b"),
      "The box that both have in common, or None if there is none.\n\n"
      "Raises ValueError if the boxes have different numbers of dimensions.");
}

}  // namespace

void bind_state(nb::module_& m) {
  bind_dtype(m);
  bind_box(m);
}

}  // namespace holdfast::python
