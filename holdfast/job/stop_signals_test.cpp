#include "holdfast/job/stop_signals.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

namespace holdfast {
namespace {

int called = 0;
void count_call(int /*signal*/) { ++called; }

TEST(StopSignals, SetAFlagCallWhatWasThereAndPutItBack) {
  struct sigaction own {};
  own.sa_handler = count_call;
  struct sigaction before {};
  ASSERT_EQ(sigaction(SIGUSR1, &own, &before), 0);
  called = 0;
  {
    const StopSignals signals;
    EXPECT_EQ(signals.caught(), std::nullopt);
    std::raise(SIGUSR1);
    EXPECT_EQ(signals.caught(), SIGUSR1);
    std::raise(SIGTERM);  // would end the process
    EXPECT_EQ(signals.caught(), SIGUSR1);
    EXPECT_EQ(called, 1);
  }
  struct sigaction after {};
  sigaction(SIGUSR1, &before, &after);
  EXPECT_EQ(after.sa_handler, &count_call);
}

TEST(StopSignals, LeaveAHandlerThatCameLater) {
  struct sigaction own {
  }, before{}, after{};
  own.sa_handler = count_call;
  called = 0;
  {
    const StopSignals signals;
    ASSERT_EQ(sigaction(SIGTERM, &own, &before), 0);
  }
  std::raise(SIGTERM);
  EXPECT_EQ(called, 1);
  ASSERT_EQ(sigaction(SIGTERM, nullptr, &after), 0);
  EXPECT_EQ(after.sa_handler, &count_call);
  after.sa_handler = SIG_DFL;
  sigaction(SIGTERM, &after, nullptr);
}

struct sigaction below {};
void count_and_pass_on(int signal, siginfo_t* info, void* context) {
  ++called;
  below.sa_sigaction(signal, info, context);
}

TEST(StopSignals, MayBeBothOverAndUnderAHandlerThatPassesOn) {
  struct sigaction own {};
  own.sa_sigaction = count_and_pass_on;
  own.sa_flags = SA_SIGINFO;
  called = 0;
  {
    const StopSignals first;
    ASSERT_EQ(sigaction(SIGTERM, &own, &below), 0);
    std::raise(SIGTERM);
    EXPECT_EQ(first.caught(), SIGTERM);
  }
  const StopSignals second;
  EXPECT_EQ(second.caught(), std::nullopt);
  std::raise(SIGTERM);
  EXPECT_EQ(second.caught(), SIGTERM);
  EXPECT_EQ(called, 2);
  own = {};
  own.sa_handler = SIG_DFL;
  sigaction(SIGTERM, &own, nullptr);
}

TEST(StopSignals, SeveralListenersHearTheSame) {
  const StopSignals first;
  {
    const StopSignals second;
    std::raise(SIGTERM);
    EXPECT_EQ(second.caught(), SIGTERM);
  }
  std::raise(SIGTERM);  // still heard
  EXPECT_EQ(first.caught(), SIGTERM);
}

TEST(StopSignals, AForkedChildIsStoppedAsIfNobodyListened) {
  const StopSignals signals;
  const pid_t child = ::fork();
  if (child == 0) {
    std::raise(SIGTERM);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
}

}  // namespace
}  // namespace holdfast
