#include "holdfast/cli/interruption.h"

namespace holdfast {
namespace {

// Set by the signal handler. A signal handler may write only to variables of this type.
volatile std::sig_atomic_t signal_that_came = 0;
volatile std::sig_atomic_t second_came = 0;

void store_signal(int signal) {
  if (signal_that_came != 0) second_came = 1;
  signal_that_came = signal;
}

}  // namespace

Interruption::Interruption() {
  signal_that_came = 0;
  second_came = 0;
  struct sigaction action {};
  action.sa_handler = store_signal;
  ::sigaction(SIGINT, &action, &before_int_);
  ::sigaction(SIGTERM, &action, &before_term_);
}

Interruption::~Interruption() {
  ::sigaction(SIGINT, &before_int_, nullptr);
  ::sigaction(SIGTERM, &before_term_, nullptr);
  if (signal_that_came != 0) static_cast<void>(std::raise(signal_that_came));
}

bool Interruption::came() const { return signal_that_came != 0; }

bool Interruption::came_again() const { return second_came != 0; }

}  // namespace holdfast
