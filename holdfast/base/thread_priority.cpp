#include "holdfast/base/thread_priority.h"

#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace holdfast {

namespace {

constexpr uint64_t kShortTurn = 100'000;  // nanoseconds, the least that Linux accepts

// The argument of the system calls sched_getattr and sched_setattr, which the C library
// does not declare.
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

// Changes the calling thread's policy, unless somebody has already chosen another than
// the usual SCHED_OTHER. True if the policy was changed.
bool change_policy(int to) {
  int policy = 0;
  sched_param param{};
  if (::pthread_getschedparam(::pthread_self(), &policy, &param) != 0) return false;
  if (policy != SCHED_OTHER) return false;
  return ::pthread_setschedparam(::pthread_self(), to, &param) == 0;
}

// Makes the calling thread's turns short. Does nothing before Linux 6.12, where a
// thread cannot choose the length of its turns.
void take_short_turns() {
  SchedulingAttributes attributes;
  if (::syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) != 0) return;
  attributes.runtime = kShortTurn;
  static_cast<void>(::syscall(SYS_sched_setattr, 0, &attributes, 0));
}

}  // namespace

void use_batch_scheduling() {
  if (change_policy(SCHED_BATCH)) take_short_turns();
}

void use_idle_scheduling() { static_cast<void>(change_policy(SCHED_IDLE)); }

}  // namespace holdfast
