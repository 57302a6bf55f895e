// The Env of the Python module, and waits that Ctrl-C can end.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <optional>

#include "errors.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/remote/s3_store.h"
#include "holdfast/store/object_store_env.h"

namespace holdfast::python {

// The Env of this process, without object stores. It is never destroyed, because Python
// may destroy handles that use it when the process ends.
inline Env& machine() {
  static Env& posix = *make_posix_env().release();
  return posix;
}

inline std::optional<std::string> variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

// Opens a bucket with the keys and the server that the environment variables name.
inline Result<std::shared_ptr<ObjectStore>> open_bucket(const std::string& bucket) {
  return open_s3_from(machine(), variable, bucket);
}

// The Env of this process, which can also read from object stores.
inline Env& env() {
  static Env& all = *new ObjectStoreEnv(machine(), open_bucket);
  return all;
}

// How many forks lie between the first process and this one. Used instead of getpid(),
// which enters the kernel: that would cost more than a call that finds nothing to do.
inline int forks() {
  static std::atomic<int> count = 0;
  static const int registered = ::pthread_atfork(nullptr, nullptr, [] { ++count; });
  static_cast<void>(registered);
  return count;
}

// The deadline of a timeout in seconds; kNoDeadline for None. Needs no GIL.
inline Instant deadline_of(std::optional<double> timeout) {
  if (!timeout.has_value()) return kNoDeadline;
  if (!(*timeout >= 0))
    throw Raised(invalid("timeout: {}; expected 0 or more", *timeout));
  constexpr double kYear = 365.0 * 86400;
  const std::chrono::duration<double> seconds(std::min(*timeout, kYear));
  return env().now() + std::chrono::duration_cast<Duration>(seconds);
}

inline double seconds_until(Instant deadline) {
  return std::max(0.0, std::chrono::duration<double>(deadline - env().now()).count());
}

// Calls wait(deadline) in slices of 200 ms until it succeeds, over() is true, or the
// timeout has passed; then returns what wait() returned. The wait runs without the GIL;
// between slices Python handles its signals, so that Ctrl-C ends a long wait. Needs the
// GIL.
template <typename Wait, typename Over>
auto wait_interruptibly(std::optional<double> timeout, const Wait& wait,
                        const Over& over) {
  constexpr Duration kSlice = std::chrono::milliseconds(200);
  const Instant deadline = deadline_of(timeout);
  while (true) {
    // over() is called before the wait: if it is true, this wait returns the real
    // outcome and not the timeout of a slice.
    const bool last = over() || env().now() >= deadline;
    auto outcome = [&] {
      const nb::gil_scoped_release unlocked;
      return wait(std::min(deadline, env().now() + kSlice));
    }();
    if (outcome.ok() || last) return outcome;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

// Calls call(deadline) in slices of 200 ms until it returns something else than
// kTimeout, or the timeout has passed. The call must be one that may be repeated after
// kTimeout. It runs without the GIL; between slices Python handles its signals, such as
// Ctrl-C. Needs the GIL.
template <typename Call>
auto call_interruptibly(std::optional<double> timeout, const Call& call) {
  constexpr Duration kSlice = std::chrono::milliseconds(200);
  const Instant deadline = deadline_of(timeout);
  while (true) {
    const Instant until = std::min(deadline, env().now() + kSlice);
    auto outcome = [&] {
      const nb::gil_scoped_release unlocked;
      return call(until);
    }();
    const bool again = !outcome.ok() && until < deadline &&
                       outcome.error().code() == ErrorCode::kTimeout;
    if (!again) return outcome;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

}  // namespace holdfast::python
