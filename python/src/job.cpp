// Bindings of job/: names, types and docs only.
#include "holdfast/job/job.h"

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "held_job.h"
#include "holdfast/checkpoint/step_files.h"
#include "restored.h"
#include "tier.h"
#include "transport.h"

namespace holdfast::python {
namespace {

using Texts = std::map<std::string, std::string>;
using Numbers = std::map<std::string, double>;

Guard guard_of(const std::string& name) {
  if (name == "off") return Guard::kOff;
  if (name == "sample") return Guard::kSample;
  if (name == "full") return Guard::kFull;
  throw Raised(invalid("guard: \"{}\"; expected sample, full or off", name));
}

Duration seconds(double value, const char* what) {
  if (!(value >= 0 && value < 1e9)) {
    throw Raised(invalid("{}: {} seconds; expected 0 or more, below 1e9", what, value));
  }
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(value));
}

// The piece for an array that is the part `box` of a tensor with this shape.
LocalPiece part_of(const Array& array, const std::vector<int64_t>& shape,
                   const Box& box, bool at_once) {
  LocalPiece piece = array.piece;
  piece.box = box;
  piece.at_once = at_once;
  Tensor tensor = *array.piece.tensor;
  tensor.shape = unwrap(Shape::create(shape).within(tensor.name));
  if (box.shape() != array.piece.tensor->shape || !box.inside(tensor.shape)) {
    throw Raised(
        invalid("{}: an array of shape {} for the box {} of {}; expected the "
                "shape of the box, and a box inside the tensor",
                tensor.name, to_string(array.piece.tensor->shape), to_string(box),
                to_string(tensor.shape)));
  }
  piece.tensor = std::make_shared<const Tensor>(std::move(tensor));
  return piece;
}

// Python passes the handle of a stream as a number.
CudaStream stream_of(uint64_t handle) {
  return reinterpret_cast<CudaStream>(handle);  // NOLINT
}

SchedulerOptions schedule_of(const std::string& every, const nb::dict& given) {
  SchedulerOptions options{.every = unwrap(parse_cadence(every))};
  const auto take = [&]<typename T>(const char* name, T& into) {
    if (!given.contains(name) || given[name].is_none()) return;
    if (!nb::try_cast(given[name], into)) {
      throw Raised(invalid(
          "{}: a value of the wrong type; expected a number, for durable_steps and "
          "milestones a list of numbers, for objective text",
          name));
    }
  };
  std::optional<std::string> objective;
  take("objective", objective);
  if (objective.has_value()) options.objective = unwrap(parse_objective(*objective));
  take("mtbf", options.mtbf);
  take("budget", options.budget);
  take("total_steps", options.total_steps);
  take("slack", options.slack);
  take("stop_rate", options.stop_rate);
  take("deadline", options.deadline);
  take("durable_steps", options.durable_steps);
  take("milestones", options.milestones);
  return options;
}

// Python has no options struct: the keywords are the options.
void open_job(HeldJob* self, const Path& path, nb::object transport,
              const std::string& every, double grace, bool signals,
              std::optional<Keep> keep, int64_t ring, const std::string& backpressure,
              int in_flight, bool read_back, int64_t space_reserve, bool direct,
              const std::string& guard, bool incremental, int compress,
              double agree_within, const std::optional<std::string>& fail_after,
              Texts software, const std::vector<HeldTier>& tiers,
              const nb::dict& schedule, bool allow_unreachable_tiers) {
  JobOptions options{.schedule = schedule_of(every, schedule),
                     .grace = seconds(grace, "grace"),
                     .signals = signals,
                     .saver = {.ring_bytes = ring,
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
                               .guard = guard_of(guard),
                               .fail_after = fail_after_of(fail_after),
                               .agree_within = seconds(agree_within, "agree_within"),
                               .job = scheduler_job(variable),
                               .software = std::move(software)}};
  new (self) HeldJob(path, std::move(transport), std::move(options));
}

// A checkpoint that is about to be restored, as Python sees it.
struct Looked {
  int64_t step;
  Path folder;
  std::vector<Tensor> tensors;
  nb::object objects;
  nb::list rank_objects;  // one item for each rank
};

// The objects that are the same on all ranks, and then those that each rank saved for
// itself. Needs no GIL.
Result<std::vector<Object>> objects_of(const StepFiles& step) {
  std::vector<Object> all{HOLDFAST_TRY(read_objects(env(), step))};
  for (int rank = 0; rank < step.manifest.world; ++rank) {
    all.push_back(HOLDFAST_TRY(read_objects(env(), step, rank)));
  }
  return all;
}

Looked look(const StepFiles& step, std::span<const Object> objects) {
  const std::span<const Tensor> tensors = step.collection.tensors();
  nb::list rank_objects;
  for (const Object& own : objects.subspan(1)) rank_objects.append(to_python(own));
  return {.step = step.manifest.step,
          .folder = step.folder,
          .tensors = {tensors.begin(), tensors.end()},
          .objects = to_python(objects[0]),
          .rank_objects = std::move(rank_objects)};
}

// If pieces_for raises, the resume fails on all ranks, and this rank raises the
// exception of pieces_for.
HeldRestored resume(HeldJob& self, const nb::callable& pieces_for, bool verify_all,
                    uint64_t stream) {
  std::optional<nb::python_error> raised;
  const auto ask = [&](const StepFiles& step) -> Result<LocalPieces> {
    const std::vector<Object> objects = HOLDFAST_TRY(objects_of(step));
    const nb::gil_scoped_acquire locked;
    try {
      return nb::cast<LocalPieces>(pieces_for(look(step, objects)));
    } catch (nb::python_error& error) {
      raised.emplace(error);
      return invalid("{}", nb::str(error.value()).c_str());
    }
  };
  try {
    return HeldRestored::of(self.call([&](Job& job) {
      return job.resume(ask, {.verify_all = verify_all, .stream = stream_of(stream)});
    }));
  } catch (const Raised&) {
    if (raised.has_value()) throw nb::python_error(*raised);
    throw;
  }
}

// Returns a function that gets pieces from Python, on whatever thread it is called. If
// the Python function raises, `raised` keeps the exception until the caller can raise
// it.
OwnPieces own_by(const nb::object& callable, std::optional<nb::python_error>& raised) {
  if (callable.is_none()) return {};
  return [&](const std::vector<Differing>& found) -> Result<LocalPieces> {
    const nb::gil_scoped_acquire locked;
    try {
      nb::list listed;
      for (const Differing& one : found) {
        listed.append(
            nb::make_tuple(one.tensor, one.rank, one.other, one.whole, one.first));
      }
      return nb::cast<LocalPieces>(callable(listed));
    } catch (nb::python_error& error) {
      raised.emplace(error);
      return invalid("{}", nb::str(error.value()).c_str());
    }
  };
}

// Makes the call with a function that gets pieces from Python. If the Python function
// raised, raises its exception instead of the call's error.
auto with_own(const nb::object& callable, const auto& call) {
  std::optional<nb::python_error> raised;
  const OwnPieces own = own_by(callable, raised);
  try {
    return call(own);
  } catch (const Raised&) {
    if (raised.has_value()) throw nb::python_error(*raised);
    throw;
  }
}

// Returns a function that gets the objects of a save from Python. If the Python
// function raises, `raised` keeps the exception until the caller can raise it.
auto objects_by(const nb::callable& make, std::optional<nb::python_error>& raised) {
  return [&]() -> Result<SaveObjects> {
    const nb::gil_scoped_acquire locked;
    try {
      const nb::tuple made = nb::cast<nb::tuple>(make());
      return SaveObjects{.of_all = to_object(made[0], "objects"),
                         .of_rank = to_object(made[1], "rank_objects")};
    } catch (const nb::python_error& error) {
      raised.emplace(error);
      return unavailable("objects: {}", nb::str(error.value()).c_str());
    } catch (const Raised& error) {
      return error.error();
    } catch (const std::exception& error) {
      // Whatever was wrong with the answer, the other ranks must not wait for it.
      return invalid("objects: {}; expected a pair of objects", error.what());
    }
  };
}

HeldHandle save(HeldJob& self, int64_t step, const LocalPieces& pieces,
                nb::object owners, Numbers metrics, std::string parallel,
                const nb::callable& objects, uint64_t stream, const nb::object& own) {
  std::optional<nb::python_error> raised;
  HeldHandle handle = with_own(own, [&](const OwnPieces& ask) {
    return self.save({.step = step,
                      .pieces = pieces,
                      .make_objects = objects_by(objects, raised),
                      .metrics = std::move(metrics),
                      .parallel = std::move(parallel),
                      .stream = stream_of(stream),
                      .own = ask},
                     std::move(owners));
  });
  if (raised.has_value()) throw nb::python_error(*raised);
  return handle;
}

void attach(HeldJob& self, const LocalPieces& pieces, uint64_t stream,
            const nb::object& own) {
  with_own(own, [&](const OwnPieces& ask) {
    self.call([&](Job& job) { return job.attach(pieces, stream_of(stream), ask); });
  });
}

void bind_looked(nb::module_& m) {
  nb::class_<Looked>(m, "Looked",
                     "A checkpoint whose tensors are known but not read yet.")
      .def_ro("step", &Looked::step)
      .def_ro("folder", &Looked::folder)
      .def_ro("tensors", &Looked::tensors)
      .def_ro("objects", &Looked::objects,
              nb::for_getter(nb::sig("def objects(self) -> typing.Any")))
      .def_ro("rank_objects", &Looked::rank_objects,
              "The objects that each rank saved for itself, in a list by rank.");
  nb::class_<LocalPiece>(m, "HeldPiece", "A box of a tensor in this process's memory.")
      .def(
          "__init__",
          [](LocalPiece* self, const Array& array, const std::vector<int64_t>& shape,
             const Box& box, bool at_once) {
            new (self) LocalPiece(part_of(array, shape, box, at_once));
          },
          nb::arg("array"), nb::arg("shape"), nb::arg("box"),
          nb::arg("at_once") = false);
  nb::class_<LocalPieces>(m, "Pieces",
                          "A list of pieces. Make it once, and pass it again for as "
                          "long as the tensors are\n"
                          "the same: a save then need not look at each piece.")
      .def(nb::init_implicit<std::vector<LocalPiece>>())
      .def("__len__", &LocalPieces::size)
      .def(
          "plus",
          [](LocalPieces pieces, const std::vector<LocalPiece>& more) {
            std::vector<LocalPiece>& all = pieces.edit();
            all.insert(all.end(), more.begin(), more.end());
            return pieces;
          },
          nb::arg("more"))
      .def(
          "replaced",
          [](LocalPieces pieces, const std::vector<size_t>& places,
             const std::vector<LocalPiece>& others) {
            std::vector<LocalPiece>& all = pieces.edit();
            for (size_t k = 0; k < std::min(places.size(), others.size()); ++k) {
              all.at(places[k]) = others[k];
            }
            return pieces;
          },
          nb::arg("places"), nb::arg("others"),
          "A copy of the list in which the pieces at these places are replaced by\n"
          "`others`.")
      .def(
          "moved",
          [](LocalPieces pieces, const std::vector<size_t>& places,
             const std::vector<uint64_t>& addresses) {
            std::vector<LocalPiece>& all = pieces.edit();
            for (size_t k = 0; k < std::min(places.size(), addresses.size()); ++k) {
              ByteSpan& memory = all.at(places[k]).memory;
              auto* const first = reinterpret_cast<std::byte*>(addresses[k]);  // NOLINT
              memory = ByteSpan(first, memory.size());
            }
            return pieces;
          },
          nb::arg("places"), nb::arg("addresses"),
          "A copy of the list in which the pieces at these places have new addresses.\n"
          "Their elements, strides and device stay the same.");
}

}  // namespace

