// Bindings of plan/ and of models/: names, types and docs only.
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "env.h"
#include "errors.h"
#include "holdfast/base/report_json.h"
#include "holdfast/models/families.h"
#include "holdfast/models/resize.h"
#include "holdfast/plan/plan_json.h"

namespace holdfast::python {
namespace {

// What plan_model() and plan_layouts() return to Python.
struct Planned {
  Plan plan;
  std::optional<Placement> placement;
  std::string json;
};

std::string report_of(const auto&... values) {
  return report_json([&](FieldWriter& field) { put_members(field, values...); },
                     kCompactJson);
}

Planned plan_model(const ResizeWords& words) {
  const nb::gil_scoped_release unlocked;
  const ResizeRequest request = unwrap(read_resize(env(), words));
  Resize resize = unwrap(plan_resize(request));
  std::string json = report_of(request, resize);
  return {std::move(resize.plan), std::move(resize.placement), std::move(json)};
}

Planned plan_layouts(const Path& source, const Path& target) {
  const nb::gil_scoped_release unlocked;
  LayoutPlan made = unwrap(plan_layout_files(env(), source, target));
  std::string json = report_of(made.plan, made.topology);
  return {std::move(made.plan), std::nullopt, std::move(json)};
}

void bind_figures(nb::module_& m) {
  nb::class_<Figures>(
      m, "Figures", "What a plan moves, in bytes; needed = in_place + copied + moved.")
      .def_ro("needed", &Figures::needed,
              "All bytes of the target layout, with replicas.")
      .def_ro("in_place", &Figures::in_place,
              "Bytes that their holder has already, at the same address.")
      .def_ro("copied", &Figures::copied,
              "Bytes that their holder has already, at another address.")
      .def_ro("moved", &Figures::moved, "Bytes that come from another holder.")
      .def_ro("moved_bound", &Figures::moved_bound, "The least that any plan can move.")
      .def_ro("crossing", &Figures::crossing,
              "The part of `moved` that goes from one host to another.")
      .def_ro("crossing_bound", &Figures::crossing_bound,
              "The least that any plan can move between hosts.")
      .def_ro("forwarded", &Figures::forwarded,
              "The part of `moved` that comes from a holder which received it in the\n"
              "same plan and passes it on.")
      .def_ro("egress_ns", &Figures::egress_ns,
              "How long the busiest source sends at its bandwidth, in nanoseconds.")
      .def_ro("egress_bound_ns", &Figures::egress_bound_ns,
              "The least `egress_ns` that any plan can have.")
      .def_ro("extra_memory", &Figures::extra_memory,
              "The most extra memory that a holder needs if old pieces are kept until\n"
              "the end.")
      .def_ro("extra_memory_by_tensor", &Figures::extra_memory_by_tensor,
              "The most extra memory that a holder needs if tensors are exchanged one\n"
              "by one.")
      .def("__repr__", [](const Figures& self) {
        return fmt::format("Figures({})", to_json_text(self, kCompactJson));
      });
}

}  // namespace

void bind_plan(nb::module_& m) {
  bind_figures(m);
  nb::class_<Placement>(m, "Placement", "Which device takes which position.")
      .def_ro("device_of_position", &Placement::device_of_position,
              "The device of each position.")
      .def_ro("released", &Placement::released, "Devices that get no position.")
      .def_ro("kept", &Placement::kept,
              "Bytes that the positions find on their devices already.")
      .def_ro("kept_bound", &Placement::kept_bound,
              "No placement keeps more, even if tensor-parallel groups are torn apart.")
      .def_ro("exact", &Placement::exact, "True if no allowed placement is better.");
  nb::class_<Planned>(m, "Plan", "How one layout becomes another.")
      .def_prop_ro(
          "figures", [](const Planned& self) { return self.plan.figures; },
          "How many bytes are moved, and the lower bounds.")
      .def_ro("placement", &Planned::placement,
              "The Placement if place=True was passed, else None.")
      .def_prop_ro(
          "moves", [](const Planned& self) { return self.plan.moves.size(); },
          "The number of moves.")
      .def_ro("json", &Planned::json, "The text that `holdfast plan --json` prints.");
  m.def(
      "plan_model",
      [](std::string model, std::string source, std::string target, std::string hosts,
         std::string training, std::string speeds, bool place,
         std::string description) {
        return plan_model({.model = std::move(model),
                           .from = std::move(source),
                           .to = std::move(target),
                           .hosts = std::move(hosts),
                           .training = std::move(training),
                           .speeds = std::move(speeds),
                           .place = place,
                           .description = std::move(description)});
      },
      nb::arg("model"), nb::arg("source"), nb::arg("target"), nb::arg("hosts"),
      nb::arg("training"), nb::arg("speeds"), nb::arg("place"), nb::arg("description"),
      "The plan between two parallel configurations of a model: a built-in name, or\n"
      "the path of a config.json or of its folder. `description` is a model as JSON\n"
      "instead. Empty texts mean the defaults.");
  m.def("plan_layouts", &plan_layouts, nb::arg("source"), nb::arg("target"),
        "The plan between the layouts of two files.");
  m.def("model_names", &model_names, "The names of the built-in models.");
}

}  // namespace holdfast::python
