#include "holdfast/store/retention.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "holdfast/env/collecting_sink.h"
#include "holdfast/env/faulty_env.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/store/store_testing.h"

namespace holdfast {
namespace {

KeptStep kept(int64_t step, int64_t sequence,
              std::map<std::string, double> metrics = {}) {
  return {.name = {.step = step}, .age = {1, sequence}, .metrics = std::move(metrics)};
}

std::vector<int64_t> removed(const std::vector<KeptStep>& steps, const Keep& keep) {
  std::vector<int64_t> numbers;
  for (const StepName& name : what_to_remove(steps, keep)) numbers.push_back(name.step);
  return numbers;
}

TEST(Keep, LastCountsByAgeNotByStep) {
  const std::vector<KeptStep> steps = {kept(300, 1), kept(500, 2), kept(400, 3)};
  EXPECT_EQ(removed(steps, {.last = 1}), (std::vector<int64_t>{300, 500}));
  EXPECT_EQ(removed(steps, {.last = 2}), std::vector<int64_t>{300});
  EXPECT_EQ(removed(steps, {.last = 9}), std::vector<int64_t>{});
}

TEST(Keep, TheNewestStaysThoughNoRuleKeepsIt) {
  EXPECT_EQ(removed({kept(1, 1), kept(2, 2)}, {.last = 0}), std::vector<int64_t>{1});
  EXPECT_EQ(removed({kept(1, 1)}, {.last = -5}), std::vector<int64_t>{});
}

TEST(Keep, EveryKeepsTheLastSavedOfEachMultiple) {
  std::vector<KeptStep> steps = {kept(0, 1), kept(100, 2), kept(150, 3), kept(200, 4),
                                 kept(250, 6)};
  steps.push_back({.name = {.step = 100, .generation = 2}, .age = {1, 5}});
  EXPECT_EQ(what_to_remove(steps, {.last = 1, .every = 100}),
            (std::vector<StepName>{{.step = 100}, {.step = 150}}));
}

TEST(Keep, BestLooksAtTheMetricInTheOrderAsked) {
  const std::vector<KeptStep> steps = {
      kept(1, 1, {{"loss", 0.5}}), kept(2, 2, {{"loss", 0.1}}),
      kept(3, 3, {{"loss", NAN}}), kept(4, 4, {{"loss", 0.5}}), kept(5, 5)};
  EXPECT_EQ(removed(steps, {.last = 1, .best = 2, .metric = "loss"}),
            (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(
      removed(steps, {.last = 1, .best = 1, .metric = "loss", .order = Best::kMax}),
      (std::vector<int64_t>{1, 2, 3}));
}

TEST(Keep, OfStepsWithoutTheMetricAsManyAreKeptAsOfTheBest) {
  std::vector<KeptStep> steps = {kept(1, 1, {{"loss", 0.1}}),
                                 kept(2, 2),
                                 kept(3, 3),
                                 kept(4, 4),
                                 kept(5, 5, {{"loss", 0.2}}),
                                 kept(6, 6, {{"loss", 0.3}})};
  const Keep rule{.last = 1, .best = 2, .metric = "loss"};
  EXPECT_EQ(removed(steps, rule), std::vector<int64_t>{2});
  steps[2].whole = false;
  EXPECT_EQ(removed(steps, rule), std::vector<int64_t>{3});
  EXPECT_EQ(removed(steps, {.last = 1, .best = 3, .metric = "Loss"}),
            (std::vector<int64_t>{1, 2, 3}));
}

TEST(Keep, TheDefaultRuleRemovesOnlyTemporarySteps) {
  std::vector<KeptStep> steps;
  for (int64_t step = 1; step <= 8; ++step) {
    steps.push_back(kept(step, step));
    steps.back().temporary = step % 2 == 0;
  }
  EXPECT_EQ(removed(steps, {.last = 3, .only_temporary = true}),
            (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(removed(steps, {.last = 6}), (std::vector<int64_t>{1, 2}));
}

TEST(Keep, WhatIsNotWholeMakesNothingSuperfluous) {
  std::vector<KeptStep> steps = {kept(1, 1), kept(2, 2), kept(3, 3)};
  steps[2].whole = false;
  EXPECT_EQ(removed(steps, {.last = 1}), std::vector<int64_t>{1});
  steps[1].whole = false;
  EXPECT_EQ(removed(steps, {.last = 1}), std::vector<int64_t>{});
}

std::vector<KeptStep> random_steps() {
  const int count = *rc::gen::inRange(0, 30);
  std::vector<KeptStep> steps;
  for (int i = 0; i < count; ++i) {
    steps.push_back(
        {.name = {.step = *rc::gen::inRange(0, 12) * 50, .generation = i + 1},
         .age = {*rc::gen::inRange(1, 4), i},
         .whole = *rc::gen::inRange(0, 4) != 0,
         .pinned = *rc::gen::inRange(0, 5) == 0});
    if (*rc::gen::arbitrary<bool>()) {
      steps.back().metrics["loss"] = *rc::gen::inRange(0, 5);
    }
  }
  return steps;
}

RC_GTEST_PROP(Keep, HoldsItsPromisesOnAnyList, ()) {
  const std::vector<KeptStep> steps = random_steps();
  const Keep keep{.last = *rc::gen::inRange(-1, 6),
                  .every = *rc::gen::element<int64_t>(0, 50, 100),
                  .best = *rc::gen::inRange(0, 4),
                  .metric = "loss",
                  .order = *rc::gen::element(Best::kMin, Best::kMax)};
  const std::vector<StepName> gone = what_to_remove(steps, keep);
  const std::set<StepName> set(gone.begin(), gone.end());
  RC_ASSERT(set.size() == gone.size());
  int64_t whole = 0, whole_left = 0;
  const KeptStep* newest = nullptr;
  std::vector<KeptStep> left;
  for (const KeptStep& step : steps) {
    whole += step.whole;
    if (step.whole && (newest == nullptr || step.age > newest->age)) newest = &step;
    if (set.contains(step.name)) {
      RC_ASSERT(!step.pinned);
      continue;
    }
    whole_left += step.whole;
    left.push_back(step);
  }
  RC_ASSERT(whole_left >= std::min(whole, std::max<int64_t>(keep.last, 1)));
  if (newest != nullptr) RC_ASSERT(!set.contains(newest->name));
  // A second pass over the steps that stayed removes nothing more.
  RC_ASSERT(what_to_remove(left, keep).empty());
  // The order of the list does not matter.
  std::vector<KeptStep> other = steps;
  std::reverse(other.begin(), other.end());
  RC_ASSERT(what_to_remove(other, keep) == gone);
}

class RetentionTest : public testing::Test {
 protected:
  RetentionTest()
      : run(holdfast::Run::create_or_open(disk, kTestRun).value()),
        owner(run.acquire(test_process(1), {.alive = nobody_lives()}).value()) {
    for (const int64_t step : {1, 2, 3, 4}) {
      HOLDFAST_CHECK(save_tiny(run, owner, step, static_cast<uint64_t>(step)).ok(),
                     "save");
    }
  }
  std::vector<int64_t> left() {
    std::vector<int64_t> steps;
    for (const Step& step : run.steps().value().steps) steps.push_back(step.name.step);
    return steps;
  }
  Path folder(int64_t step) { return run.path() / StepName{.step = step}.text(); }

  MemoryEnv disk;
  holdfast::Run run;
  Owner owner;
  CollectingSink events;
};

TEST_F(RetentionTest, OldStepsGoWithAllTheirFiles) {
  const auto gone = Retention(run, owner, {.last = 2}, &events).run();
  ASSERT_OK(gone);
  EXPECT_EQ(gone->size(), 2u);
  EXPECT_EQ(left(), (std::vector<int64_t>{4, 3}));
  EXPECT_EQ(events.records().size(), 2u);
  EXPECT_EQ(disk.list(run.path()).value(),
            (std::vector<std::string>{"holdfast.json", "latest", "owner-00000001.json",
                                      "owner.json", "step-00000003", "step-00000004"}));
}

TEST_F(RetentionTest, ADamagedStepDoesNotPushOutAWholeOne) {
  ASSERT_OK(disk.remove_file(folder(4) / "objects.json"));
  ASSERT_OK(disk.write_file(folder(3) / "rank-0000.safetensors", bytes_of("x")));
  ASSERT_OK(Retention(run, owner, {.last = 1}).run());
  EXPECT_EQ(left(), (std::vector<int64_t>{4, 3, 2}));
}

TEST_F(RetentionTest, WhereNothingIsWholeNothingGoes) {
  for (const int64_t step : {1, 2, 3, 4}) {
    ASSERT_OK(disk.remove_file(folder(step) / "objects.json"));
  }
  ASSERT_OK(Retention(run, owner, {.last = 1}).run());
  EXPECT_EQ(left().size(), 4u);
}

TEST_F(RetentionTest, PinsSurviveAndUnpinnedStepsGo) {
  ASSERT_OK(pin(run, {.step = 1}));
  EXPECT_ERROR(pin(run, {.step = 9}), ErrorCode::kNotFound);
  EXPECT_EQ(pinned_steps(run).value(), std::set<StepName>{{.step = 1}});
  Retention retention(run, owner, {.last = 1});
  ASSERT_OK(retention.run());
  EXPECT_EQ(left(), (std::vector<int64_t>{4, 1}));
  ASSERT_OK(unpin(run, {.step = 1}));
  ASSERT_OK(unpin(run, {.step = 1}));
  ASSERT_OK(retention.run());
  EXPECT_EQ(left(), std::vector<int64_t>{4});
  const auto after = disk.after_crash({Unsynced::kLost});
  EXPECT_TRUE(
      pinned_steps(holdfast::Run::open(*after, kTestRun).value()).value().empty());
}

TEST_F(RetentionTest, AStepThatIsPinnedAsItGoesComesBack) {
  FaultyEnv env(disk);
  const holdfast::Run raced = holdfast::Run::open(env, kTestRun).value();
  Retention retention(raced, owner, {.last = 3}, &events);
  env.before(Op::kRename, 1, [&] { EXPECT_OK(pin(run, {.step = 1})); });
  EXPECT_TRUE(retention.run().value().empty());
  ASSERT_EQ(left(), (std::vector<int64_t>{4, 3, 2, 1}));
  EXPECT_TRUE(check_step(disk, folder(1), Depth::kFull)->whole());
  EXPECT_TRUE(events.records().empty());
}

TEST_F(RetentionTest, AStepThatIsPinnedAsItGoesComesBackAfterAKillToo) {
  FaultyEnv env(disk);
  const holdfast::Run raced = holdfast::Run::open(env, kTestRun).value();
  Retention retention(raced, owner, {.last = 3}, &events);
  env.before(Op::kRename, 1, [&] { EXPECT_OK(pin(run, {.step = 1})); });
  env.crash_at(Op::kRename, 2);  // the way back
  (void)retention.run();
  ASSERT_EQ(left(), (std::vector<int64_t>{4, 3, 2}));
  EXPECT_EQ(run.sweep(owner, {}).value(), 0);
  ASSERT_EQ(left(), (std::vector<int64_t>{4, 3, 2, 1}));
  EXPECT_TRUE(check_step(disk, folder(1), Depth::kFull)->whole());
}

TEST_F(RetentionTest, AnErrorThatMayPassDoesNotCostAStepItsPlace) {
  FaultyEnv env(disk);
  env.fail_file(Op::kRead, folder(2) / index_name(0), ErrorCode::kUnavailable);
  const holdfast::Run stale = holdfast::Run::open(env, kTestRun).value();
  const Keep rule{.last = 1, .every = 2};
  EXPECT_ERROR(Retention(stale, owner, rule).run(), ErrorCode::kUnavailable);
  EXPECT_ERROR(plan_retention(stale, rule), ErrorCode::kUnavailable);
  EXPECT_EQ(left(), (std::vector<int64_t>{4, 3, 2, 1}));
  ASSERT_OK(Retention(run, owner, rule).run());
  EXPECT_EQ(left(), (std::vector<int64_t>{4, 2}));
}

TEST_F(RetentionTest, WhatIsBusyStays) {
  ASSERT_OK(Retention(run, owner, {.last = 1}).run({{.step = 2}}));
  EXPECT_EQ(left(), (std::vector<int64_t>{4, 2}));
}

TEST_F(RetentionTest, WhoLostTheRunRemovesNothing) {
  ASSERT_OK(run.acquire(test_process(2), {.alive = nobody_lives()}));
  EXPECT_ERROR(Retention(run, owner, {.last = 1}).run(), ErrorCode::kConflict);
  EXPECT_EQ(left().size(), 4u);
}

TEST_F(RetentionTest, AnOpenShardIsReadToItsEnd) {
  const auto file = disk.open(folder(1) / "rank-0000.safetensors", {}).value();
  ASSERT_OK(Retention(run, owner, {.last = 1}).run());
  Bytes bytes(tiny_step(1).shard.size());
  EXPECT_EQ(file->read_at(0, bytes).value(), bytes.size());
  EXPECT_EQ(bytes, tiny_step(1).shard);
}

TEST_F(RetentionTest, ALinkedShardOutlivesTheStepThatWroteIt) {
  Attempt attempt = Attempt::begin(run, owner, 5, 55).value();
  ASSERT_OK(disk.link(folder(1) / "rank-0000.safetensors", attempt.folder() / "old"));
  const TinyStep tiny = tiny_step(1);
  const ShardFile& shard = tiny.index.files[0];
  ASSERT_OK(attempt.sync());
  ASSERT_OK(attempt.commit(
      {.files = {{"old", shard.bytes, crc_digest(combined_crc(shard))}}}));
  ASSERT_OK(Retention(run, owner, {.last = 1}).run());
  EXPECT_TRUE(check_step(disk, folder(5), Depth::kFull)->whole());
}

TEST_F(RetentionTest, AFailedRemovalIsTriedAgain) {
  FaultyEnv env(disk);
  const holdfast::Run sick = holdfast::Run::open(env, kTestRun).value();
  Retention retention(sick, owner, {.last = 3}, &events);
  env.fail_at(Op::kRename, 1);
  EXPECT_TRUE(retention.run().value().empty());
  EXPECT_EQ(events.records().back().name, "removal_failed");
  EXPECT_EQ(retention.run().value().size(), 1u);
  EXPECT_EQ(left(), (std::vector<int64_t>{4, 3, 2}));
}

}  // namespace
}  // namespace holdfast
