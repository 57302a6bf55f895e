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

// Raises the class `name` of holdfast.errors. That Python module is imported only here,
// so that the native module can be imported without it.
inline void set_own_error(const char* name, const char* message) {
  PyErr_SetString(nb::module_::import_("holdfast.errors").attr(name).ptr(), message);
}

inline void set_python_error(const Error& error) {
  const char* message = error.message().c_str();
  switch (error.code()) {
    case ErrorCode::kInvalid: return PyErr_SetString(PyExc_ValueError, message);
    case ErrorCode::kDenied: return PyErr_SetString(PyExc_PermissionError, message);
    case ErrorCode::kIo: return PyErr_SetString(PyExc_OSError, message);
    case ErrorCode::kTimeout: return PyErr_SetString(PyExc_TimeoutError, message);
    case ErrorCode::kUnsupported:
      return PyErr_SetString(PyExc_NotImplementedError, message);
    case ErrorCode::kNoSpace:
      return PyErr_SetObject(PyExc_OSError, nb::make_tuple(ENOSPC, message).ptr());
    case ErrorCode::kNotFound: return set_own_error("NotFoundError", message);
    case ErrorCode::kCorrupt: return set_own_error("CorruptError", message);
    case ErrorCode::kConflict: return set_own_error("ConflictError", message);
    case ErrorCode::kUnavailable: return set_own_error("UnavailableError", message);
  }
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
