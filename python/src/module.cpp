// The Python module holdfast._native. Each part has one binding file, which has names,
// types and docs only.
#include <nanobind/stl/string.h>

#include "errors.h"

namespace holdfast::python {

void bind_state(nb::module_& m);
void bind_sample_sequence(nb::module_& m);
void bind_mixture(nb::module_& m);
void bind_corpus(nb::module_& m);
void bind_plan(nb::module_& m);
void bind_object(nb::module_& m);
void bind_array(nb::module_& m);
void bind_checkpoint(nb::module_& m);
void bind_files(nb::module_& m);
void bind_pieces(nb::module_& m);
void bind_job(nb::module_& m);
void bind_recovery(nb::module_& m);
void bind_call_log(nb::module_& m);
void bind_transport(nb::module_& m);
void bind_exchange(nb::module_& m);
void bind_heartbeat(nb::module_& m);
void bind_freeze_window(nb::module_& m);
void bind_element_reader(nb::module_& m);
void bind_corruption(nb::module_& m);
void bind_statistics(nb::module_& m);
void bind_verbs(nb::module_& m);

namespace {

// Raises an error that is known by the name of its code, as the command line prints it.
void raise_error(const std::string& code, const std::string& message) {
  for (int i = 0; i <= static_cast<int>(ErrorCode::kIo); ++i) {
    const auto candidate = static_cast<ErrorCode>(i);
    if (name_of(candidate) == code) throw Raised(Error(candidate, message));
  }
  throw Raised(invalid("error code: \"{}\"; expected a known one", code));
}

#ifdef NDEBUG
constexpr bool kChecked = false;
#else
constexpr bool kChecked = true;
#endif

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "The native side of Holdfast; import holdfast instead.";
  m.attr("version") = HOLDFAST_VERSION;
  m.attr("_checked") = kChecked;
  // nanobind reports objects that daemon threads still hold at exit as leaks. Users
  // cannot help that, so only checked builds report leaks.
  nb::set_leak_warnings(kChecked);
  register_errors();
  bind_state(m);
  bind_sample_sequence(m);
  bind_mixture(m);
  bind_corpus(m);
  bind_plan(m);
  bind_object(m);
  bind_array(m);
  bind_checkpoint(m);
  bind_files(m);
  bind_transport(m);
  bind_pieces(m);
  bind_job(m);
  bind_recovery(m);
  bind_call_log(m);
  bind_exchange(m);
  bind_heartbeat(m);
  bind_freeze_window(m);
  bind_element_reader(m);
  bind_corruption(m);
  bind_statistics(m);
  bind_verbs(m);
  m.def("_raise_error", &raise_error, nb::arg("code"), nb::arg("message"));
}

}  // namespace holdfast::python
