// Bindings of exchange/: names, types and docs only.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <functional>
#include <numeric>
#include <thread>

#include "holdfast/base/mutex.h"
#include "holdfast/exchange/change_layout.h"
#include "transport.h"

namespace holdfast::python {
namespace {

// The call runs in a thread of its own while this one waits in slices, in which Python
// handles its signals. A call that a signal ends closes the transport: the other ranks
// wait for this one, and cannot go on without it.
template <class T>
T while_signals_are_handled(TcpTransport& transport,
                            const std::function<Result<T>()>& call) {
  Mutex mutex;
  Condition changed;
  std::optional<Result<T>> outcome;
  std::jthread caller([&] {
    Result<T> done = call();
    MutexLock lock(mutex);
    outcome = std::move(done);
    changed.notify_all();
  });
  while (true) {
    {
      const nb::gil_scoped_release unlocked;
      MutexLock lock(mutex);
      if (!outcome.has_value()) {
        changed.wait_for(mutex, std::chrono::milliseconds(200));
      }
      if (outcome.has_value()) break;
    }
    if (PyErr_CheckSignals() == 0) continue;
    const nb::gil_scoped_release unlocked;
    transport.close();
    caller.join();
    const nb::gil_scoped_acquire locked;
    throw nb::python_error();
  }
  const nb::gil_scoped_release unlocked;
  caller.join();
  return unwrap(*std::move(outcome));
}

Exchanged change(HeldTransport& self, const LocalPieces& old, const LocalPieces& wanted,
                 double timeout, bool prove_all, uint64_t stream) {
  const std::shared_ptr<TcpTransport> transport = self.get();
  const ExchangeOptions options{
      .proof = prove_all ? ExchangeProof::kState : ExchangeProof::kMoved,
      .deadline = deadline_of(timeout),
      .stream = reinterpret_cast<CudaStream>(stream)};  // NOLINT
  return while_signals_are_handled<Exchanged>(*transport, [&] {
    GivenStorage storage(wanted);
    return change_layout(env(), *transport, {.old = old, .wanted = wanted}, storage,
                         options);
  });
}

PlacedRanks place(HeldTransport& self, const LocalPieces& old, const LocalPieces& wanted,
                  const std::vector<int>& told_by, const std::vector<int>& able,
                  uint32_t group, double timeout) {
  const std::shared_ptr<TcpTransport> transport = self.get();
  return while_signals_are_handled<PlacedRanks>(*transport, [&] {
    return place_ranks(env(), *transport, {.old = old, .wanted = wanted},
                       {.told_by = told_by, .able = able, .group = group},
                       {.deadline = deadline_of(timeout)});
  });
}

int64_t sum_of(const std::array<int64_t, kCarriers>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

}  // namespace

void bind_exchange(nb::module_& m) {
  nb::class_<Exchanged>(m, "Exchanged", "Numbers of bytes that change_layout moved.")
      .def_prop_ro(
          "received", [](const Exchanged& self) { return sum_of(self.received); },
          "Bytes that this rank received.")
      .def_prop_ro(
          "sent", [](const Exchanged& self) { return sum_of(self.sent); },
          "Bytes that this rank sent, with those that it passed on.")
      .def_ro("copied", &Exchanged::copied, "Bytes copied inside this rank's memory.")
      .def_ro("kept", &Exchanged::kept,
              "Bytes of wanted pieces that are pieces held before, in the same memory.")
      .def_ro("moved", &Exchanged::moved, "Bytes that all ranks together received.")
      .def_ro("bound", &Exchanged::bound, "The least that any plan could move.")
      .def_prop_ro(
          "shared",
          [](const Exchanged& self) {
            constexpr auto kShared = static_cast<size_t>(Carrier::kRing);
            return self.received[kShared] + self.sent[kShared];
          },
          "Bytes of this rank that went through shared memory.")
      .def_prop_ro(
          "seals", [](const Exchanged& self) { return self.seals.size(); },
          "How many tensors were sealed before and after, and are equal.");
  m.def(
      "change_layout", &change, nb::arg("transport"), nb::arg("old"), nb::arg("wanted"),
      nb::arg("timeout"), nb::arg("prove_all") = false, nb::arg("stream") = 0,
      "Gives the state of all ranks another layout.\n\n"
      "All ranks of the transport call it together. Each passes the pieces that it\n"
      "holds and those that it wants to hold, whose memory is filled; either may be\n"
      "empty. A wanted piece with the memory of a held one stays as it is. The load is spread over all replicas. What is sent is sealed at both\n"
      "ends; with `prove_all`, all tensors are sealed before and after. Raises on all\n"
      "ranks alike: ValueError if two ranks disagree on a tensor, NotFoundError if no\n"
      "rank holds a part that is wanted, CorruptError if what arrived is not what was\n"
      "sent, UnavailableError if a rank is gone, TimeoutError after `timeout` seconds.\n"
      "After the last three, connect another transport to try again. If a signal's\n"
      "handler raises meanwhile, the transport is closed.");
  nb::class_<PlacedRanks>(m, "PlacedRanks", "What place_ranks found.")
      .def_ro("ranks", &PlacedRanks::ranks, "The rank of each place.")
      .def_ro("moved", &PlacedRanks::moved, "Bytes that move if they take these places.")
      .def_ro("moved_as_told", &PlacedRanks::moved_as_told,
              "Bytes that move if ranks take the places that they have told of.")
      .def_ro("needed", &PlacedRanks::needed, "Bytes that all places need.");
  m.def("place_ranks", &place, nb::arg("transport"), nb::arg("old"), nb::arg("wanted"),
        nb::arg("told_by"), nb::arg("able"), nb::arg("group"), nb::arg("timeout"),
        "Finds the ranks for the places of a new layout with which the fewest bytes move.\n\n"
        "All ranks of the transport call it together, as change_layout(). Place p is what\n"
        "rank told_by[p] wants. Only ranks in `able` get places; `group` places in a row\n"
        "stay on one host. Nothing moves.");
}

}  // namespace holdfast::python
