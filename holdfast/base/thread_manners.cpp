#include "holdfast/base/thread_manners.h"

#include <pthread.h>
#include <sched.h>

namespace holdfast {

namespace {

// Unless somebody has chosen another than the usual one.
void change_policy(int to) {
  int policy = 0;
  sched_param param{};
  if (::pthread_getschedparam(::pthread_self(), &policy, &param) != 0) return;
  if (policy != SCHED_OTHER) return;
  static_cast<void>(::pthread_setschedparam(::pthread_self(), to, &param));
}

}  // namespace

void wait_for_turns() { change_policy(SCHED_BATCH); }

void run_when_idle() { change_policy(SCHED_IDLE); }

}  // namespace holdfast
