// A thread that shows that this process is at work: it writes the time into memory that
// the launcher reads. It needs no GIL, so that it stops only if the process is stopped.
#include <nanobind/nanobind.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include "errors.h"
#include "holdfast/env/env.h"

namespace holdfast::python {
namespace {

constexpr auto kPeriod = std::chrono::milliseconds(100);

// Runs until the process ends. A forked child does not have the thread.
void beat(int64_t* place) {
  const std::atomic_ref<int64_t> beats(*place);
  while (true) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    beats = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
    std::this_thread::sleep_for(kPeriod);
  }
}

void start_heartbeat(const nb::object& memory, size_t index) {
  auto* buffer = new Py_buffer;  // never released: the thread uses it until the end
  if (PyObject_GetBuffer(memory.ptr(), buffer, PyBUF_WRITABLE) != 0) {
    delete buffer;
    throw nb::python_error();
  }
  if (static_cast<size_t>(buffer->len) < (index + 1) * sizeof(int64_t)) {
    throw Raised(invalid("memory: {} bytes; expected more than {}", buffer->len,
                         index * sizeof(int64_t)));
  }
  // The thread begins without signals, which belong to the threads of the program.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  std::thread(beat, static_cast<int64_t*>(buffer->buf) + index).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

void bind_heartbeat(nb::module_& m) {
  m.def("start_heartbeat", &start_heartbeat, nb::arg("memory"), nb::arg("index"),
        nb::sig("def start_heartbeat(memory: collections.abc.Buffer, index: int) -> "
                "None"),
        "Starts a thread that writes the nanoseconds of the monotonic clock into the\n"
        "8-byte number at that index of the memory, ten times a second, until the\n"
        "process ends.");
}

}  // namespace holdfast::python
