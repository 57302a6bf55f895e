#include "object.h"

#include <nanobind/operators.h>
#include <nanobind/stl/string.h>

#include "holdfast/state/object_json.h"

namespace holdfast::python {
namespace {

// The place in the tree that is being converted. Its text is made only for errors.
struct Place {
  const char* root = nullptr;  // the name of the tree; set only at its root
  const Place* above =
      nullptr;            // the container that this place is in; null at the root
  nb::handle key{};       // the key, if the container is a dict
  Py_ssize_t index = -1;  // the index, if it is a list or tuple; else -1
  int depth = 0;

  Place inside(nb::handle in_dict, Py_ssize_t in_list) const {
    return {nullptr, this, in_dict, in_list, depth + 1};
  }
  std::string text() const {
    if (above == nullptr) return root;
    if (index >= 0) return fmt::format("{}[{}]", above->text(), index);
    return fmt::format("{}[{}]", above->text(), nb::repr(key).c_str());
  }
};

Object convert(nb::handle value, const Place& place);

Object convert_int(nb::handle value, const Place& place) {
  int overflow = 0;
  const long long small = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
  if (overflow == 0) return Object::Value(int64_t{small});
  const nb::object digits = nb::steal(PyObject_Str(value.ptr()));
  if (!digits.is_valid()) {
    PyErr_Clear();
    throw Raised(
        invalid("{}: an int with more digits than Python prints; expected fewer",
                place.text()));
  }
  return Object::Value(Object::BigInteger{nb::cast<std::string>(digits)});
}

std::string text_of(nb::handle value, const Place& place) {
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(value.ptr(), &size);
  if (data != nullptr) return {data, static_cast<size_t>(size)};
  PyErr_Clear();
  throw Raised(
      invalid("{}: text that is not UTF-8; expected no lone surrogates", place.text()));
}

Bytes bytes_in(nb::handle value) {
  const auto* data = reinterpret_cast<const std::byte*>(PyBytes_AS_STRING(value.ptr()));
  return copy_of(ByteView(data, static_cast<size_t>(PyBytes_GET_SIZE(value.ptr()))));
}

std::string type_of(nb::handle value) {
  const nb::handle type = value.type();
  return fmt::format("{}.{}", nb::str(type.attr("__module__")).c_str(),
                     nb::str(type.attr("__qualname__")).c_str());
}

template <typename Sequence>
Sequence convert_items(nb::handle value, const Place& place) {
  Sequence converted;
  Py_ssize_t index = 0;
  for (const nb::handle item : value) {
    converted.items.push_back(convert(item, place.inside({}, index++)));
  }
  return converted;
}

Object::Dict convert_dict(nb::handle value, const Place& place) {
  Object::Dict converted;
  for (const auto& [key, item] : nb::borrow<nb::dict>(value)) {
    const Place at = place.inside(key, -1);
    converted.items.emplace_back(convert(key, at), convert(item, at));
  }
  return converted;
}

Object convert(nb::handle value, const Place& place) {
  PyObject* p = value.ptr();
  if (p == Py_None) return {};
  if (PyBool_Check(p)) return Object::Value(p == Py_True);
  if (PyLong_CheckExact(p)) return convert_int(value, place);
  if (PyFloat_CheckExact(p)) return Object::Value(PyFloat_AS_DOUBLE(p));
  if (PyUnicode_CheckExact(p)) return Object::Value(text_of(value, place));
  if (PyBytes_CheckExact(p)) return Object::Value(bytes_in(value));
  if (nb::isinstance<Object::TensorName>(value)) {
    return Object::Value(nb::cast<Object::TensorName>(value));
  }
  if (place.depth >= kMaxObjectDepth) {
    throw Raised(
        invalid("{}: containers more than {} deep, or one inside itself; "
                "expected a flatter tree",
                place.root != nullptr ? place.root : "objects", kMaxObjectDepth));
  }
  if (PyList_CheckExact(p))
    return Object::Value(convert_items<Object::List>(value, place));
  if (PyTuple_CheckExact(p))
    return Object::Value(convert_items<Object::Tuple>(value, place));
  if (PyDict_CheckExact(p)) return Object::Value(convert_dict(value, place));
  throw Raised(invalid(
      "{}: a {}; expected None, bool, int, float, str, bytes, list, tuple or dict",
      place.text(), type_of(value)));
}

struct ToPython {
  nb::object operator()(const Object::None&) const { return nb::none(); }
  nb::object operator()(bool value) const { return nb::bool_(value); }
  nb::object operator()(int64_t value) const { return nb::int_(value); }
  nb::object operator()(const Object::BigInteger& value) const {
    PyObject* made = PyLong_FromString(value.decimal.c_str(), nullptr, 10);
    if (made == nullptr) throw nb::python_error();
    return nb::steal(made);
  }
  nb::object operator()(double value) const { return nb::float_(value); }
  nb::object operator()(const std::string& value) const {
    return nb::str(value.data(), value.size());
  }
  nb::object operator()(const Bytes& value) const {
    return nb::bytes(value.data(), value.size());
  }
  nb::object operator()(const Object::List& value) const {
    return list_of(value.items);
  }
  nb::object operator()(const Object::Tuple& value) const {
    return nb::tuple(list_of(value.items));
  }
  nb::object operator()(const Object::Dict& value) const {
    nb::dict made;
    for (const auto& [key, item] : value.items) made[to_python(key)] = to_python(item);
    if (made.size() == value.items.size()) return made;
    throw Raised(
        unsupported("objects: a dict with keys that are equal in Python, such as 1 and "
                    "True; expected different keys"));
  }
  nb::object operator()(const Object::TensorName& value) const {
    return nb::cast(value);
  }
  static nb::list list_of(const std::vector<Object>& items) {
    nb::list made;
    for (const Object& item : items) made.append(to_python(item));
    return made;
  }
};

}  // namespace

Object to_object(nb::handle value, const char* what) {
  return convert(value, Place{.root = what});
}

nb::object to_python(const Object& object) {
  return std::visit(ToPython(), object.value());
}

namespace {

nb::bytes encode(nb::handle value) {
  const std::string text = unwrap(encode_object(to_object(value, "objects")));
  return nb::bytes(text.data(), text.size());
}

nb::object decode(const nb::bytes& text) {
  const ByteView view(static_cast<const std::byte*>(text.data()), text.size());
  return to_python(unwrap(decode_object(view, "objects")));
}

}  // namespace

void bind_object(nb::module_& m) {
  m.def("encode_objects", &encode, nb::arg("objects").none(),
        "A tree of plain values as bytes: what a save stores as objects.");
  m.def("decode_objects", &decode, nb::arg("data"),
        "The tree that encode_objects() was given. Runs no code that the bytes name.");
  using Name = Object::TensorName;
  nb::class_<Name>(
      m, "TensorName",
      "Stands for a tensor in a tree of objects, as in files that torch.save wrote.")
      .def(
          "__init__",
          [](Name* self, std::string name) { new (self) Name{std::move(name)}; },
          nb::arg("name"))
      .def_ro("name", &Name::name, "The tensor's name in the file.")
      .def(nb::self == nb::self, nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__hash__", [](const Name& self) { return nb::hash(nb::cast(self.name)); })
      .def("__repr__", [](const Name& self) {
        return fmt::format("TensorName({})", nb::repr(nb::cast(self.name)).c_str());
      });
}

}  // namespace holdfast::python
