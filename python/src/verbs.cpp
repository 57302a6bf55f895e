// Binds the command line, for the verbs that are functions of the package (verbs.py).
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <sstream>
#include <tuple>

#include "env.h"
#include "holdfast/cli/cli.h"
#include "holdfast/inspect/export.h"

namespace holdfast::python {

void bind_verbs(nb::module_& m) {
  m.def(
      "parse_byte_count",
      [](const std::string& text) { return unwrap(parse_byte_count(text)); },
      nb::arg("text"), "The number of bytes that a text such as \"500MB\" names.");
  m.def(
      "run_verb",
      [](const std::vector<std::string>& arguments) {
        const nb::gil_scoped_release unlocked;
        std::ostringstream out, err;
        const int code = run_cli(arguments, env(), out, err);
        return std::tuple(code, out.str(), err.str());
      },
      nb::arg("arguments"),
      "Runs `holdfast VERB ...` in this process. Returns the exit code, and what the\n"
      "command has printed to standard output and to standard error.");
}

}  // namespace holdfast::python
