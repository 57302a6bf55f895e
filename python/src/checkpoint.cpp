// Python face of checkpoint/: names, types and docs only.
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "holdfast/checkpoint/fetch.h"
#include "object.h"
#include "restored.h"
#include "saver.h"
#include "tier.h"

namespace holdfast::python {
namespace {

using Texts = std::map<std::string, std::string>;
using Numbers = std::map<std::string, double>;

Keep make_keep(int64_t last, int64_t every, int64_t best, const std::string& metric,
               const std::string& order) {
  if (last < 0 || every < 0 || best < 0) {
    throw Raised(
        invalid("keep: last {}, every {}, best {}, want 0 or more", last, every, best));
  }
  if (best > 0 && metric.empty()) throw Raised(invalid("keep: best without a metric"));
  if (order != "min" && order != "max") {
    throw Raised(invalid("keep: order \"{}\", want min or max", order));
  }
  return {.last = last,
          .every = every,
          .best = best,
          .metric = metric,
          .order = order == "min" ? Best::kMin : Best::kMax};
}

void open_saver(HeldSaver* self, const Path& path, std::optional<Keep> keep,
                int64_t ring, const std::string& backpressure, int in_flight,
                bool read_back, bool incremental, int compress, int64_t space_reserve,
                bool direct, const std::optional<std::string>& fail_after,
                Texts software, const std::vector<HeldTier>& tiers,
                bool allow_unreachable_tiers) {
  SaverOptions options{.ring_bytes = ring,
                       .in_flight = in_flight,
                       .backpressure = backpressure_of(backpressure),
                       .keep = keep,
                       .tiers = tier_copies_of(tiers, keep),
                       .allow_unreachable_tiers = allow_unreachable_tiers,
                       .incremental = incremental,
                       .compress = compress,
                       .read_back = read_back,
                       .space_reserve = space_reserve,
                       .direct = direct,
                       .fail_after = fail_after_of(fail_after),
                       .job = scheduler_job(variable),
                       .software = std::move(software)};
  new (self) HeldSaver(path, std::move(options));
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
  nb::class_<Durable>(m, "Durable", "Where a checkpoint is safe.")
      .def_ro("folder", &Durable::folder, "The step's folder.")
      .def_ro("tier", &Durable::tier, "What keeps it: \"disk\".");
  nb::class_<HeldHandle>(m, "SaveHandle", "A save under way, with its two promises.")
      .def("captured", &captured, nb::arg("timeout") = nb::none(),
           "Waits until the arrays may change again; TimeoutError after `timeout` s.")
      .def("durable", &durable, nb::arg("timeout") = nb::none(),
           "Waits until no crash can lose the checkpoint; raises why there is none.\n\n"
           "TimeoutError after `timeout` seconds, ConflictError for a save that was\n"
           "skipped because others were under way.")
      .def_prop_ro("is_captured", &HeldHandle::is_captured,
                   "True if the arrays may change.")
      .def_prop_ro(
          "is_done", [](const HeldHandle& self) { return self.handle.is_done(); },
          "True if it is durable or has failed.")
      .def_prop_ro(
          "is_torn", [](const HeldHandle& self) { return self.handle.is_torn(); },
          "True if it has failed, and another one is worth making at once.");
}

void bind_tier(nb::module_& m) {
  nb::class_<HeldTier>(m, "Tier", "A further place that keeps copies of checkpoints.")
      .def(
          "__init__",
          [](HeldTier* self, const std::string& place, int64_t every,
             std::optional<int64_t> keep) {
            new (self) HeldTier(make_tier(place, every, keep));
          },
          nb::arg("place"), nb::kw_only(), nb::arg("every") = 1,
          nb::arg("keep") = nb::none(),
          "A folder, or \"s3://bucket/prefix\" with the keys and the server that the\n"
          "AWS_ variables of the environment name. It gets every n-th step and keeps "
          "the\n"
          "`keep` newest ones; None: what the run directory's rules keep of them.")
      .def_prop_ro(
          "name", [](const HeldTier& self) { return self.tier->name(); }, "Its place.");
}

void bind_saver(nb::module_& m) {
  nb::class_<Keep>(m, "Keep",
                   "Which steps are kept: the union of its rules, and what is pinned.")
      .def(
          "__init__",
          [](Keep* self, int64_t last, int64_t every, int64_t best,
             const std::string& metric, const std::string& order) {
            new (self) Keep(make_keep(last, every, best, metric, order));
          },
          nb::arg("last") = 3, nb::kw_only(), nb::arg("every") = 0, nb::arg("best") = 0,
          nb::arg("metric") = "", nb::arg("order") = "min",
          "The `last` newest ones, those whose number is a multiple of `every`, and "
          "the\n"
          "`best` by a metric that was saved with them (`order` \"min\" or \"max\"), "
          "with\n"
          "as many, the newest, of those that were saved without it.");
  nb::class_<HeldSaver>(m, "Saver", "The native side of holdfast.Saver.")
      .def("__init__", &open_saver, nb::arg("path"), nb::kw_only(),
           nb::arg("keep").none(), nb::arg("ring"), nb::arg("backpressure"),
           nb::arg("in_flight"), nb::arg("read_back"), nb::arg("incremental"),
           nb::arg("compress"), nb::arg("space_reserve"), nb::arg("direct"),
           nb::arg("fail_after") = nb::none(), nb::arg("software"), nb::arg("tiers"),
           nb::arg("allow_unreachable_tiers") = false)
      .def("save", &save, nb::arg("step"), nb::arg("arrays"), nb::arg("owners").none(),
           nb::arg("objects").none(), nb::arg("rank_objects").none(),
           nb::arg("metrics"), nb::arg("parallel"), nb::arg("parent"),
           "Begins to save; `owners` is kept until the arrays are captured.")
      .def("close", &HeldSaver::close, nb::arg("timeout") = nb::none(),
           "Waits until all is durable and lets go of the run.")
      .def("take_warnings", &HeldSaver::take_warnings,
           "What went wrong since the last call and stopped nothing.")
      .def("take_notes", &HeldSaver::take_notes,
           "What was done since the last call and should not go unsaid.")
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
          "folder", [](const R& r) { return r.state.folder; }, "Its folder.")
      .def_prop_ro(
          "tier", [](const R& r) { return r.state.tier; },
          "The tier that it was copied from; \"\" if the run directory had it.")
      .def_ro("objects", &R::objects, "What was saved as objects; None if nothing was.",
              nb::for_getter(nb::sig("def objects(self) -> typing.Any")))
      .def_ro("rank_objects", &R::rank_objects, "The same, of this rank alone.",
              nb::for_getter(nb::sig("def rank_objects(self) -> typing.Any")))
      .def_prop_ro(
          "metrics", [](const R& r) { return r.state.manifest.metrics; },
          "The metrics that were saved with it.")
      .def_prop_ro(
          "skipped", [](const R& r) { return pairs_of(r.state.skipped); },
          "Newer steps that were passed over: (folder, why).")
      .def_prop_ro(
          "unused", [](const R& r) { return r.state.unused; },
          "Tensors of the step that were not asked for.")
      .def_prop_ro(
          "unverified", [](const R& r) { return r.state.unverified; },
          "Tensors that were read in part, so that nobody could check them.")
      .def_prop_ro(
          "needed", [](const R& r) { return r.state.needed; }, "Bytes of the arrays.")
      .def_prop_ro(
          "read", [](const R& r) { return r.state.read; },
          "Bytes that were read for them.");
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
      "True for a place in an object store, False for a local path. ValueError for an\n"
      "empty name and for a scheme other than s3://.");
}

}  // namespace holdfast::python
