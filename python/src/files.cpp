// Bindings for files of tensors and for steps (inspect/): names, types and docs only.
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "array.h"
#include "env.h"
#include "errors.h"
#include "holdfast/inspect/open_any.h"
#include "object.h"
#include "restored.h"

namespace holdfast::python {
namespace {

TensorId find(const Contents& contents, const std::string& name) {
  const std::optional<TensorId> id = contents.collection.find(name);
  if (id.has_value()) return *id;
  throw Raised(not_found("tensor \"{}\": no such tensor in the file", name));
}

std::vector<std::string> names_of(const OpenedAny& self) {
  std::vector<std::string> names;
  for (const Tensor& tensor : self.contents.collection.tensors()) {
    names.push_back(tensor.name);
    names.insert(names.end(), tensor.aliases.begin(), tensor.aliases.end());
  }
  return names;
}

void read_into(const OpenedAny& self, const Array& array,
               const std::optional<Box>& box) {
  const nb::gil_scoped_release unlocked;
  const Contents& contents = self.contents;
  const LocalPiece& to = array.piece;
  const TensorId id = find(contents, to.tensor->name);
  const Tensor& tensor = contents.collection.tensor(id);
  const Box part = box.value_or(Box::whole(tensor.shape));
  if (to.tensor->dtype != tensor.dtype || to.tensor->shape != part.shape()) {
    throw Raised(invalid("{}: an array of {} {}; expected {} {}", tensor.name,
                         name_of(to.tensor->dtype), to_string(to.tensor->shape),
                         name_of(tensor.dtype), to_string(part.shape())));
  }
  unwrap(read_box(contents, id, part, to.map, to.memory));
}

std::vector<int64_t> shape_of(const Tensor& tensor) {
  return {tensor.shape.sizes().begin(), tensor.shape.sizes().end()};
}

}  // namespace

void bind_files(nb::module_& m) {
  nb::class_<Tensor>(m, "TensorInfo", "A tensor of a file.")
      .def_ro("name", &Tensor::name, "The first name of the tensor.")
      .def_ro("aliases", &Tensor::aliases, "Other names of the same tensor.")
      .def_ro("dtype", &Tensor::dtype, "The type of the elements.")
      .def_prop_ro("shape", &shape_of, "The size of each dimension.")
      .def_prop_ro("nbytes", &Tensor::bytes, "The size of all elements in bytes.")
      .def("__repr__", [](const Tensor& self) {
        return fmt::format("TensorInfo({}, {}, {})", self.name, name_of(self.dtype),
                           to_string(self.shape));
      });
  nb::class_<OpenedAny>(m, "Contents", "The native side of holdfast.Contents.")
      .def(
          "__init__",
          [](OpenedAny* self, const Path& path) {
            const nb::gil_scoped_release unlocked;
            new (self) OpenedAny(unwrap(open_any(env(), path)));
          },
          nb::arg("path"))
      .def_prop_ro("names", &names_of, "The names of all tensors, with their aliases.")
      .def(
          "info",
          [](const OpenedAny& self, const std::string& name) {
            return self.contents.collection.tensor(find(self.contents, name));
          },
          nb::arg("name"), "The TensorInfo of a tensor. Reads none of its elements.")
      .def_prop_ro(
          "objects",
          [](const OpenedAny& self) { return to_python(self.contents.objects); },
          nb::for_getter(nb::sig("def objects(self) -> typing.Any")),
          "The objects, which are all that is no tensor; None if there are none.")
      .def_prop_ro(
          "metadata", [](const OpenedAny& self) { return self.contents.metadata; },
          "The metadata of a safetensors file.")
      .def_prop_ro(
          "simplified", [](const OpenedAny& self) { return self.contents.simplified; },
          "Objects whose class is unknown and that were read as plain data, as\n"
          "\"name: class\".")
      .def_prop_ro(
          "left_out",
          [](const OpenedAny& self) {
            nb::list lines;
            for (const std::string& line : self.contents.left_out) {
              lines.append(text_of_message(line));
            }
            return lines;
          },
          nb::for_getter(nb::sig("def left_out(self) -> list[str]")),
          "What the file holds but cannot be read here, as \"name: why\".")
      .def_prop_ro(
          "skipped", [](const OpenedAny& self) { return pairs_of(self.found.skipped); },
          "Newer steps of the run that could not be used, as (folder, why) pairs.")
      .def("read_into", &read_into, nb::arg("array"), nb::arg("box").none(),
           "Reads the tensor that has the array's name, or a box of it, into the "
           "array.");
}

}  // namespace holdfast::python
