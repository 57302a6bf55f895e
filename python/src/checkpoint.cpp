// Bindings of checkpoint/: names, types and docs only.
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "holdfast/checkpoint/fetch.h"
#include "object.h"
#include "options.h"
#include "restored.h"
#include "saver.h"
#include "tier.h"

namespace holdfast::python {
namespace {

using Numbers = std::map<std::string, double>;

Keep make_keep(int64_t last, int64_t every, int64_t best, const std::string& metric,
               const std::string& order, bool only_temporary) {
  if (last < 0 || every < 0 || best < 0) {
    throw Raised(invalid("keep: last {}, every {}, best {}; expected 0 or more", last,
                         every, best));
  }
  if (best > 0 && metric.empty())
    throw Raised(invalid("keep: best without a metric; expected its name"));
  if (order != "min" && order != "max") {
    throw Raised(invalid("keep: order \"{}\"; expected min or max", order));
  }
  return {.last = last,
          .every = every,
          .best = best,
          .metric = metric,
          .order = order == "min" ? Best::kMin : Best::kMax,
          .only_temporary = only_temporary};
}

HeldHandle save(HeldSaver& self, int64_t step, const std::vector<Array>& arrays,
                nb::object owners, nb::object objects, nb::object rank_objects,
                Numbers metrics, std::string parallel, std::string parent) {
  SaveRequest request{.step = step,
                      .objects = {.of_all = to_object(objects, "objects"),
                                  .of_rank = to_object(rank_objects, "rank_objects")},
                      .metrics = std::move(metrics),
                      .parallel = std::move(parallel),
                      .parent = std::move(parent)};
  return self.save(std::move(request), arrays, std::move(owners));
}

void captured(const HeldHandle& self, std::optional<double> timeout) {
  unwrap(wait_interruptibly(
      timeout, [&](Instant until) { return self.handle.captured(until); },
      [&] { return self.is_captured(); }));
}

Durable durable(const HeldHandle& self, std::optional<double> timeout) {
  Result<Durable> outcome = wait_interruptibly(
      timeout, [&](Instant until) { return self.handle.durable(until); },
      [&] { return self.handle.is_done(); });
  static_cast<void>(self.is_captured());
  return unwrap(std::move(outcome));
}

HeldRestored restore_arrays(const Path& path, const std::vector<Array>& into,
                            std::optional<int64_t> step, bool verify_all,
                            const std::vector<HeldTier>& tiers,
                            bool allow_unreachable_tiers) {
  RestoredState state = [&] {
    const nb::gil_scoped_release unlocked;
    const LocalState local = unwrap(make_local_state(pieces_of(into)));
    unwrap(check_no_overlap(local));
    return unwrap(restore(env(), path, local, nullptr,
                          {.step = step,
                           .verify_all = verify_all,
                           .tiers = storage_of(tiers),
                           .allow_unreachable_tiers = allow_unreachable_tiers}));
  }();
  return HeldRestored::of(std::move(state));
}

void bind_handle(nb::module_& m) {
  nb::class_<Durable>(m, "Durable", "Where a durable checkpoint is.")
      .def_ro("folder", &Durable::folder, "The step's folder.")
      .def_ro("tier", &Durable::tier, "What keeps the checkpoint: \"disk\".");
  nb::class_<HeldHandle>(m, "SaveHandle",
                         "A save under way. It promises to be captured, then durable.")
      .def("captured", &captured, nb::arg("timeout") = nb::none(),
           "Waits until the arrays may change again.\n\n"
           "Raises TimeoutError after `timeout` seconds.")
      .def("durable", &durable, nb::arg("timeout") = nb::none(),
           "Waits until no crash can lose the checkpoint.\n\n"
           "If the save fails, raises its error. Raises TimeoutError after `timeout`\n"
           "seconds, and ConflictError if the save was skipped because others were\n"
           "under way.")
      .def_prop_ro("is_captured", &HeldHandle::is_captured,
                   "True if the arrays may change.")
      .def_prop_ro(
          "is_done", [](const HeldHandle& self) { return self.handle.is_done(); },
          "True if the save is durable or has failed.")
      .def_prop_ro(
          "is_torn", [](const HeldHandle& self) { return self.handle.is_torn(); },
          "True if the save was dropped because its tensors changed while they were\n"
          "copied. Another save is worth making at once.");
}

void bind_tier(nb::module_& m) {
  nb::class_<HeldTier>(m, "Tier", "A place that keeps copies of checkpoints.")
      .def(
          "__init__",
          [](HeldTier* self, const std::string& place, int64_t every,
             std::optional<int64_t> keep) {
            new (self) HeldTier(make_tier(place, every, keep));
          },
          nb::arg("place"), nb::kw_only(), nb::arg("every") = 1,
          nb::arg("keep") = nb::none(),
          "`place` is a folder or \"s3://bucket/prefix\"; the AWS_ variables of the\n"
          "environment name the keys and the server. The tier gets a copy of every\n"
          "`every`-th step and keeps the `keep` newest ones. With None it keeps those\n"
          "that the rules of the run directory keep.")
      .def_prop_ro(
          "name", [](const HeldTier& self) { return self.tier->name(); },
          "The place of the tier.");
}

void bind_saver(nb::module_& m) {
  nb::class_<Keep>(m, "Keep",
                   "Which steps are kept: those that one of the rules keeps, and all\n"
                   "pinned steps.")
      .def(
          "__init__",
          [](Keep* self, int64_t last, int64_t every, int64_t best,
             const std::string& metric, const std::string& order, bool only_temporary) {
            new (self)
                Keep(make_keep(last, every, best, metric, order, only_temporary));
          },
          nb::arg("last") = 3, nb::kw_only(), nb::arg("every") = 0, nb::arg("best") = 0,
          nb::arg("metric") = "", nb::arg("order") = "min",
          nb::arg("only_temporary") = false,
          "Keeps the `last` newest steps, those whose number is a multiple of "
          "`every`,\n"
          "and the `best` ones by a metric that was saved with them (`order` \"min\" "
          "or\n"
          "\"max\"). Of the steps that were saved without the metric, the `best` "
          "newest\n"
          "ones are kept as well. With `only_temporary`, only steps are removed that "
          "the\n"
          "schedule has saved under such a rule.")
      .def_ro("best", &Keep::best, "How many steps are kept by the metric.")
      .def_ro("metric", &Keep::metric, "The name of the metric.");
  nb::class_<HeldSaver>(m, "Saver", "The native side of holdfast.Saver.")
      .def(
          "__init__",
          [](HeldSaver* self, const Path& path, const nb::dict& options) {
            new (self) HeldSaver(path, saver_options_of(options));
          },
          nb::arg("path"), nb::arg("options"),
          "`options` are those that python/src/options.cpp reads.")
      .def("save", &save, nb::arg("step"), nb::arg("arrays"), nb::arg("owners").none(),
           nb::arg("objects").none(), nb::arg("rank_objects").none(),
           nb::arg("metrics"), nb::arg("parallel"), nb::arg("parent"),
           "Begins to save. Keeps `owners` alive until the arrays are captured.")
      .def("close", &HeldSaver::close, nb::arg("timeout") = nb::none(),
           "Waits until all saves are durable, and gives up ownership of the run.")
      .def("take_warnings", &HeldSaver::take_warnings,
           "What went wrong since the last call without stopping the program, a\n"
           "sentence each.")
      .def("take_notes", &HeldSaver::take_notes,
           "What was done since the last call that a person should know, a sentence\n"
           "each.")
      .def_prop_ro("path", &HeldSaver::run, "The run directory.");
}

}  // namespace

void bind_checkpoint(nb::module_& m) {
  bind_handle(m);
  bind_tier(m);
  bind_saver(m);
  using R = HeldRestored;
  nb::class_<R>(m, "Restored", "What a restore found.")
      .def_prop_ro(
          "step", [](const R& r) { return r.state.step; }, "The step.")
      .def_prop_ro(
          "folder", [](const R& r) { return r.state.folder; }, "The step's folder.")
      .def_prop_ro(
          "tier", [](const R& r) { return r.state.tier; },
          "The tier that the step was copied from; \"\" if the run directory had it.")
      .def_prop_ro(
          "in_memory", [](const R& r) { return r.state.in_memory; },
          "True if the step was left in memory by an earlier process, so that it is not\n"
          "durable.")
      .def_ro(
          "objects", &R::objects,
          "The saved objects that are the same on all ranks; None if there are none.",
          nb::for_getter(nb::sig("def objects(self) -> typing.Any")))
      .def_ro("rank_objects", &R::rank_objects,
              "The objects that this rank saved for itself; None if there are none.",
              nb::for_getter(nb::sig("def rank_objects(self) -> typing.Any")))
      .def_prop_ro(
          "metrics", [](const R& r) { return r.state.manifest.metrics; },
          "The metrics that were saved with the step.")
      .def_prop_ro(
          "skipped", [](const R& r) { return pairs_of(r.state.skipped); },
          "Newer steps that could not be used, as (folder, why) pairs.")
      .def_prop_ro(
          "unused", [](const R& r) { return r.state.unused; },
          "Tensors of the step that were not asked for.")
      .def_prop_ro(
          "unverified", [](const R& r) { return r.state.unverified; },
          "Tensors of which only a part was read, so that their seal was not checked.")
      .def_prop_ro(
          "mended", [](const R& r) { return r.state.mended; },
          "Sentences about words that were damaged before they were written, and that "
          "are\nmended in memory now.")
      .def_prop_ro(
          "needed", [](const R& r) { return r.state.needed; },
          "The size of the arrays in bytes.")
      .def_prop_ro(
          "read", [](const R& r) { return r.state.read; },
          "How many bytes were read to fill the arrays.");
  m.def("restore", &restore_arrays, nb::arg("path"), nb::arg("into"),
        nb::arg("step").none(), nb::arg("verify_all"),
        nb::arg("tiers") = std::vector<HeldTier>(),
        nb::arg("allow_unreachable_tiers") = false,
        "The native side of holdfast.restore.");
  m.def(
      "is_object_path",
      [](const std::string& place) {
        unwrap(check_place(place));
        return is_object_path(place);
      },
      nb::arg("place"),
      "True for a place in an object store, False for a local path. Raises ValueError\n"
      "for an empty name and for a scheme other than s3://.");
}

}  // namespace holdfast::python
