// Campaigns that were stopped or killed are continued, and leave nothing behind.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <fstream>
#include <set>
#include <thread>

#include "holdfast/campaign/campaign_testing.h"
#include "holdfast/store/process.h"

namespace holdfast::campaign_test {
namespace {

TEST_F(CampaignTest, WhatIsRecordedIsNotRepeatedAndTheRestIsTheSame) {
  CampaignOptions asked = options();
  ASSERT_OK(run_campaign(*env_, asked));
  asked.folder = root_ / "parts";
  asked.trials = 2;
  ASSERT_OK(run_campaign(*env_, asked));
  const std::string before = env_->read_text(root_ / "parts" / kTrialsFile).value();
  asked.trials = 4;
  const auto result = run_campaign(*env_, asked);
  ASSERT_OK(result);
  EXPECT_EQ(result->done, 2);
  EXPECT_EQ(result->golden.recorded, 2);
  EXPECT_EQ(result->golden.runs, 1);
  EXPECT_TRUE(env_->read_text(root_ / "parts" / kTrialsFile)->starts_with(before));
  EXPECT_EQ(lines("parts"), lines("out"));
}

TEST_F(CampaignTest, AKilledCampaignIsContinued) {
  CampaignOptions asked = options();
  ASSERT_OK(run_campaign(*env_, asked));
  asked.folder = root_ / "killed";
  const pid_t child = ::fork();
  if (child == 0) {
    const auto env = make_posix_env();
    (void)run_campaign(*env, asked);
    ::_exit(0);
  }
  const Path file = root_ / "killed" / kTrialsFile;
  for (int i = 0; i < 4000; ++i) {
    const auto text = env_->read_text(file);
    if (text.ok() && std::ranges::count(*text, '\n') >= 1) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  // As if the kill had come in the middle of a line.
  std::ofstream(file, std::ios::app) << "{\"trial\": 99, \"se";
  ASSERT_OK(run_campaign(*env_, asked));
  EXPECT_EQ(lines("killed"), lines("out"));
}

TEST_F(CampaignTest, ACampaignThatIsAskedToStopKeepsWhatItHas) {
  for (CampaignOptions asked : {options(), served()}) {
    asked.folder = root_ / (asked.serve ? "served" : "fresh");
    int trials = 0;
    const auto stopped = run_campaign(
        *env_, asked,
        {.progress = [&](int64_t, int64_t) { ++trials; },
         .stopped = [&] { return trials >= 3; }});
    ASSERT_OK(stopped);
    EXPECT_TRUE(stopped->stopped);
    EXPECT_GT(stopped->done, 0);
    EXPECT_LT(stopped->done, 4);
    const auto rest = run_campaign(*env_, asked);
    ASSERT_OK(rest);
    EXPECT_EQ(stopped->done + rest->done, 4);
  }
  EXPECT_EQ(lines("fresh"), lines("served"));
}

TEST_F(CampaignTest, WhatAKilledCallHasLeftIsRemoved) {
  const Path out = root_ / "out";
  CampaignOptions asked = options("plain", true);
  asked.trials = 1;
  const auto leave = [&] {
    ASSERT_OK(env_->create_folders(out / "work.0123456789abcdef"));
    for (const char* name :
         {"running", "running.0123456789abcdef.tmp", "campaign.json.0123456789abcdef.tmp",
          "work.0123456789abcdef/log.jsonl"}) {
      ASSERT_OK(env_->write_file(out / name, bytes_of("1 2")));
    }
  };
  leave();
  ASSERT_OK(env_->write_file(out / "golden-state", bytes_of("x")));
  const std::vector<std::string> wanted{"campaign.json", "golden-state", "trials.jsonl"};
  ASSERT_OK(run_campaign(*env_, asked));
  EXPECT_EQ(env_->list(out).value(), wanted);
  leave();
  ASSERT_OK(run_campaign(*env_, asked));
  EXPECT_EQ(env_->list(out).value(), wanted);
}

// A program whose campaign was killed may still write into the old work folder.
TEST_F(CampaignTest, EveryCallHasAWorkFolderOfItsOwn) {
  CampaignOptions asked = served();
  asked.trials = 1;
  std::set<std::string> seen;
  for (int call = 0; call < 2; ++call) {
    ASSERT_OK(run_campaign(*env_, asked, {.golden = [&](const GoldenReport&) {
                             const auto names = env_->list(root_ / "out").value();
                             for (const std::string& name : names) {
                               if (name.starts_with("work")) seen.insert(name);
                             }
                           }}));
  }
  EXPECT_EQ(seen.size(), 2u);
}

TEST_F(CampaignTest, TwoProcessesDoNotShareAFolder) {
  CampaignOptions asked = served();
  asked.trials = 1;
  ASSERT_OK(run_campaign(*env_, asked));
  const auto self = this_process(*env_);
  ASSERT_OK(self);
  const auto run_with_mark = [&](int64_t pid, const std::string& boot,
                                 const std::string& host) {
    const std::string mark =
        fmt::format("{} {} {} {}\n", pid, self->started, boot, host);
    EXPECT_OK(env_->write_file(root_ / "out" / "running", bytes_of(mark)));
    return message_of(run_campaign(*env_, asked));
  };
  EXPECT_NE(run_with_mark(self->pid, self->boot, self->host).find("works in it"),
            std::string::npos);
  EXPECT_NE(run_with_mark(1, self->boot, "elsewhere").find("process 1 on elsewhere"),
            std::string::npos);
  EXPECT_EQ(run_with_mark(999999, self->boot, self->host), "");
  EXPECT_EQ(run_with_mark(self->pid, "another-boot", self->host), "");
  // A mark that was not written as a whole.
  ASSERT_OK(env_->write_file(root_ / "out" / "running", bytes_of("12 3")));
  EXPECT_OK(run_campaign(*env_, asked));
}

}  // namespace
}  // namespace holdfast::campaign_test
