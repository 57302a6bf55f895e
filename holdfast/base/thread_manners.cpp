#include "holdfast/base/thread_manners.h"

#include <pthread.h>
#include <sched.h>

namespace holdfast {

void wait_for_turns() {
  int policy = 0;
  sched_param param{};
  if (::pthread_getschedparam(::pthread_self(), &policy, &param) != 0) return;
  if (policy != SCHED_OTHER) return;
  static_cast<void>(::pthread_setschedparam(::pthread_self(), SCHED_BATCH, &param));
}

}  // namespace holdfast
