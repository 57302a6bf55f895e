#include "holdfast/job/stop_signals.h"

#include <unistd.h>

#include <array>
#include <atomic>

#include "holdfast/base/mutex.h"

namespace holdfast {
namespace {

constexpr std::array kSignals = {SIGTERM, SIGUSR1};

// A handler has no argument of its own, so what it touches is global.
std::atomic<int> first_caught = 0;
std::atomic<pid_t> listener = 0;
std::array<struct sigaction, kSignals.size()> previous{};

Mutex mutex;  // never taken by the handler
int instances HOLDFAST_GUARDED_BY(mutex) = 0;

bool is_default(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_DFL;
}

void call_previous(const struct sigaction& action, int number, siginfo_t* info,
                   void* context) {
  if ((action.sa_flags & SA_SIGINFO) != 0) {
    if (action.sa_sigaction != nullptr) action.sa_sigaction(number, info, context);
  } else if (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN) {
    action.sa_handler(number);
  }
}

void handle(int number, siginfo_t* info, void* context) {
  int none = 0;
  first_caught.compare_exchange_strong(none, number);
  for (size_t i = 0; i < kSignals.size(); ++i) {
    if (kSignals[i] != number) continue;
    if (listener == ::getpid() || !is_default(previous[i])) {
      call_previous(previous[i], number, info, context);
    } else {  // nobody asks for the flag in a child, and who ends it waits for its end
      sigaction(number, &previous[i], nullptr);
      ::raise(number);
    }
  }
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
    sigaction(kSignals[i], &action, &previous[i]);
  }
}

StopSignals::~StopSignals() {
  MutexLock lock(mutex);
  if (--instances > 0) return;
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], &previous[i], nullptr);
  }
}

std::optional<int> StopSignals::caught() const {
  const int number = first_caught;
  return number == 0 ? std::nullopt : std::optional(number);
}

}  // namespace holdfast
