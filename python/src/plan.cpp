// Bindings of plan/ and of models/: names, types and docs only.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "errors.h"
#include "holdfast/base/json.h"
#include "holdfast/models/families.h"
#include "holdfast/models/hf_config.h"
#include "holdfast/models/resize.h"
#include "holdfast/plan/plan_json.h"
#include "holdfast/state/collection_json.h"

namespace holdfast::python {
namespace {

// What plan_model() and plan_layouts() return to Python.
struct Planned {
  Plan plan;
  std::optional<Placement> placement;
  std::string json;
};

Planned plan_model(const std::string& model, const std::string& config_where,
                   const std::string& source, const std::string& target,
                   const std::string& hosts, const std::string& training, bool place) {
  ResizeRequest request{
      .model = unwrap(config_where.empty()
                          ? find_model(model)
                          : model_from_config(unwrap(parse_json(model, config_where)),
                                              config_where)),
      .from = unwrap(parse_parallel(source).within("source")),
      .to = unwrap(parse_parallel(target).within("target")),
      .place = place};
  if (!training.empty()) request.training = unwrap(find_training(training));
  if (!hosts.empty()) request.hosts = unwrap(parse_hosts(hosts));
  const nb::gil_scoped_release unlocked;
  Resize resize = unwrap(plan_resize(request));
  std::string json = to_json(request, resize).dump();
  return {std::move(resize.plan), std::move(resize.placement), std::move(json)};
}

Planned plan_layouts(const std::string& source, const std::string& source_where,
                     const std::string& target, const std::string& target_where) {
  const nb::gil_scoped_release unlocked;
  Topology topology;
  const auto read = [&](const std::string& text, const std::string& where) {
    return unwrap(
        collection_from_json(unwrap(parse_json(text, where)), where, topology));
  };
  const Collection from = read(source, source_where);
  const Collection to = read(target, target_where);
  Plan made = unwrap(plan(from, to, topology));
  std::string json = to_json(made, topology).dump();
  return {std::move(made), std::nullopt, std::move(json)};
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
        return fmt::format("Figures({})", to_json(self).dump());
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
      .def_ro(
          "kept_bound", &Placement::kept_bound,
          "The most that `kept` could be if tensor-parallel groups need not stay on\n"
          "one host.")
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
  m.def("plan_model", &plan_model, nb::arg("model"), nb::arg("config_where"),
        nb::arg("source"), nb::arg("target"), nb::arg("hosts"), nb::arg("training"),
        nb::arg("place"),
        "The plan between two parallel configurations of a model.\n\n"
        "`model` is the name of a built-in model or, if `config_where` is not empty, "
        "the\n"
        "text of the config.json at that place.");
  m.def("plan_layouts", &plan_layouts, nb::arg("source"), nb::arg("source_where"),
        nb::arg("target"), nb::arg("target_where"),
        "The plan between two layouts, given as JSON text.");
  m.def("model_names", &model_names, "The names of the built-in models.");
}

}  // namespace holdfast::python
