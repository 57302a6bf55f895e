// Tests processes that are started, waited for and ended, with real processes.
#include "holdfast/env/child.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <charconv>
#include <thread>

#include "holdfast/base/testing.h"
#include "holdfast/env/posix_env.h"

namespace holdfast::child_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class ChildTest : public ::testing::Test {
 protected:
  ChildOptions shell(const std::string& script) {
    return {.command = {"sh", "-c", script},
            .output = folder_.path() / "out",
            .errors = folder_.path() / "err"};
  }

  std::string read(const char* name) {
    return env_->read_text(folder_.path() / name).value();
  }

  // Waits until the program has printed a process id, and returns it.
  int printed_pid() {
    int pid = 0;
    for (int i = 0; i < 2000 && pid == 0; ++i) {
      const std::string text = read("out");
      if (text.ends_with('\n')) {
        std::from_chars(text.data(), text.data() + text.size(), pid);
      }
      std::this_thread::sleep_for(milliseconds(5));
    }
    EXPECT_NE(pid, 0);
    return pid;
  }

  // True if the process is gone, or becomes so within 10 s. A process that has ended
  // and that nobody has waited for counts as gone.
  bool is_gone(int pid) {
    for (int i = 0; i < 2000; ++i) {
      const auto stat = env_->read_text(fmt::format("/proc/{}/stat", pid));
      if (!stat.ok() || stat->find(") Z ") != std::string::npos) return true;
      std::this_thread::sleep_for(milliseconds(5));
    }
    return false;
  }

  TempFolder folder_;
  std::unique_ptr<Env> env_ = make_posix_env();
};

TEST_F(ChildTest, TheEndTellsTheExitCode) {
  for (const int code : {0, 1, 3, 255}) {
    auto child = Child::start(shell(fmt::format("exit {}", code)));
    ASSERT_OK(child);
    const auto end = child->wait(seconds(30));
    ASSERT_TRUE(end);
    EXPECT_EQ(end->code, code);
    EXPECT_EQ(end->signal, 0);
    EXPECT_EQ(end->succeeded(), code == 0);
    EXPECT_EQ(end->text(), fmt::format("exit code {}", code));
    EXPECT_EQ(child->wait(seconds(0))->code, code) << "the end is known from then on";
  }
}

TEST_F(ChildTest, TheEndTellsTheSignal) {
  auto child = Child::start(shell("kill -SEGV $$"));
  ASSERT_OK(child);
  const auto end = child->wait(seconds(30));
  ASSERT_TRUE(end);
  EXPECT_EQ(end->signal, SIGSEGV);
  EXPECT_FALSE(end->succeeded());
  EXPECT_EQ(end->text(), "signal 11 (Segmentation fault)");
}

TEST_F(ChildTest, WordsAndVariablesArriveAsTheyAre) {
  ASSERT_EQ(setenv("HOLDFAST_CHILD_TEST", "before", 1), 0);
  ChildOptions options = shell("");
  options.command = {"sh", "-c", "printf '%s|' \"$1\" \"$2\" \"$HOLDFAST_CHILD_TEST\"",
                     "name", "two words; $HOME", "*"};
  options.environment = {{"HOLDFAST_CHILD_TEST", "it's \"after\""}};
  auto child = Child::start(options);
  ASSERT_OK(child);
  ASSERT_TRUE(child->wait(seconds(30)));
  EXPECT_EQ(read("out"), "two words; $HOME|*|it's \"after\"|");
}

TEST_F(ChildTest, OutputAndErrorsGoToTheirFilesAndMayShareOne) {
  auto child = Child::start(shell("echo one; echo two >&2"));
  ASSERT_OK(child);
  ASSERT_TRUE(child->wait(seconds(30)));
  EXPECT_EQ(read("out"), "one\n");
  EXPECT_EQ(read("err"), "two\n");
  ChildOptions both = shell("echo one; echo two >&2; echo three");
  both.errors = both.output;
  auto other = Child::start(both);
  ASSERT_OK(other);
  ASSERT_TRUE(other->wait(seconds(30)));
  EXPECT_EQ(read("out"), "one\ntwo\nthree\n");
}

TEST_F(ChildTest, ItsInputIsEmpty) {
  auto child = Child::start(shell("cat; echo read"));
  ASSERT_OK(child);
  ASSERT_TRUE(child->wait(seconds(30)));
  EXPECT_EQ(read("out"), "read\n");
}

