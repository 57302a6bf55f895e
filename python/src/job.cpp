// Bindings of job/: names, types and docs only.
#include "holdfast/job/job.h"

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "held_job.h"
#include "holdfast/checkpoint/step_files.h"
#include "holdfast/job/events.h"
#include "options.h"
#include "restored.h"
#include "transport.h"

namespace holdfast::python {
namespace {

using Numbers = std::map<std::string, double>;

// Python passes the handle of a stream as a number.
CudaStream stream_of(uint64_t handle) {
  return reinterpret_cast<CudaStream>(handle);  // NOLINT
}

// A checkpoint that is about to be restored, as Python sees it.
struct SavedStep {
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

SavedStep describe(const StepFiles& step, std::span<const Object> objects) {
  const std::span<const Tensor> tensors = step.collection.tensors();
  nb::list rank_objects;
  for (const Object& own : objects.subspan(1)) rank_objects.append(to_python(own));
  return {.step = step.manifest.step,
          .folder = step.folder,
          .tensors = {tensors.begin(), tensors.end()},
          .objects = to_python(objects[0]),
          .rank_objects = std::move(rank_objects)};
}

// Asks Python for memory for a checkpoint. If the Python function raises, `raised` keeps
// the exception until the caller can raise it.
auto pieces_by(const nb::callable& pieces_for, std::optional<nb::python_error>& raised) {
  return [&](const StepFiles& found) -> Result<LocalPieces> {
    const std::vector<Object> objects = HOLDFAST_TRY(objects_of(found));
    const nb::gil_scoped_acquire locked;
    try {
      return nb::cast<LocalPieces>(pieces_for(describe(found, objects)));
    } catch (nb::python_error& error) {
      raised.emplace(error);
      return invalid("{}", nb::str(error.value()).c_str());
    }
  };
}

// If pieces_for raises, the resume fails on all ranks, and this rank raises the
// exception of pieces_for.
HeldRestored resume(HeldJob& self, const nb::callable& pieces_for,
                    std::optional<int64_t> step, bool verify_all, uint64_t stream) {
  std::optional<nb::python_error> raised;
  const auto ask = pieces_by(pieces_for, raised);
  try {
    return HeldRestored::of(self.call([&](Job& job) {
      return job.resume(
          ask, {.step = step, .verify_all = verify_all, .stream = stream_of(stream)});
    }));
  } catch (const Raised&) {
    if (raised.has_value()) throw nb::python_error(*raised);
    throw;
  }
}

HeldRestored restore_alone(const Path& run, const nb::callable& pieces_for, int64_t step,
                           uint64_t stream) {
  std::optional<nb::python_error> raised;
  const auto ask = pieces_by(pieces_for, raised);
  LocalState state;
  const auto state_for = [&](const StepFiles& found) -> Result<const LocalState*> {
    state = HOLDFAST_TRY(make_part_of_state(HOLDFAST_TRY(ask(found))));
    return &state;
  };
  try {
    return HeldRestored::of([&] {
      const nb::gil_scoped_release unlocked;
      return unwrap(restore(env(), run, StateFor(state_for), nullptr,
                            {.step = step, .stream = stream_of(stream)}));
    }());
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
                const nb::callable& objects, uint64_t stream, const nb::object& own,
                std::string why, bool automatic) {
  std::optional<nb::python_error> raised;
  HeldHandle handle = with_own(own, [&](const OwnPieces& ask) {
    return self.save({.step = step,
                      .pieces = pieces,
                      .make_objects = objects_by(objects, raised),
                      .metrics = std::move(metrics),
                      .parallel = std::move(parallel),
                      .why = std::move(why),
                      .automatic = automatic,
                      .stream = stream_of(stream),
                      .own = ask},
                     std::move(owners));
  });
  if (raised.has_value()) throw nb::python_error(*raised);
  return handle;
}

Path hand_over(HeldJob& self, int64_t step, const LocalPieces& pieces, Numbers metrics,
               std::string parallel, const nb::callable& objects, uint64_t stream,
               const nb::object& own) {
  std::optional<nb::python_error> raised;
  return with_own(own, [&](const OwnPieces& ask) {
    return self.call([&](Job& job) {
      return job.hand_over({.step = step,
                            .pieces = pieces,
                            .make_objects = objects_by(objects, raised),
                            .metrics = std::move(metrics),
                            .parallel = std::move(parallel),
                            .stream = stream_of(stream),
                            .own = ask});
    });
  });
}

void attach(HeldJob& self, const LocalPieces& pieces, uint64_t stream,
            const nb::object& own) {
  with_own(own, [&](const OwnPieces& ask) {
    self.call([&](Job& job) { return job.attach(pieces, stream_of(stream), ask); });
  });
}

// Sets a field of an event from a dict of Python.
struct FromDict {
  const nb::dict& values;
  template <typename T>
  void operator()(std::string_view name, T& value) const {
    value = nb::cast<T>(values[nb::str(name.data(), name.size())]);
  }
};

template <typename Event>
void write_event(HeldJob& self, const nb::dict& fields) {
  Event event;
  Event::fields(event, FromDict{fields});
  self.write(event);
}

void bind_saved_step(nb::module_& m) {
  nb::class_<SavedStep>(m, "SavedStep",
                        "A checkpoint whose tensors are known but not read yet.")
      .def_ro("step", &SavedStep::step)
      .def_ro("folder", &SavedStep::folder)
      .def_ro("tensors", &SavedStep::tensors)
      .def_ro("objects", &SavedStep::objects,
              nb::for_getter(nb::sig("def objects(self) -> typing.Any")))
      .def_ro("rank_objects", &SavedStep::rank_objects,
              "The objects that each rank saved for itself, in a list by rank.");
}

}  // namespace

void bind_job(nb::module_& m) {
  bind_saved_step(m);
  m.def("restore_alone", &restore_alone, nb::arg("run"), nb::arg("pieces_for"),
        nb::arg("step"), nb::arg("stream") = 0,
        nb::sig("def restore_alone(run: str, pieces_for: collections.abc.Callable["
                "[SavedStep], Pieces], step: int, stream: int = 0) -> Restored"),
        "Restores this rank's part of a step while other ranks do something else.");
  nb::class_<HeldJob>(m, "Job", "The native side of holdfast.Checkpointer.")
      .def(
          "__init__",
          [](HeldJob* self, const Path& path, nb::object transport,
             const nb::dict& options) {
            new (self) HeldJob(path, std::move(transport), job_options_of(options));
          },
          nb::arg("path"), nb::arg("transport").none(), nb::arg("options"),
          "`options` are those that python/src/options.cpp reads.")
      .def(
          "attach", &attach, nb::arg("pieces"), nb::arg("stream") = 0,
          nb::arg("own") = nb::none(),
          nb::sig("def attach(self, pieces: Pieces, stream: int = 0, "
                  "own: collections.abc.Callable[[list[tuple[str, int, int, bool, "
                  "bool]]], Pieces] | None = None) -> None"),
          "Checks that the pieces of all ranks tile the tensors and that replicas are\n"
          "equal, and makes the staging ring. If replicas differ, calls `own`, which\n"
          "returns pieces under names of this rank; without `own` raises.")
      .def("resume", &resume, nb::arg("pieces_for"), nb::arg("step") = nb::none(),
           nb::arg("verify_all") = false, nb::arg("stream") = 0,
           nb::sig("def resume(self, pieces_for: collections.abc.Callable[[SavedStep], "
                   "Pieces], step: int | None = None, verify_all: bool = False, "
                   "stream: int = 0) -> Restored"),
           "Restores the newest undamaged checkpoint, or that of `step`, into the "
           "pieces\n"
           "that `pieces_for` makes for it. Raises NotFoundError if there is none.")
      .def(
          "due",
          [](HeldJob& self, int64_t step, bool updated,
             std::optional<std::pair<int64_t, double>> loss) {
            Due due = self.call([&](Job& job) {
              if (loss) job.loss(loss->first, loss->second);
              return job.due(step, updated);
            });
            std::optional<std::tuple<std::string, std::string>> found;
            if (due.change) found.emplace("change", std::move(due.why));
            if (due.save) found.emplace(due.stop ? "stop" : "save", std::move(due.why));
            return found;
          },
          nb::arg("step"), nb::arg("updated") = true, nb::arg("loss") = nb::none(),
          "(kind, why) if something is due after this step, else None: a save, the last\n"
          "save before all ranks stop, or a change. All ranks get the same answer. `loss` is\n"
          "one that has become known, after its step, for policies that use it.")
      .def("save", &save, nb::arg("step"), nb::arg("pieces"), nb::arg("owners").none(),
           nb::arg("metrics"), nb::arg("parallel"), nb::arg("objects"),
           nb::arg("stream") = 0, nb::arg("own") = nb::none(), nb::arg("why") = "",
           nb::arg("automatic") = false,
           nb::sig(
               "def save(self, step: int, pieces: Pieces, owners: object | None, "
               "metrics: collections.abc.Mapping[str, float], parallel: str, "
               "objects: collections.abc.Callable[[], tuple[typing.Any, typing.Any]], "
               "stream: int = 0, own: "
               "collections.abc.Callable[[list[tuple[str, int, "
               "int, bool, bool]]], Pieces] | None = None, why: str = \"\", "
               "automatic: bool = False) -> SaveHandle"),
           "Begins to save, for the reason `why`. `automatic` says that the schedule "
           "asked\n"
           "for it. While tensors are copied, calls\n"
           "`objects`, which returns the objects that are the same on all ranks and "
           "those\n"
           "of this rank. If it raises, all ranks drop the save. With `own`, some "
           "replicas\n"
           "are compared; if they differ, `own` returns pieces under names of this "
           "rank.")
      .def("hand_over", &hand_over, nb::arg("step"), nb::arg("pieces"),
           nb::arg("metrics"), nb::arg("parallel"), nb::arg("objects"),
           nb::arg("stream") = 0, nb::arg("own") = nb::none(),
           nb::sig(
               "def hand_over(self, step: int, pieces: Pieces, "
               "metrics: collections.abc.Mapping[str, float], parallel: str, "
               "objects: collections.abc.Callable[[], tuple[typing.Any, typing.Any]], "
               "stream: int = 0, own: "
               "collections.abc.Callable[[list[tuple[str, int, "
               "int, bool, bool]]], Pieces] | None = None) -> pathlib.Path"),
           "Leaves the state in the memory of the hosts, for the processes that are\n"
           "started next. Returns the folder on this host. Raises on all ranks alike,\n"
           "for instance OSError if a host has no room. Arguments are those of save().")
      .def(
          "left_objects",
          [](HeldJob& self) {
            const std::optional<Object> left =
                self.call([](Job& job) { return job.left_objects(); });
            return left ? to_python(*left) : nb::none();
          },
          nb::sig("def left_objects(self) -> typing.Any"),
          "The objects of the newest step in the memory of this host, if it is newer "
          "than\nthose on disk; else None.")
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
          "ask_to_save",
          [](HeldJob& self, const std::string& why) {
            self.call([&](Job& job) { return job.ask_to_save(why); });
          },
          nb::arg("why"), "Asks all ranks to save soon, from any rank.")
      .def(
          "change",
          [](HeldJob& self, const std::string& what) {
            self.call([&](Job& job) {
              job.change(what);
              return Result<void>();
            });
          },
          nb::arg("what"),
          "Asks all ranks for a change after the same step, soon. Only the call on rank\n"
          "0 has an effect.")
      .def(
          "ask_to_stop",
          [](HeldJob& self, const std::string& why) {
            self.call([&](Job& job) {
              job.ask_to_stop(why);
              return Result<void>();
            });
          },
          nb::arg("why"), "Asks all ranks to save and stop soon, as a stop signal does.")
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
          "check_new",
          [](HeldJob& self, const std::string& expected) {
            self.call([&](Job& job) { return job.check_new(expected); });
          },
          nb::arg("expected"),
          "Raises ValueError on all ranks if the run has steps. `expected` says what "
          "to\n"
          "do then. All ranks call it together.")
      .def(
          "any",
          [](HeldJob& self, bool own) {
            return self.call([&](Job& job) { return job.any(own); });
          },
          nb::arg("own"), "True if any rank passes True. All ranks call it together.")
      .def(
          "all_agree",
          [](HeldJob& self, bool own, double seconds) {
            return self.call([&](Job& job) {
              const std::chrono::duration<double> at_most(seconds);
              return Result<bool>(
                  job.all_agree(own, std::chrono::duration_cast<Duration>(at_most)));
            });
          },
          nb::arg("own"), nb::arg("seconds"),
          "True if every rank passes True within that time. False also if a rank has "
          "not\n"
          "called it by then, or is gone.")
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
          "drop_saves",
          [](HeldJob& self, std::optional<double> timeout) {
            const Instant deadline = deadline_of(timeout);
            self.call([&](Job& job) { return job.drop_saves(deadline); });
          },
          nb::arg("timeout") = nb::none(),
          "After a rank was lost, on every survivor: ends the saves under way. Called "
          "when\n"
          "the transport is closed, before transport.replace().")
      .def(
          "rejoin",
          [](HeldJob& self) { self.call([](Job& job) { return job.rejoin(); }); },
          "After transport.replace(), on every survivor: goes on together with the\n"
          "processes that open their job in place of the lost ranks.")
      .def(
          "gather",
          [](HeldJob& self, const nb::bytes& own) {
            const ByteView message(static_cast<const std::byte*>(own.data()),
                                   own.size());
            std::vector<nb::bytes> messages;
            for (const Bytes& one :
                 self.call([&](Job& job) { return job.gather(message); })) {
              messages.emplace_back(one.data(), one.size());
            }
            return messages;
          },
          nb::arg("own"),
          "What every rank passes, by rank. All ranks call it together.")
      .def("memory_alarm", &write_event<MemoryAlarm>, nb::arg("fields"),
           "Writes the event memory_alarm, with the fields of job/events.h.")
      .def("rank_lost", &write_event<RankLost>, nb::arg("fields"),
           "Writes the event rank_lost, with the fields of job/events.h. May be called "
           "from\n"
           "any thread.")
      .def("resized", &write_event<Resized>, nb::arg("fields"),
           "Writes the event resized, with the fields of job/events.h. May be called from\n"
           "any thread.")
      .def("recovered", &write_event<Recovered>, nb::arg("fields"),
           "Writes the event recovered, with the fields of job/events.h. May be called "
           "from\n"
           "any thread.")
      .def("messages_kept", &write_event<MessagesKept>, nb::arg("fields"),
           "Writes the event messages_kept, with the fields of job/events.h. May be called\n"
           "from any thread.")
      .def("updates_kept", &write_event<UpdatesKept>, nb::arg("fields"),
           "Writes the event updates_kept, with the fields of job/events.h. May be called\n"
           "from any thread.")
      .def(
          "close", &HeldJob::close, nb::arg("timeout") = nb::none(),
          nb::arg("alone") = false, nb::arg("orderly") = true,
          "Waits until all saves are durable. With `alone` it does not wait for other\n"
          "ranks, and this rank leaves the job. With `alone` and `orderly=False` the\n"
          "next process counts this end as a failure.");
}

}  // namespace holdfast::python
