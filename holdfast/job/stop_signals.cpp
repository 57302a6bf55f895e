#include "holdfast/job/stop_signals.h"

#include <pthread.h>

#include <array>
#include <atomic>

#include "holdfast/base/check.h"

namespace holdfast {
namespace {

constexpr std::array kSignals = {SIGTERM, SIGUSR1};

// A handler has no argument of its own, so what it touches is global.
std::atomic<bool> installed = false;
std::atomic<int> first_caught = 0;
std::array<struct sigaction, kSignals.size()> previous{};

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
    if (kSignals[i] == number) call_previous(previous[i], number, info, context);
  }
}

void put_back() {
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], &previous[i], nullptr);
  }
}

// A forked process, such as a loader's worker, is ended by the signals as before.
void put_back_in_child() {
  if (installed) put_back();
  installed = false;
}

}  // namespace

StopSignals::StopSignals() {
  HOLDFAST_CHECK(!installed.exchange(true), "stop signals are caught twice");
  static const int once = pthread_atfork(nullptr, nullptr, put_back_in_child);
  static_cast<void>(once);
  first_caught = 0;
  struct sigaction action {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], &action, &previous[i]);
  }
}

StopSignals::~StopSignals() {
  if (!installed.exchange(false)) return;  // a child's copy
  put_back();
}

std::optional<int> StopSignals::caught() const {
  const int number = first_caught;
  return number == 0 ? std::nullopt : std::optional(number);
}

}  // namespace holdfast
