// Bindings of recovery/: names, types and docs only.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "holdfast/recovery/decide.h"
#include "holdfast/recovery/gate.h"
#include "holdfast/schedule/log_plan.h"
#include "transport.h"

namespace holdfast::python {
namespace {

using Timeout = std::optional<double>;

ByteView view(const nb::bytes& bytes) {
  return {static_cast<const std::byte*>(bytes.data()), bytes.size()};
}

// A Gate, and the transport that it uses.
class HeldGate {
 public:
  HeldGate(nb::object transport, const std::vector<int>& hosts)
      : transport_(std::move(transport)),
        gate_(env(), checked(nb::cast<HeldTransport&>(transport_).over(), hosts),
              hosts) {}

  Gate& get() {
    // In a forked child this throws.
    static_cast<void>(nb::cast<HeldTransport&>(transport_).over());
    return gate_;
  }

 private:
  static Transport& checked(Transport& transport, const std::vector<int>& hosts) {
    if (hosts.empty() || std::ssize(hosts) == transport.size()) return transport;
    throw Raised(invalid("hosts: {} numbers; expected one for each of {} ranks",
                         hosts.size(), transport.size()));
  }

  nb::object transport_;  // declared before the gate, which must not outlive it
  Gate gate_;
};

// A gate may wait for as long as other ranks compute, so it waits without the GIL. It
// cannot be waited for in pieces, so interrupt() ends it and Ctrl-C does not.
void pass_gate(HeldGate& self, int64_t update, const nb::bytes& record,
               Timeout timeout) {
  Gate& gate = self.get();
  const nb::gil_scoped_release unlocked;
  unwrap(gate.pass(update, view(record), deadline_of(timeout)));
}

void begin(HeldGate& self, int64_t generation, int64_t update, const nb::bytes& record,
           Timeout timeout) {
  Gate& gate = self.get();
  const nb::gil_scoped_release unlocked;
  unwrap(gate.begin(generation, update, view(record), deadline_of(timeout)));
}

void refresh(HeldGate& self, int64_t update, const nb::bytes& record) {
  Gate& gate = self.get();
  const nb::gil_scoped_release unlocked;
  unwrap(gate.refresh(update, view(record)));
}

std::optional<std::tuple<nb::bytes, bool>> record_of_peer(HeldGate& self,
                                                          int64_t update,
                                                          double timeout) {
  Gate& gate = self.get();
  const std::optional<KeptRecord> kept = [&] {
    const nb::gil_scoped_release unlocked;
    return gate.record_of_peer(update, deadline_of(timeout));
  }();
  if (!kept.has_value()) return std::nullopt;
  return std::tuple(nb::bytes(kept->bytes.data(), kept->bytes.size()), kept->refreshed);
}

using Status = std::tuple<int, int64_t, int64_t, bool>;

Decision decide_by(const std::vector<Status>& survivors, int64_t floor) {
  std::vector<SurvivorStatus> statuses;
  for (const auto& [rank, committed, ready, in_update] : survivors) {
    statuses.push_back({rank, committed, ready, in_update});
  }
  return decide(statuses, floor);
}

std::map<int, std::string> courses_of(const Decision& decision) {
  std::map<int, std::string> courses;
  for (const auto& [rank, course] : decision.courses) courses[rank] = name_of(course);
  return courses;
}

void bind_decide(nb::module_& m) {
  nb::class_<Decision>(m, "Decision", "What survivors do after a rank was lost.")
      .def_ro("target", &Decision::target,
              "All ranks continue after this update, also the replacements.")
      .def_prop_ro(
          "courses", &courses_of,
          "What each survivor does next, by rank: \"go on\", \"forward\" (finish\n"
          "its own update) or \"back\" (repeat the update that it has begun).")
      .def_prop_ro(
          "refused",
          [](const Decision& decision) {
            return decision.refused.empty() ? std::nullopt
                                            : std::optional(decision.refused);
          },
          "Why the survivors cannot go on and all ranks must start again, or None.");
  m.def(
      "decide", &decide_by, nb::arg("survivors"), nb::arg("floor") = 0,
      "Decides which update the survivors continue after. `survivors` has a tuple\n"
      "(rank, committed, ready, in_update) for each of them, made after its gate was\n"
      "interrupted. `floor` is the target of the decision before this one.");
}

}  // namespace

void bind_recovery(nb::module_& m) {
  bind_decide(m);
  nb::class_<HeldGate>(
      m, "Gate",
      "Before the first tensor of an update is written, all ranks say that they can\n"
      "make the update.\n\n"
      "interrupt(), record_of_peer() and the properties may be used from any thread.")
      .def(
          "__init__",
          [](HeldGate* self, nb::object transport, const std::vector<int>& hosts) {
            new (self) HeldGate(std::move(transport), hosts);
          },
          nb::arg("transport"), nb::arg("hosts") = std::vector<int>(),
          nb::sig("def __init__(self, transport: TcpTransport, "
                  "hosts: collections.abc.Sequence[int] = []) -> None"),
          "`hosts` has a number for the host of each rank. Begins in generation 0 "
          "after\n"
          "update 0.")
      .def("begin", &begin, nb::arg("generation"), nb::arg("update"), nb::arg("record"),
           nb::arg("timeout") = nb::none(),
           "Begins a generation, on all ranks together, when every rank has the state\n"
           "after `update` updates. Returns when all ranks have the record of their "
           "peer.")
      .def("pass_gate", &pass_gate, nb::arg("update"), nb::arg("record"),
           nb::arg("timeout") = nb::none(),
           "Returns when this rank is committed to the update. If it raises, the rank "
           "is\n"
           "not committed: UnavailableError if a rank is gone or after interrupt(),\n"
           "TimeoutError, and ValueError if ranks are at different updates.")
      .def("refresh", &refresh, nb::arg("update"), nb::arg("record"),
           "Sends the record again after the update. Does not wait.")
      .def(
          "forward",
          [](HeldGate& self, int64_t update) { unwrap(self.get().forward(update)); },
          nb::arg("update"),
          "Makes this rank, which is ready for the update, committed to it, because "
          "the\n"
          "decision says so.")
      .def(
          "interrupt",
          [](HeldGate& self, std::optional<int64_t> generation) {
            self.get().interrupt(generation);
          },
          nb::arg("generation") = nb::none(),
          "Ends the gates of all generations up to this one; None means the current "
          "one.\n"
          "After it has returned, `committed` and `ready` do not change.")
      .def("record_of_peer", &record_of_peer, nb::arg("update"),
           nb::arg("timeout") = 0.0,
           "(record, refreshed) that the peer has sent after this update, or None. "
           "Waits\n"
           "for newer ones until the timeout, or until the peer is known to be gone. "
           "Call\n"
           "it before the transport is closed.")
      .def_prop_ro(
          "buddy", [](HeldGate& self) { return self.get().buddy(); },
          "The rank that keeps this rank's record.")
      .def_prop_ro(
          "peer", [](HeldGate& self) { return self.get().peer(); },
          "The rank whose record this rank keeps.")
      .def_prop_ro(
          "generation", [](HeldGate& self) { return self.get().generation(); },
          "The current generation.")
      .def_prop_ro(
          "committed", [](HeldGate& self) { return self.get().committed(); },
          "The newest update that this rank is committed to.")
      .def_prop_ro(
          "ready", [](HeldGate& self) { return self.get().ready(); },
          "The newest update that this rank was ready for.");
  m.def(
      "plan_log",
      [](const std::vector<double>& replay, const std::vector<int64_t>& right,
         const std::vector<int64_t>& left, double bandwidth, int64_t steps,
         int64_t micro_batches, int64_t host, int64_t group) {
        const LogChain chain{.replay = replay,
                             .rate = std::vector<double>(replay.size(), 1),
                             .right = right,
                             .left = left,
                             .bandwidth = bandwidth,
                             .steps = steps,
                             .micro_batches = micro_batches};
        return unwrap(plan_log(chain, {.host = host, .group = group})).logged;
      },
      nb::arg("replay"), nb::arg("right"), nb::arg("left"), nb::kw_only(),
      nb::arg("bandwidth"), nb::arg("steps"), nb::arg("micro_batches"), nb::arg("host"),
      nb::arg("group"),
      "Which borders of a row of ranks to log, if each is lost equally often\n"
      "(schedule/log_plan.h).");
}

}  // namespace holdfast::python
