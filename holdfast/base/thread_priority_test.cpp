#include "holdfast/base/thread_priority.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

namespace holdfast {
namespace {

int policy_now() {
  int policy = -1;
  sched_param param{};
  EXPECT_EQ(::pthread_getschedparam(::pthread_self(), &policy, &param), 0);
  return policy;
}

int policy_after(int before, void (*change)() = use_batch_scheduling) {
  int seen = -1;
  std::thread([&] {
    const sched_param none{};
    ASSERT_EQ(::pthread_setschedparam(::pthread_self(), before, &none), 0);
    change();
    seen = policy_now();
  }).join();
  return seen;
}

TEST(ThreadManners, AThreadOfTheUsualPolicyWaitsForItsTurns) {
  EXPECT_EQ(policy_after(SCHED_OTHER), SCHED_BATCH);
}

TEST(ThreadManners, AThreadThatHasTimeRunsWhenNobodyElseDoes) {
  EXPECT_EQ(policy_after(SCHED_OTHER, use_idle_scheduling), SCHED_IDLE);
}

TEST(ThreadManners, APolicyThatSomebodyChoseStays) {
  EXPECT_EQ(policy_after(SCHED_BATCH, use_idle_scheduling), SCHED_BATCH);
  EXPECT_EQ(policy_after(SCHED_IDLE), SCHED_IDLE);
}

// The length of the calling thread's turns in nanoseconds; 0 before Linux 6.12, which
// does not tell it.
uint64_t turn_now() {
  struct {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t turn, deadline, period;
  } attributes{};
  EXPECT_EQ(::syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0), 0);
  return attributes.turn;
}

TEST(ThreadManners, TurnsAreShortWhereTheSystemKnowsOfTheirLength) {
  const uint64_t usual = turn_now();
  if (usual == 0) GTEST_SKIP() << "this system does not";
  uint64_t turn = usual;
  std::thread([&] {
    use_batch_scheduling();
    turn = turn_now();
  }).join();
  EXPECT_LT(turn, usual);
  EXPECT_EQ(turn_now(), usual);
}

TEST(ThreadManners, OthersStayAsTheyAre) {
  const int before = policy_now();
  std::thread(use_batch_scheduling).join();
  EXPECT_EQ(policy_now(), before);
}

}  // namespace
}  // namespace holdfast
