// Tests how a program that serves trials connects, and what its messages say.
#include "holdfast/campaign/trial_runner.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "holdfast/base/testing.h"
#include "holdfast/env/posix_env.h"

namespace holdfast::trial_runner_test {
namespace {

// Makes connections that announce a number of ranks. With "leave", the first rank closes
// its connection when it is asked for a trial, and the process goes on.
constexpr const char* kRanks = R"(
import os, socket, sys, time
connections = []
for rank in range(int(sys.argv[1])):
    connections.append(socket.socket(socket.AF_UNIX))
    connections[-1].connect(os.environ["HOLDFAST_CAMPAIGN"])
    connections[-1].sendall(b'{"rank": %d, "ranks": %d}\n' % (rank, int(sys.argv[2])))
if "leave" in sys.argv:
    connections[0].recv(1)
    print("BadZipFile: of this rank", file=sys.stderr, flush=True)
    connections[0].shutdown(socket.SHUT_RDWR)
    connections[0].close()
time.sleep(1000)
)";

class ServedRunnerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::system("python3 -c pass") != 0) GTEST_SKIP() << "no python3 here";
    std::ofstream(root_ / "ranks.py") << kRanks;
  }

  Result<TrialEnd> run(std::vector<std::string> words, Duration start) {
    words.insert(words.begin(), {"python3", "-IS", root_ / "ranks.py"});
    const auto runner = make_served_runner(
        *env_, {.command = std::move(words), .work = root_, .start = start});
    const Instant began = env_->now();
    const auto end = runner->run({.checkpoint = root_ / "checkpoint", .log = root_ / "log"},
                                 std::chrono::hours(1), [] { return false; });
    EXPECT_LT(seconds_since(*env_, began), 60);
    EXPECT_FALSE(runner->is_running());
    return end;
  }

  TempFolder temp_;
  const Path root_ = temp_.path();
  std::unique_ptr<Env> env_ = make_posix_env();
};

TEST_F(ServedRunnerTest, ARankThatIsGoneIsAFailureLongBeforeTheDeadline) {
  const auto end = run({"2", "2", "leave"}, std::chrono::minutes(1));
  ASSERT_OK(end);
  EXPECT_EQ(end->kind, TrialEnd::Kind::kFailed);
  EXPECT_NE(end->said.find("closed its connection without an answer, 1 of 2 are left"),
            std::string::npos)
      << end->said;
  EXPECT_TRUE(is_refusal(*end, {})) << "the rank has said why: " << end->said;
}

TEST_F(ServedRunnerTest, MissingRanksAreCounted) {
  const auto end = run({"1", "4"}, std::chrono::seconds(1));
  ASSERT_OK(end);
  EXPECT_EQ(end->kind, TrialEnd::Kind::kTimedOut);
  EXPECT_NE(end->how.find("1 of 4 ranks connected within 1"), std::string::npos)
      << end->how;
}

TEST_F(ServedRunnerTest, MoreRanksThanAnnouncedAreRefused) {
  const auto end = run({"4", "1"}, std::chrono::minutes(1));
  EXPECT_ERROR(end, ErrorCode::kInvalid);
  EXPECT_NE(message_of(end).find("ranks connected, and one says that there are 1"),
            std::string::npos)
      << message_of(end);
}

TEST(TrialRunnerTest, OnlyWholePathsOfTheFilesAreReplaced) {
  const TrialFiles files{.checkpoint = "c/work.1/checkpoint.pt", .log = "c/work.1/log"};
  EXPECT_EQ(without_paths("the checkpoint c/work.1/checkpoint.pt is corrupted", files),
            "the checkpoint {checkpoint} is corrupted");
  const std::string whole = std::filesystem::absolute("c/work.1/log");
  EXPECT_EQ(without_paths("cannot write " + whole + ".tmp", files),
            "cannot write {log}.tmp");
}

}  // namespace
}  // namespace holdfast::trial_runner_test
