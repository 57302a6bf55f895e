// Bindings of the parts of tensors in memory/: names, types and docs only.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "array.h"
#include "errors.h"
#include "holdfast/memory/local_state.h"
#include "holdfast/state/seal.h"

namespace holdfast::python {
namespace {

// The piece for an array that is the part `box` of a tensor with this shape.
LocalPiece part_of(const Array& array, const std::vector<int64_t>& shape,
                   const Box& box, bool at_once, const std::string& role,
                   std::string of) {
  LocalPiece piece = array.piece;
  piece.box = box;
  piece.at_once = at_once;
  Tensor tensor = *array.piece.tensor;
  tensor.shape = unwrap(Shape::create(shape).within(tensor.name));
  tensor.role = unwrap(parse_role(role).within(tensor.name));
  tensor.of = std::move(of);
  if (box.shape() != array.piece.tensor->shape || !box.inside(tensor.shape)) {
    throw Raised(
        invalid("{}: an array of shape {} for the box {} of {}; expected the "
                "shape of the box, and a box inside the tensor",
                tensor.name, to_string(array.piece.tensor->shape), to_string(box),
                to_string(tensor.shape)));
  }
  piece.tensor = std::make_shared<const Tensor>(std::move(tensor));
  return piece;
}

std::vector<std::pair<std::string, std::string>> seals(const LocalPieces& pieces) {
  const nb::gil_scoped_release unlocked;
  const std::vector<Seal> sealed = unwrap(seals_of(std::span(pieces.begin(), pieces.end())));
  std::vector<std::pair<std::string, std::string>> named;
  for (size_t k = 0; k < sealed.size(); ++k) {
    const auto& [first, second] = sealed[k].lanes;
    named.emplace_back(pieces[k].tensor->name,
                       fmt::format("{:016x}{:016x}", first, second));
  }
  return named;
}

}  // namespace

void bind_pieces(nb::module_& m) {
  nb::class_<LocalPiece>(m, "Piece", "A box of a tensor in this process's memory.")
      .def(
          "__init__",
          [](LocalPiece* self, const Array& array, const std::vector<int64_t>& shape,
             const Box& box, bool at_once, const std::string& role, std::string of) {
            new (self)
                LocalPiece(part_of(array, shape, box, at_once, role, std::move(of)));
          },
          nb::arg("array"), nb::arg("shape"), nb::arg("box"), nb::arg("at_once") = false,
          nb::arg("role") = "parameter", nb::arg("of") = "",
          "`role` is parameter, slot, master, buffer or counter; `of` names the\n"
          "parameter that a slot belongs to.");
  nb::class_<LocalPieces>(m, "Pieces",
                          "A list of pieces. Make it once, and pass it again for as "
                          "long as the tensors are\n"
                          "the same: a save then need not look at each piece.")
      .def(nb::init_implicit<std::vector<LocalPiece>>())
      .def("__len__", &LocalPieces::size)
      .def("seals", &seals,
           "The name of each piece, and the seal of its memory as it is now, in the form that\n"
           "the index of a shard has.")
      .def(
          "plus",
          [](LocalPieces pieces, const std::vector<LocalPiece>& more) {
            std::vector<LocalPiece>& all = pieces.edit();
            all.insert(all.end(), more.begin(), more.end());
            return pieces;
          },
          nb::arg("more"))
      .def(
          "replaced",
          [](LocalPieces pieces, const std::vector<size_t>& places,
             const std::vector<LocalPiece>& others) {
            std::vector<LocalPiece>& all = pieces.edit();
            for (size_t k = 0; k < std::min(places.size(), others.size()); ++k) {
              all.at(places[k]) = others[k];
            }
            return pieces;
          },
          nb::arg("places"), nb::arg("others"),
          "A copy of the list in which the pieces at these places are replaced by\n"
          "`others`.")
      .def(
          "moved",
          [](LocalPieces pieces, const std::vector<size_t>& places,
             const std::vector<uint64_t>& addresses) {
            std::vector<LocalPiece>& all = pieces.edit();
            for (size_t k = 0; k < std::min(places.size(), addresses.size()); ++k) {
              ByteSpan& memory = all.at(places[k]).memory;
              auto* const first = reinterpret_cast<std::byte*>(addresses[k]);  // NOLINT
              memory = ByteSpan(first, memory.size());
            }
            return pieces;
          },
          nb::arg("places"), nb::arg("addresses"),
          "A copy of the list in which the pieces at these places have new addresses.\n"
          "Their elements, strides and device stay the same.");
}

}  // namespace holdfast::python
