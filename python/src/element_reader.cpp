// Reads an element of each of many tensors in main memory, in one call: it is made after
// every step of a training, when nothing that it needs is in the processor's caches.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace nb = nanobind;

namespace holdfast::python {
namespace {

using Address = uintptr_t;

class ElementReader {
 public:
  ElementReader(std::vector<Address> addresses,
                std::vector<std::pair<Address, size_t>> elements)
      : addresses_(std::move(addresses)), elements_(std::move(elements)) {
    for (const auto& [address, size] : elements_) bytes_ += size;
  }

  // The bytes of all elements, or None if the tensors are somewhere else now: then the
  // memory of before may be gone.
  nb::object read(const nb::iterable& addresses) const {
    if (!are_at(addresses)) return nb::none();
    auto read = nb::steal<nb::object>(
        PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(bytes_)));
    if (!read.is_valid()) nb::raise_python_error();
    char* into = PyBytes_AS_STRING(read.ptr());
    for (const auto& [address, size] : elements_) {
      // NOLINTNEXTLINE(performance-no-int-to-ptr): torch gives addresses as numbers
      std::memcpy(into, reinterpret_cast<const void*>(address), size);
      into += size;
    }
    return read;
  }

 private:
  bool are_at(const nb::iterable& addresses) const {
    auto expected = addresses_.begin();
    for (const nb::handle address : addresses) {
      if (expected == addresses_.end()) return false;
      if (nb::cast<Address>(address) != *expected++) return false;
    }
    return expected == addresses_.end();
  }

  const std::vector<Address> addresses_;  // of all tensors
  const std::vector<std::pair<Address, size_t>> elements_;
  size_t bytes_ = 0;
};

}  // namespace

void bind_element_reader(nb::module_& m) {
  nb::class_<ElementReader>(m, "ElementReader",
                            "Reads an element of each of many tensors in main memory.")
      .def(nb::init<std::vector<Address>, std::vector<std::pair<Address, size_t>>>(),
           nb::arg("addresses"), nb::arg("elements"),
           "The addresses of tensors, and the address and the size of each element. Does\n"
           "not keep the tensors alive.")
      .def("read", &ElementReader::read, nb::arg("addresses"),
           nb::sig("def read(self, addresses: collections.abc.Iterable[int]) -> bytes | "
                   "None"),
           "The bytes of the elements, one behind the other; None, and nothing is read,\n"
           "unless the tensors have these addresses now.");
}

}  // namespace holdfast::python
