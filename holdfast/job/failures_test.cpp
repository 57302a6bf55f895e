// A job whose process is killed again and again, as its next process sees it.
#include <gtest/gtest.h>

#include "holdfast/base/testing.h"
#include "holdfast/env/event_log.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/job/job.h"
#include "holdfast/schedule/learn.h"

namespace holdfast {
namespace {

using std::chrono::minutes;

class Failures : public ::testing::Test {
 protected:
  Result<std::unique_ptr<Job>> open() {
    JobOptions options{.signals = false};
    options.saver.ring_bytes = 1 << 20;
    options.saver.block_bytes = 64 << 10;
    options.saver.space_reserve = 0;
    options.saver.background = false;
    options.saver.identity = Identity{.host = "alpha",
                                      .boot = fmt::format("boot-{}", ++boots_),
                                      .pid = 100,
                                      .started = 7};
    return Job::open(env_, "run", nullptr, options);
  }

  std::vector<LocalPiece> pieces() {
    return {whole_piece({.name = "w", .dtype = Dtype::kI64, .shape = {8}}, memory_)};
  }

  // Resumes from the newest step and trains, one step every minute.
  void train(Job& job, Duration time) {
    const Result<RestoredState> restored = job.resume(pieces());
    int64_t step = restored.ok() ? restored->step + 1 : 0;
    if (!restored.ok()) ASSERT_OK(job.attach(pieces()));
    for (const Instant end = env_.now() + time; env_.now() < end; ++step) {
      env_.advance(minutes(1));
      job.settle();
      const Result<Due> due = job.due(step);
      ASSERT_OK(due);
      if (due->save) ASSERT_OK(job.save({.step = step, .pieces = pieces()}));
    }
  }

  Learned learned() {
    const Result<EventLog> log = read_events(env_, "run/events/rank-0000.jsonl");
    return log.ok() ? learn(log->events) : Learned{};
  }

  MemoryEnv env_{1};
  Bytes memory_ = Bytes(64);
  int boots_ = 0;
};

TEST_F(Failures, HourlyKillsAreLearnedAsSuch) {
  for (int kills = 0; kills < 9; ++kills) {
    const auto job = open();
    ASSERT_OK(job);
    train(**job, minutes(60));
    env_.advance(minutes(3));  // the job is down
  }
  const auto job = open();
  ASSERT_OK(job);
  EXPECT_EQ(learned().failures, 9);  // with the failure before this start
  EXPECT_NEAR(learned().worker_seconds / 9, 3600, 600);
  train(**job, minutes(1));
  const std::string said = (*job)->explain();
  EXPECT_NE(said.find("from 9 failures"), std::string::npos) << said;
}

TEST_F(Failures, ATrainingThatIsClosedHasNotFailed) {
  for (int ends = 0; ends < 3; ++ends) {
    const auto job = open();
    ASSERT_OK(job);
    train(**job, minutes(60));
    ASSERT_OK(ends == 2 ? (*job)->close_alone(kNoDeadline, true) : (*job)->close());
  }
  ASSERT_OK(open());
  EXPECT_EQ(learned().failures, 0);
}

TEST_F(Failures, OneThatLeavesBecauseOfAnErrorHas) {
  {
    const auto job = open();
    ASSERT_OK(job);
    train(**job, minutes(60));
    ASSERT_OK((*job)->close_alone());
  }
  ASSERT_OK(open());
  EXPECT_EQ(learned().failures, 1);
}

TEST_F(Failures, ATrainingWhoseRunIsRemovedGoesOnAndSavesThereAgain) {
  const auto job = open();
  ASSERT_OK(job);
  ASSERT_OK((*job)->attach(pieces()));
  ASSERT_OK((*job)->save({.step = 1, .pieces = pieces()}));
  ASSERT_OK(env_.rename("run", "moved"));
  ASSERT_OK((*job)->save({.step = 2, .pieces = pieces()}));
  (*job)->settle();
  ASSERT_OK((*job)->close());
  const std::vector<std::string> said = (*job)->take_warnings();
  ASSERT_EQ(said.size(), 1u);
  EXPECT_NE(said[0].find("was removed or moved away"), std::string::npos) << said[0];
  const auto next = open();
  ASSERT_OK(next);
  const Result<RestoredState> restored = (*next)->resume(pieces());
  ASSERT_OK(restored);
  EXPECT_EQ(restored->step, 2);
}

TEST_F(Failures, AJobThatIsAskedToStopSavesAndStops) {
  const auto job = open();
  ASSERT_OK(job);
  ASSERT_OK((*job)->attach(pieces()));
  EXPECT_FALSE((*job)->due(0)->stop);
  (*job)->ask_to_stop("Ctrl-C");
  (*job)->ask_to_stop("Ctrl-C");
  const Result<Due> due = (*job)->due(1);
  ASSERT_OK(due);
  EXPECT_EQ(*due, (Due{.save = true, .stop = true, .why = "Ctrl-C"}));
}

}  // namespace
}  // namespace holdfast
