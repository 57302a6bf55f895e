// Turns an Error into a Python exception:
//
//   kInvalid             ValueError
//   kIo                  OSError
//   kDenied              PermissionError, which is an OSError
//   kNoSpace             OSError with errno ENOSPC
//   kTimeout             TimeoutError
//   kUnsupported         NotImplementedError
//   kNotFound, kCorrupt, kConflict, kUnavailable
//                        a class of its own under holdfast.Error (holdfast/errors.py)
//
// A binding calls unwrap() on what the library returns. Needs the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <cerrno>
#include <exception>

#include "holdfast/base/result.h"

namespace holdfast::python {

namespace nb = nanobind;

// The C++ exception that carries an Error from a binding to nanobind, which catches it
// and sets the Python exception.
class Raised : public std::exception {
 public:
  explicit Raised(Error error) : error_(std::move(error)) {}
  const Error& error() const { return error_; }
  const char* what() const noexcept override { return error_.message().c_str(); }

 private:
  Error error_;
};

template <typename T>
T unwrap(Result<T> result) {
  if (!result.ok()) throw Raised(std::move(result).error());
  return std::move(result).value();
}

inline void unwrap(Result<void> result) {
  if (!result.ok()) throw Raised(std::move(result).error());
}

// A message as a str. Messages quote names and bytes of files, which need not be UTF-8:
// such bytes are written as \xff.
inline nb::object text_of_message(const std::string& message) {
  PyObject* const text = PyUnicode_DecodeUTF8(
      message.data(), static_cast<Py_ssize_t>(message.size()), "backslashreplace");
  if (text == nullptr) nb::raise_python_error();
  return nb::steal(text);
}

// The class `name` of holdfast.errors. That Python module is imported only here, so that
// the native module can be imported without it.
inline nb::object own_error(const char* name) {
  return nb::module_::import_("holdfast.errors").attr(name);
}

inline nb::object class_of_error(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalid: return nb::borrow(PyExc_ValueError);
    case ErrorCode::kDenied: return nb::borrow(PyExc_PermissionError);
    case ErrorCode::kTimeout: return nb::borrow(PyExc_TimeoutError);
    case ErrorCode::kUnsupported: return nb::borrow(PyExc_NotImplementedError);
    case ErrorCode::kNotFound: return own_error("NotFoundError");
    case ErrorCode::kCorrupt: return own_error("CorruptError");
    case ErrorCode::kConflict: return own_error("ConflictError");
    case ErrorCode::kUnavailable: return own_error("UnavailableError");
    case ErrorCode::kIo:
    case ErrorCode::kNoSpace: break;
  }
  return nb::borrow(PyExc_OSError);
}

inline void set_python_error(const Error& error) {
  nb::object value = text_of_message(error.message());
  if (error.code() == ErrorCode::kNoSpace) value = nb::make_tuple(ENOSPC, value);
  PyErr_SetObject(class_of_error(error.code()).ptr(), value.ptr());
}

inline void register_errors() {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Raised& raised) {
      set_python_error(raised.error());
    }
  });
}

}  // namespace holdfast::python