TEST_F(ChildTest, ADeadlineLeavesTheProgramRunning) {
  auto child = Child::start(shell("sleep 1000"));
  ASSERT_OK(child);
  const auto before = std::chrono::steady_clock::now();
  EXPECT_FALSE(child->wait(milliseconds(50)));
  EXPECT_GE(std::chrono::steady_clock::now() - before, milliseconds(50));
  EXPECT_EQ(::kill(child->pid(), 0), 0);
  EXPECT_EQ(child->end(seconds(30)).signal, SIGTERM);
}

TEST_F(ChildTest, GrandchildrenEndAsWell) {
  auto child = Child::start(shell("sleep 1000 & echo $!; wait"));
  ASSERT_OK(child);
  const int grandchild = printed_pid();
  EXPECT_EQ(child->end(seconds(30)).signal, SIGTERM);
  EXPECT_TRUE(is_gone(grandchild));
}

TEST_F(ChildTest, GrandchildrenOfAProgramThatExitedEndAsWell) {
  auto child = Child::start(shell("sleep 1000 & echo $!"));
  ASSERT_OK(child);
  const auto end = child->wait(seconds(30));
  ASSERT_TRUE(end);
  EXPECT_TRUE(end->succeeded());
  EXPECT_TRUE(is_gone(printed_pid()));
}

TEST_F(ChildTest, AProgramThatIgnoresTheRequestIsKilled) {
  auto child = Child::start(
      shell("trap '' TERM; sh -c 'trap \"\" TERM; echo $$; while :; do sleep 1; done'"));
  ASSERT_OK(child);
  const int grandchild = printed_pid();
  EXPECT_EQ(child->end(milliseconds(100)).signal, SIGKILL);
  EXPECT_TRUE(is_gone(grandchild));
}

TEST_F(ChildTest, AProgramMayCleanUpWhenItIsAskedToEnd) {
  auto child = Child::start(
      shell("trap 'echo cleaned; exit 7' TERM; echo $$; while :; do sleep 0.01; done"));
  ASSERT_OK(child);
  printed_pid();
  EXPECT_EQ(child->end(seconds(30)).code, 7);
  EXPECT_TRUE(read("out").ends_with("cleaned\n"));
}

TEST_F(ChildTest, AStoppedProgramIsEnded) {
  auto child = Child::start(shell("echo $$; kill -STOP $$; sleep 1000"));
  ASSERT_OK(child);
  printed_pid();
  EXPECT_FALSE(child->wait(milliseconds(50)));
  EXPECT_EQ(child->end(seconds(30)).signal, SIGTERM);
}

TEST_F(ChildTest, TheDestructorEndsTheGroup) {
  int grandchild = 0;
  {
    auto child = Child::start(shell("sleep 1000 & echo $!; wait"));
    ASSERT_OK(child);
    grandchild = printed_pid();
  }
  EXPECT_TRUE(is_gone(grandchild));
}

TEST_F(ChildTest, SignalsThatThisProcessIgnoresWorkInTheProgram) {
  const auto before = ::signal(SIGTERM, SIG_IGN);
  auto child = Child::start(shell("echo $$; sleep 1000"));
  ::signal(SIGTERM, before);
  ASSERT_OK(child);
  printed_pid();
  EXPECT_EQ(child->end(seconds(30)).signal, SIGTERM);
}

TEST_F(ChildTest, WhatCannotBeStartedIsNamed) {
  const auto missing = Child::start({.command = {"no-such-program-here"}});
  EXPECT_ERROR(missing, ErrorCode::kNotFound);
  EXPECT_EQ(message_of(missing),
            "a program cannot be started: no-such-program-here: No such file or "
            "directory");
  const Path file = folder_.path() / "plain";
  ASSERT_OK(env_->write_file(file, bytes_of("no program")));
  EXPECT_ERROR(Child::start({.command = {file.native()}}), ErrorCode::kDenied);
  EXPECT_ERROR(Child::start({}), ErrorCode::kInvalid);
  EXPECT_ERROR(Child::start({.command = {"true"}, .output = folder_.path() / "no" / "o"}),
               ErrorCode::kNotFound);
}

}  // namespace
}  // namespace holdfast::child_test