void bind_job(nb::module_& m) {
  bind_looked(m);
  nb::class_<HeldJob>(m, "Job", "The native side of holdfast.Checkpointer.")
      .def("__init__", &open_job, nb::arg("path"), nb::arg("transport").none(),
           nb::kw_only(), nb::arg("every"), nb::arg("grace"), nb::arg("signals"),
           nb::arg("keep").none(), nb::arg("ring"), nb::arg("backpressure"),
           nb::arg("in_flight"), nb::arg("read_back"), nb::arg("space_reserve"),
           nb::arg("direct"), nb::arg("guard"), nb::arg("incremental"),
           nb::arg("compress"), nb::arg("agree_within"),
           nb::arg("fail_after") = nb::none(), nb::arg("software"), nb::arg("tiers"),
           nb::arg("schedule") = nb::dict(), nb::arg("allow_unreachable_tiers") = false)
      .def(
          "attach", &attach, nb::arg("pieces"), nb::arg("stream") = 0,
          nb::arg("own") = nb::none(),
          nb::sig("def attach(self, pieces: Pieces, stream: int = 0, "
                  "own: collections.abc.Callable[[list[tuple[str, int, int, bool, "
                  "bool]]], Pieces] | None = None) -> None"),
          "Checks that the pieces of all ranks tile the tensors and that replicas are\n"
          "equal, and makes the staging ring. If replicas differ, calls `own`, which\n"
          "returns pieces under names of this rank; without `own` raises.")
      .def(
          "resume", &resume, nb::arg("pieces_for"), nb::arg("verify_all") = false,
          nb::arg("stream") = 0,
          nb::sig("def resume(self, pieces_for: collections.abc.Callable[[Looked], "
                  "Pieces], verify_all: bool = False, stream: int = 0) -> Restored"),
          "Restores the newest undamaged checkpoint into the pieces that `pieces_for`\n"
          "makes for it. Raises NotFoundError if there is none.")
      .def(
          "due",
          [](HeldJob& self, int64_t step, bool updated) {
            Due due = self.call([&](Job& job) { return job.due(step, updated); });
            std::optional<std::tuple<bool, std::string>> save;
            if (due.save) save.emplace(due.stop, std::move(due.why));
            return save;
          },
          nb::arg("step"), nb::arg("updated") = true,
          "(stop, why) if a save is due after this step, else None. All ranks get the\n"
          "same answer.")
      .def("save", &save, nb::arg("step"), nb::arg("pieces"), nb::arg("owners").none(),
           nb::arg("metrics"), nb::arg("parallel"), nb::arg("objects"),
           nb::arg("stream") = 0, nb::arg("own") = nb::none(),
           nb::sig(
               "def save(self, step: int, pieces: Pieces, owners: object | None, "
               "metrics: collections.abc.Mapping[str, float], parallel: str, "
               "objects: collections.abc.Callable[[], tuple[typing.Any, typing.Any]], "
               "stream: int = 0, own: collections.abc.Callable[[list[tuple[str, int, "
               "int, bool, bool]]], Pieces] | None = None) -> SaveHandle"),
           "Begins to save. While tensors are copied, calls `objects`, which returns "
           "the\n"
           "objects that are the same on all ranks and those of this rank. If it "
           "raises,\n"
           "all ranks drop the save. With `own`, some replicas are compared; if they\n"
           "differ, `own` returns pieces under names of this rank.")
      .def(
          "loss",
          [](HeldJob& self, int64_t step, double value) {
            self.call([&](Job& job) {
              job.loss(step, value);
              return Result<void>();
            });
          },
          nb::arg("step"), nb::arg("value"),
          "Reports the loss after a step to policies that use it.")
      .def(
          "want",
          [](HeldJob& self, const std::string& why) {
            self.call([&](Job& job) {
              job.want(why);
              return Result<void>();
            });
          },
          nb::arg("why"),
          "Asks all ranks to save soon. Only the call on rank 0 has an effect.")
      .def(
          "explain",
          [](HeldJob& self) {
            return self.call(
                [](Job& job) { return Result<std::string>(job.explain()); });
          },
          "The interval that the policy has found, and why, in one line.")
      .def(
          "take_warnings", [](HeldJob& self) { return self.take_warnings(); },
          "What went wrong since the last call without stopping training, a sentence\n"
          "each. May be called from any thread.")
      .def(
          "any",
          [](HeldJob& self, bool own) {
            return self.call([&](Job& job) { return job.any(own); });
          },
          nb::arg("own"), "True if any rank passes True. All ranks call it together.")
      .def(
          "take_notes", [](HeldJob& self) { return self.take_notes(); },
          "What was done since the last call that a person should know, a sentence\n"
          "each. May be called from any thread.")
      .def(
          "may_tear",
          [](HeldJob& self) {
            return self.call([](Job& job) { return Result<bool>(job.may_tear()); });
          },
          "False if all tensors that are being saved are copied already, so that no\n"
          "write to them can tear a save.")
      .def(
          "settle",
          [](HeldJob& self, const std::vector<std::string>& changed, uint64_t stream,
             std::optional<double> timeout) {
            return self.settle(changed, stream_of(stream), timeout).torn;
          },
          nb::arg("changed"), nb::arg("stream") = 0, nb::arg("timeout") = nb::none(),
          "Waits until the saves are captured. Returns the names of tensors that\n"
          "changed while they were copied; `changed` names those that are known to.")
      .def(
          "wait_stopped",
          [](HeldJob& self, const HeldHandle& handle) {
            return self.call([&](Job& job) { return job.wait_stopped(handle.handle); });
          },
          nb::arg("handle"),
          "Waits until the last save is durable, at most for `grace` seconds.")
      .def(
          "close", &HeldJob::close, nb::arg("timeout") = nb::none(),
          nb::arg("alone") = false, nb::arg("orderly") = true,
          "Waits until all saves are durable. With `alone` it does not wait for other\n"
          "ranks, and this rank leaves the job. With `alone` and `orderly=False` the\n"
          "next process counts this end as a failure.");
}

}  // namespace holdfast::python
