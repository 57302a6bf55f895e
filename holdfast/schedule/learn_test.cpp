// Tests what a new process learns from the events of earlier processes.
#include "holdfast/schedule/learn.h"

#include <gtest/gtest.h>

namespace holdfast::learn_test {
namespace {

constexpr double kHour = 3600;

// Events on a clock that the test moves, in seconds.
struct Log {
  std::vector<EventRecord> events;
  double now = 1e9;

  void add(std::string name,
           std::vector<std::pair<std::string, EventValue>> fields = {}) {
    const WallTime wall(
        std::chrono::duration_cast<Duration>(std::chrono::duration<double>(now)));
    events.push_back(
        {.name = std::move(name), .wall = wall, .monotonic = {}, .fields = fields});
  }
  void save(int64_t step) {
    add("save_captured", {{"step", step}, {"seconds", 0.5}});
    add("save_durable", {{"step", step}, {"seconds", 3.5}});
  }
  // Works for an hour and saves every ten minutes. The last save is the one that is
  // restored.
  void work() {
    for (int i = 0; i < 6; ++i) save(static_cast<int64_t>(now += kHour / 6));
  }
  void take_over(std::string reason, double last_seen) {
    const auto seen = static_cast<int64_t>(last_seen * 1e9);
    add("run_taken_over", {{"reason", std::move(reason)}, {"last_seen_ns", seen}});
  }
};

TEST(LearnTest, EveryUncleanEndIsAFailureWhateverStepWasRestored) {
  Log log;
  for (int start = 0; start < 20; ++start) {
    if (start > 0) {
      log.now += 300;
      log.take_over("its process is gone", log.now - 300);
    }
    log.add("job_opened");
    if (start > 0) log.add("restored", {{"step", static_cast<int64_t>(log.now - 300)}});
    if (start < 19) log.work();
  }
  const Learned learned = learn(log.events);
  EXPECT_EQ(learned.failures, 19);
  EXPECT_NEAR(learned.worker_seconds / learned.failures, kHour, 1);
}

TEST(LearnTest, ADeathAfterWhichTheOtherRanksWentOnIsRecovered) {
  Log log;
  log.add("job_opened", {{"joined", false}});
  log.work();
  log.add("job_rejoined");  // another rank was lost
  log.work();
  log.take_over("it was an earlier start of the same job", log.now);
  log.save(1);  // the lost process was only stopped for a while
  log.add("job_opened", {{"joined", true}});
  log.work();
  EXPECT_EQ(learn(log.events).failures, 0);
  EXPECT_EQ(learn(log.events).recovered, 2);
  EXPECT_NEAR(learn(log.events).worker_seconds, 3 * kHour, 1);
  log.take_over("its process is gone", log.now);  // now all ranks were lost
  log.add("job_opened", {{"joined", false}});
  EXPECT_EQ(learn(log.events).failures, 1);
  EXPECT_EQ(learn(log.events).recovered, 2);
}

TEST(LearnTest, AnOrderlyEndIsNone) {
  Log log;
  for (int start = 0; start < 5; ++start) {
    if (start > 0) log.take_over("it let go", log.now);
    log.add("job_opened");
    log.work();
    log.add("job_closed");
  }
  EXPECT_EQ(learn(log.events).failures, 0);
  EXPECT_NEAR(learn(log.events).worker_seconds, 5 * kHour, 1);
}

TEST(LearnTest, OneThatLetGoAfterAnErrorHasFailed) {
  Log log;
  log.add("job_opened");
  log.work();
  log.take_over("it let go", log.now);
  log.add("job_opened");
  EXPECT_EQ(learn(log.events).failures, 1);
}

// When a process is killed, its last save may be long ago.
TEST(LearnTest, TheLastRenewalOfTheLeaseEndsTheExposure) {
  Log log;
  log.add("job_opened");
  log.save(1);
  log.now += 9 * kHour;
  log.take_over("its lease ran out", log.now - kHour);
  log.add("job_opened");
  const Learned learned = learn(log.events, 4);
  EXPECT_EQ(learned.failures, 1);
  EXPECT_NEAR(learned.worker_seconds, 4 * 8 * kHour, 1);
}

TEST(LearnTest, GoingBackToAnOlderStepIsNone) {
  Log log;
  log.add("job_opened");
  log.work();
  log.add("restored", {{"step", int64_t{1}}});
  log.work();
  EXPECT_EQ(learn(log.events).failures, 0);
  EXPECT_NEAR(learn(log.events).worker_seconds, 2 * kHour, 1);
}

// save_captured tells how long the copy took in the background, save_cost how long
// training waited. The first save of each process does not count.
TEST(LearnTest, WhatTheJobMeasuredCounts) {
  Log log;
  for (int start = 0; start < 2; ++start) {
    log.add("job_opened");
    for (const double stall : {9.0, 0.01, 0.03}) {
      log.save(static_cast<int64_t>(log.now += 60));
      log.add("save_cost", {{"stall", stall}, {"persist", 100 * stall}});
    }
  }
  EXPECT_NEAR(learn(log.events).stall, 0.02, 1e-12);
  EXPECT_NEAR(learn(log.events).persist, 2, 1e-12);
}

TEST(LearnTest, LogsWithoutMarksAreReadByWhoTookOver) {
  Log log;
  log.work();
  log.take_over("its process is gone", log.now);
  log.add("restored", {{"step", static_cast<int64_t>(log.now)}});
  log.work();
  log.take_over("it let go", log.now);
  log.add("restored", {{"step", static_cast<int64_t>(log.now)}});
  log.work();
  log.add("job_opened");
  EXPECT_EQ(learn(log.events).failures, 2);
}

}  // namespace
}  // namespace holdfast::learn_test
