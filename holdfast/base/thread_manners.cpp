#include "holdfast/base/thread_manners.h"

#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace holdfast {

namespace {

constexpr uint64_t kShortTurn =
    100'000;  // nanoseconds, the least that the system takes

// As the system call takes it, of which the C library knows nothing.
struct SchedulingAttributes {
  uint32_t size = sizeof(SchedulingAttributes);
  uint32_t policy = 0;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime = 0;
  uint64_t deadline = 0;
  uint64_t period = 0;
};

bool is_usual() {
  int policy = 0;
  sched_param param{};
  return ::pthread_getschedparam(::pthread_self(), &policy, &param) == 0 &&
         policy == SCHED_OTHER;
}

// Unless somebody has chosen another than the usual one.
void change_policy(int to) {
  const sched_param none{};
  if (is_usual())
    static_cast<void>(::pthread_setschedparam(::pthread_self(), to, &none));
}

// The length of a turn, for systems that let a thread say so (Linux 6.12).
void take_short_turns() {
  SchedulingAttributes attributes;
  if (::syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) != 0) return;
  attributes.runtime = kShortTurn;
  static_cast<void>(::syscall(SYS_sched_setattr, 0, &attributes, 0));
}

}  // namespace

void wait_for_turns() {
  if (!is_usual()) return;
  change_policy(SCHED_BATCH);
  take_short_turns();
}

void run_when_idle() { change_policy(SCHED_IDLE); }

}  // namespace holdfast
