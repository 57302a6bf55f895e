#include "holdfast/job/stop_signals.h"

#include <unistd.h>

#include <array>
#include <atomic>

#include "holdfast/base/mutex.h"

namespace holdfast {
namespace {

constexpr std::array kSignals = {SIGTERM, SIGUSR1};

// A signal handler takes no argument of ours, so what it uses must be global.
std::atomic<int> first_caught = 0;
std::atomic<pid_t> listener = 0;
std::array<struct sigaction, kSignals.size()> previous{};
// True while the previous handler of a signal runs. That handler may call ours: it may
// have been installed over ours once, and ours was installed over it again later.
std::array<std::atomic<bool>, kSignals.size()> calling{};

Mutex mutex;  // never taken by the handler
int instances HOLDFAST_GUARDED_BY(mutex) = 0;

bool is_default(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_DFL;
}

void call_previous(size_t i, int number, siginfo_t* info, void* context) {
  if (calling[i].exchange(true)) return;
  const struct sigaction& action = previous[i];
  if ((action.sa_flags & SA_SIGINFO) != 0) {
    if (action.sa_sigaction != nullptr) action.sa_sigaction(number, info, context);
  } else if (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN) {
    action.sa_handler(number);
  }
  calling[i] = false;
}

void handle(int number, siginfo_t* info, void* context) {
  int none = 0;
  first_caught.compare_exchange_strong(none, number);
  for (size_t i = 0; i < kSignals.size(); ++i) {
    if (kSignals[i] != number) continue;
    if (listener == ::getpid() || !is_default(previous[i])) {
      call_previous(i, number, info, context);
    } else {
      // This is a forked child, or the last instance is gone: nobody reads the flag.
      // The sender expects the process to end, so the default action is restored and
      // used.
      sigaction(number, &previous[i], nullptr);
      ::raise(number);
    }
  }
}

bool is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == handle;
}

}  // namespace

StopSignals::StopSignals() {
  MutexLock lock(mutex);
  if (instances++ > 0) return;
  first_caught = 0;
  listener = ::getpid();
  struct sigaction action {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  for (size_t i = 0; i < kSignals.size(); ++i) {
    struct sigaction before {};
    sigaction(kSignals[i], &action, &before);
    // Our own handler can be installed already: other code that had replaced it may
    // have put it back after the last instance was destroyed.
    if (!is_ours(before)) previous[i] = before;
  }
}

StopSignals::~StopSignals() {
  MutexLock lock(mutex);
  if (--instances > 0) return;
  listener = 0;
  for (size_t i = 0; i < kSignals.size(); ++i) {
    struct sigaction current {};
    sigaction(kSignals[i], nullptr, &current);
    if (is_ours(current)) sigaction(kSignals[i], &previous[i], nullptr);
  }
}

std::optional<int> StopSignals::caught() const {
  const int number = first_caught;
  return number == 0 ? std::nullopt : std::optional(number);
}

void StopSignals::give_way(int signal) {
  struct sigaction current {};
  sigaction(signal, nullptr, &current);
  if (is_default(current)) ::raise(signal);
}

}  // namespace holdfast
