// The Env of the Python module, and waiting in it.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>

#include "errors.h"
#include "holdfast/base/posix_env.h"

namespace holdfast::python {

// One for the process. Never destroyed: handles that Python lets go of at its very end
// still use it.
inline Env& env() {
  static Env& machine = *make_posix_env().release();
  return machine;
}

// How many forks lie between the first process and this one. Unlike getpid() it does not
// enter the kernel, which costs more than a whole call that finds nothing to do.
inline int forks() {
  static std::atomic<int> count = 0;
  static const int registered = ::pthread_atfork(nullptr, nullptr, [] { ++count; });
  static_cast<void>(registered);
  return count;
}

// The deadline of a timeout in seconds; none for None. Needs no GIL.
inline Instant deadline_of(std::optional<double> timeout) {
  if (!timeout.has_value()) return kNoDeadline;
  if (!(*timeout >= 0)) throw Raised(invalid("timeout: {}, want 0 or more", *timeout));
  constexpr double kYear = 365.0 * 86400;
  const std::chrono::duration<double> seconds(std::min(*timeout, kYear));
  return env().now() + std::chrono::duration_cast<Duration>(seconds);
}

// Calls wait(deadline) without the GIL until it is over(), and lets Python's signals
// through meanwhile, so that Ctrl-C ends a long wait. Needs the GIL.
template <typename Wait, typename Over>
auto wait_interruptibly(std::optional<double> timeout, const Wait& wait,
                        const Over& over) {
  constexpr Duration kSlice = std::chrono::milliseconds(200);
  const Instant deadline = deadline_of(timeout);
  while (true) {
    // Asked before: what is over by then has its own outcome, and no timeout.
    const bool last = over() || env().now() >= deadline;
    auto outcome = [&] {
      const nb::gil_scoped_release unlocked;
      return wait(std::min(deadline, env().now() + kSlice));
    }();
    if (outcome.ok() || last) return outcome;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

}  // namespace holdfast::python
