// Bindings of memory/freeze_window.h: names, types and docs only.
#include "holdfast/memory/freeze_window.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "errors.h"

namespace holdfast::python {
namespace {

// Python sees a seal as the bytes of its two lanes.
using Lanes = decltype(Seal::lanes);

nb::bytes to_python(const Seal& seal) {
  return nb::bytes(seal.lanes.data(), sizeof seal.lanes);
}

void check_part(const FreezeWindow& window, size_t part) {
  if (part < window.parts()) return;
  throw Raised(invalid("part {}; expected one of {}", part, window.parts()));
}

Seal to_seal(const FreezeWindow& window, size_t part, const nb::bytes& lanes) {
  check_part(window, part);
  Seal seal{.bytes = static_cast<uint64_t>(window.bytes(part, part + 1))};
  if (lanes.size() != sizeof(Lanes)) {
    throw Raised(
        invalid("seal: {} bytes; expected {}", lanes.size(), sizeof(Lanes)));
  }
  std::memcpy(seal.lanes.data(), lanes.data(), sizeof(Lanes));
  return seal;
}

std::vector<size_t> cut(const FreezeWindow& self, size_t windows) {
  if (windows == 0) throw Raised(invalid("0 windows; expected at least 1"));
  return self.cut(windows);
}

void wait_for(const FreezeWindow& self, uint64_t stream) {
  const nb::gil_scoped_release unlocked;
  unwrap(self.wait_for(reinterpret_cast<CudaStream>(stream)));  // NOLINT
}

std::tuple<size_t, size_t, std::string, nb::bytes> open(FreezeWindow& self,
                                                        size_t first, size_t last) {
  if (first >= last || last > self.parts()) {
    throw Raised(invalid("parts {} to {}; expected some of {}", first, last,
                         self.parts()));
  }
  std::string digest = [&] {
    const nb::gil_scoped_release unlocked;
    return unwrap(self.open(first, last));
  }();
  std::vector<Lanes> lanes;
  for (size_t part = first; part < last; ++part) {
    lanes.push_back(self.sealed(part).lanes);
  }
  return {self.piece_of(first), self.piece_of(last - 1) + 1, std::move(digest),
          nb::bytes(lanes.data(), lanes.size() * sizeof(Lanes))};
}

std::vector<size_t> close_window(FreezeWindow& self) {
  const nb::gil_scoped_release unlocked;
  return unwrap(self.close());
}

nb::bytes seal(const FreezeWindow& self, size_t part) {
  check_part(self, part);
  return to_python([&] {
    const nb::gil_scoped_release unlocked;
    return unwrap(self.seal(part));
  }());
}

nb::bytes read(const FreezeWindow& self, size_t part) {
  check_part(self, part);
  const Bytes bytes = unwrap(self.read(part));
  return nb::bytes(bytes.data(), bytes.size());
}

std::vector<RestingChange> write(FreezeWindow& self, size_t part,
                                  const nb::bytes& bytes) {
  check_part(self, part);
  return unwrap(self.write(
      part, ByteView(static_cast<const std::byte*>(bytes.data()), bytes.size())));
}

}  // namespace

void bind_freeze_window(nb::module_& m) {
  using W = FreezeWindow;
  nb::class_<RestingChange>(m, "ChangedElement", "An element that has changed.")
      .def_ro("tensor", &RestingChange::tensor, "The name of its tensor.")
      .def_ro("index", &RestingChange::index, "Its index in each dimension.")
      .def_ro("bits", &RestingChange::bits, "The bits that differ: \"bit 30\".")
      .def_ro("before", &RestingChange::before, "The value as it was.")
      .def_ro("after", &RestingChange::after, "The value as it is.");
  nb::class_<W>(m, "FreezeWindow",
                "Seals parts of pieces, and finds out later which parts have changed.")
      .def(nb::init<LocalPieces>(), nb::arg("pieces"),
           "Does not keep the tensors alive.")
      .def_prop_ro("parts", &W::parts, "The number of parts of all pieces.")
      .def_prop_ro("bytes", nb::overload_cast<>(&W::bytes, nb::const_),
                   "The size of all pieces.")
      .def("size", nb::overload_cast<size_t, size_t>(&W::bytes, nb::const_),
           nb::arg("first"), nb::arg("last"), "The size of a range of parts.")
      .def("piece_of", &W::piece_of, nb::arg("part"),
           "The number of the piece that a part belongs to.")
      .def("parts_of", &W::parts_of, nb::arg("piece"),
           "The first part of a piece, and the one after its last.")
      .def("cut", &cut, nb::arg("windows"),
           "The first part of each of so many windows, and then `parts`.")
      .def("wait_for", &wait_for, nb::arg("stream"),
           "Waits for the work that is in that CUDA stream now, if pieces are on devices.")
      .def("open", &open, nb::arg("first"), nb::arg("last"),
           "Seals these parts. Returns the range of their pieces, a digest of the seals,\n"
           "and the seals.")
      .def("close", &close_window, "The parts whose seals are not those of open().")
      .def(
          "sealed",
          [](const W& self, size_t part) { return to_python(self.sealed(part)); },
          nb::arg("part"), "The seal that open() computed, for a part of the window.")
      .def("seal", &seal, nb::arg("part"), "The seal of a part as it is now.")
      .def(
          "find",
          [](const W& self, size_t part, const nb::bytes& sealed) {
            return unwrap(self.find(part, to_seal(self, part, sealed)));
          },
          nb::arg("part"), nb::arg("sealed"),
          "What differs from that seal; [] unless it is one word.")
      .def(
          "mend",
          [](W& self, size_t part, const nb::bytes& sealed) {
            return unwrap(self.mend(part, to_seal(self, part, sealed)));
          },
          nb::arg("part"), nb::arg("sealed"),
          "Makes the part what it was when it had that seal. Raises CorruptError, and\n"
          "changes nothing, if more than one word differs.")
      .def("read", &read, nb::arg("part"), "The bytes of a part.")
      .def("write", &write, nb::arg("part"), nb::arg("bytes"),
           "Replaces the bytes of a part. Returns some of the elements that differed.");
}

}  // namespace holdfast::python
