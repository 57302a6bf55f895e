#include "holdfast/campaign/harm_rule.h"

#include <gtest/gtest.h>

#include <limits>

#include "holdfast/base/testing.h"

namespace holdfast {
namespace {

// A golden run that ends with this accuracy.
TrainingLog golden_with(double accuracy) {
  return {.lines = {{.step = 1, .metrics = {{"accuracy", accuracy}}}}};
}

// Whether a trial with this outcome and accuracy at its end is harmed.
bool harmed(const char* rule, Outcome outcome, std::optional<double> accuracy) {
  const TrialRecord record{.outcome = outcome, .final_accuracy = accuracy};
  const auto read = parse_harm_rule(rule);
  EXPECT_OK(read);
  const auto found = is_harmed(record, golden_with(0.95), *read);
  EXPECT_OK(found);
  return *found;
}

TEST(HarmRuleTest, TheUsualRuleLooksAtTheOutcomeAlone) {
  EXPECT_TRUE(harmed("outcome", Outcome::kDegraded, 0.95));
  EXPECT_FALSE(harmed("outcome", Outcome::kSpiked, 0.1));
}

TEST(HarmRuleTest, ARuleOfAccuracyLooksAtTheAccuracyAlone) {
  EXPECT_FALSE(harmed("accuracy:5", Outcome::kDegraded, 0.901));
  EXPECT_TRUE(harmed("accuracy:5", Outcome::kDegraded, 0.90));  // 0.95 - 0.90 is below 0.05
  EXPECT_TRUE(harmed("accuracy:5", Outcome::kBenign, 0.89));
  EXPECT_FALSE(harmed("accuracy:5", Outcome::kNev, 0.94));
  EXPECT_TRUE(harmed("accuracy:1", Outcome::kNev, 0.94));
  EXPECT_FALSE(harmed("accuracy:0.5", Outcome::kMasked, 0.951));
}

TEST(HarmRuleTest, ATrialWithoutAnAccuracyAtItsEndIsHarmed) {
  for (const Outcome outcome :
       {Outcome::kRefused, Outcome::kCrashed, Outcome::kTimedOut}) {
    EXPECT_TRUE(harmed("accuracy:5", outcome, 0.95)) << name_of(outcome);
  }
  EXPECT_TRUE(harmed("accuracy:5", Outcome::kNev, std::nullopt));
  EXPECT_TRUE(harmed("accuracy:5", Outcome::kNev, std::numeric_limits<double>::quiet_NaN()));
}

TEST(HarmRuleTest, AGoldenRunWithoutAccuracyCannotBeJudgedByIt) {
  const TrainingLog golden{.lines = {{.step = 1, .metrics = {{"loss", 0.5}}}}};
  EXPECT_OK(is_harmed({}, golden, HarmRule{}));
  EXPECT_ERROR(is_harmed({}, golden, HarmRule{5.0}), ErrorCode::kInvalid);
}

TEST(HarmRuleTest, OtherRulesAreRefused) {
  for (const char* text : {"", "accuracy", "accuracy:", "accuracy:0", "accuracy:-1",
                           "accuracy:101", "accuracy:nan", "accuracy:5 ", "loss:5"}) {
    SCOPED_TRACE(text);
    EXPECT_ERROR(parse_harm_rule(text), ErrorCode::kInvalid);
  }
  EXPECT_EQ(to_string(*parse_harm_rule("accuracy:5")), "accuracy:5");
  EXPECT_EQ(to_string(*parse_harm_rule("outcome")), "outcome");
}

}  // namespace
}  // namespace holdfast
