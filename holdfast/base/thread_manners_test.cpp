#include "holdfast/base/thread_manners.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>

#include <thread>

namespace holdfast {
namespace {

int policy_now() {
  int policy = -1;
  sched_param param{};
  EXPECT_EQ(::pthread_getschedparam(::pthread_self(), &policy, &param), 0);
  return policy;
}

int policy_after(int before, void (*change)() = wait_for_turns) {
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
  EXPECT_EQ(policy_after(SCHED_OTHER, run_when_idle), SCHED_IDLE);
}

TEST(ThreadManners, APolicyThatSomebodyChoseStays) {
  EXPECT_EQ(policy_after(SCHED_BATCH, run_when_idle), SCHED_BATCH);
  EXPECT_EQ(policy_after(SCHED_IDLE), SCHED_IDLE);
}

TEST(ThreadManners, OthersStayAsTheyAre) {
  const int before = policy_now();
  std::thread(wait_for_turns).join();
  EXPECT_EQ(policy_now(), before);
}

}  // namespace
}  // namespace holdfast
