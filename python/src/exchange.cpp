// Bindings of exchange/: names, types and docs only.
#include <nanobind/stl/optional.h>

#include <thread>

#include "holdfast/base/mutex.h"
#include "holdfast/exchange/fill.h"
#include "transport.h"

namespace holdfast::python {
namespace {

// The call runs in a thread of its own while this one waits in slices, in which Python
// handles its signals. A call that a signal ends closes the transport: the other ranks
// wait for this one, and cannot go on without it.
Filled fill(HeldTransport& self, const LocalPieces& pieces, bool is_whole,
            std::optional<double> timeout, uint64_t stream) {
  const std::shared_ptr<TcpTransport> transport = self.get();
  const FillOptions options{.is_whole = is_whole,
                            .deadline = deadline_of(timeout),
                            .stream = reinterpret_cast<CudaStream>(stream)};  // NOLINT
  Mutex mutex;
  Condition changed;
  std::optional<Result<Filled>> outcome;
  std::jthread caller([&] {
    Result<Filled> filled = fill_from_peers(env(), *transport, pieces, options);
    MutexLock lock(mutex);
    outcome = std::move(filled);
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
    transport->close();
    caller.join();
    const nb::gil_scoped_acquire locked;
    throw nb::python_error();
  }
  const nb::gil_scoped_release unlocked;
  caller.join();
  return unwrap(*std::move(outcome));
}

}  // namespace

void bind_exchange(nb::module_& m) {
  nb::class_<Filled>(m, "Filled", "Numbers of bytes that fill_from_peers moved.")
      .def_ro("received", &Filled::received, "Bytes that this rank received.")
      .def_ro("sent", &Filled::sent, "Bytes that this rank sent.")
      .def_ro("moved", &Filled::moved, "Bytes that all ranks together received.")
      .def_ro("shared", &Filled::shared,
              "Bytes of this rank that went through shared memory.");
  m.def(
      "fill_from_peers", &fill, nb::arg("transport"), nb::arg("pieces"),
      nb::arg("is_whole"), nb::arg("timeout") = nb::none(), nb::arg("stream") = 0,
      "Fills the pieces of ranks that are not whole from those of ranks that are.\n\n"
      "All ranks of the transport call it together. Each passes its pieces, whose\n"
      "memory must stay alive, and whether they hold the state. The load is spread\n"
      "over all replicas, and seals are checked. Raises on all ranks alike:\n"
      "ValueError if two ranks disagree on a tensor, NotFoundError if no whole rank\n"
      "has a part that is needed, CorruptError if what arrived is not what was sent,\n"
      "UnavailableError if a rank is gone, TimeoutError after `timeout` seconds.\n"
      "After the last three, connect another transport to try again. If a signal's\n"
      "handler raises meanwhile, the transport is closed.");
}

}  // namespace holdfast::python
