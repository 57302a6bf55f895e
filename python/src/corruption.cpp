// Bindings of corruption/: names, types and docs only.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "errors.h"
#include "holdfast/corruption/live_contents.h"
#include "holdfast/corruption/make_plan.h"

namespace holdfast::python {
namespace {

using Names = std::vector<std::string>;

Finite parse_finite(const std::string& text) {
  if (text == "any") return Finite::kAny;
  if (text == "must") return Finite::kMust;
  if (text == "never") return Finite::kNever;
  throw Raised(invalid("finite: \"{}\"; expected any, must or never", text));
}

PlanRequest request_of(const nb::dict& given) {
  PlanRequest request{.count = nb::cast<int64_t>(given["flips"]),
                      .seed = nb::cast<int64_t>(given["seed"]),
                      .trial = nb::cast<int64_t>(given["trial"])};
  request.sites.tensors = nb::cast<Names>(given["tensors"]);
  for (const std::string& role : nb::cast<Names>(given["roles"])) {
    request.sites.roles.push_back(unwrap(parse_role(role)));
  }
  request.sites.layers = nb::cast<Names>(given["layers"]);
  request.sites.bits = unwrap(parse_bit_choice(nb::cast<std::string>(given["bits"])));
  request.rate = nb::cast<std::optional<double>>(given["rate"]);
  request.finite = parse_finite(nb::cast<std::string>(given["finite"]));
  return request;
}

nb::bytes to_python(const PlannedFlip& flip, const ElementBits& bits) {
  return nb::bytes(bits.data(), static_cast<size_t>(bytes_of(flip.dtype)));
}

}  // namespace

void bind_corruption(nb::module_& m) {
  nb::class_<PlannedFlip>(m, "PlannedFlip", "The change of one element.")
      .def_ro("tensor", &PlannedFlip::tensor, "The name of the tensor.")
      .def_ro("element", &PlannedFlip::element, "The element, in row-major order.")
      .def_ro("dtype", &PlannedFlip::dtype, "The type of the element.")
      .def_prop_ro(
          "before",
          [](const PlannedFlip& self) { return to_python(self, self.before); },
          "The bytes of the element before the change, little-endian.")
      .def_prop_ro(
          "after", [](const PlannedFlip& self) { return to_python(self, self.after); },
          "The bytes of the element after the change.")
      .def("__str__", [](const PlannedFlip& self) { return describe(self); });
  m.def(
      "decode_flip_plan",
      [](const std::string& json, const std::string& where) {
        const FlipPlan plan = unwrap(decode_flip_plan(json, where));
        if (plan.bytes.empty()) return plan.flips;
        throw Raised(invalid("{}: changes bytes of files; expected flips of tensors",
                             where));
      },
      nb::arg("json"), nb::arg("where"),
      "The flips of a plan. `where` names the plan in messages.");
  m.def(
      "make_flip_plan",
      [](const LocalPieces& pieces, const nb::dict& request) {
        PlanRequest wanted = request_of(request);
        const nb::gil_scoped_release unlocked;
        const Contents contents = unwrap(live_contents(pieces));
        wanted.roles = std::make_shared<const Roles>(find_roles(contents, true));
        return encode_flip_plan(unwrap(make_plan(contents, wanted)));
      },
      nb::arg("pieces"), nb::arg("request"),
      "A flip plan for tensors in memory, as JSON. `request` has the options of\n"
      "`holdfast inject`.");
}

}  // namespace holdfast::python
