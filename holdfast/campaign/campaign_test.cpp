// What campaigns record of their trials, and what the analysis makes of the records.
#include "holdfast/campaign/campaign.h"

#include <gtest/gtest.h>

#include <cmath>

#include "holdfast/campaign/analysis.h"
#include "holdfast/campaign/campaign_testing.h"

namespace holdfast::campaign_test {
namespace {

TEST_F(CampaignTest, TrialsAreRecordedWithTheirFlipsAndOutcomes) {
  CampaignOptions asked = options("plain", true);
  asked.request.sites.tensors = {"model.*"};
  asked.request.sites.bits = {.field = BitChoice::Field::kTopExponent};
  GoldenReport golden;
  int64_t progress = 0;
  const auto result = run_campaign(
      *env_, asked,
      {.golden = [&](const GoldenReport& report) { golden = report; },
       .progress = [&](int64_t done, int64_t) { progress = done; }});
  ASSERT_OK(result);
  EXPECT_EQ(result->done, 4);
  EXPECT_FALSE(result->stopped);
  EXPECT_EQ(golden.runs, 2);
  EXPECT_EQ(golden.steps, 8);
  EXPECT_GE(golden.deadline, 10);
  EXPECT_EQ(progress, 4);
  ASSERT_EQ(records().size(), 4u);
  for (const TrialRecord& record : records()) {
    EXPECT_EQ(record.outcome, Outcome::kNev) << record.why;
    ASSERT_EQ(record.flips.size(), 1u);
    EXPECT_EQ(record.flips[0].flip.tensor, "model.weight");
    EXPECT_EQ(set_bits(record.flips[0].flip.mask()), (std::vector{30}));
    EXPECT_EQ(record.flips[0].layer, "model");
    EXPECT_EQ(record.steps, 8);
    EXPECT_EQ(record.distance->size(), 2u);
    EXPECT_GT(record.distance->at("model.weight"), 1e6);
  }
  const auto names = env_->list(root_ / "out").value();
  EXPECT_EQ(names, (std::vector<std::string>{"campaign.json", "golden-state", "trials.jsonl"}));
}

TEST_F(CampaignTest, AFlipThatNobodyReadsIsMaskedAndALowBitIsBenign) {
  CampaignOptions asked = served();
  asked.state = true;
  asked.trials = 2;
  asked.request.sites.tensors = {"unused"};
  ASSERT_OK(run_campaign(*env_, asked));
  for (const TrialRecord& record : records()) {
    EXPECT_EQ(record.outcome, Outcome::kMasked) << record.why;
    EXPECT_EQ(record.distance->at("model.weight"), 0);
  }
  asked.folder = root_ / "low";
  asked.request.sites.tensors = {"model.weight"};
  asked.request.sites.bits = {.field = BitChoice::Field::kRanges, .ranges = {{2, 4}}};
  ASSERT_OK(run_campaign(*env_, asked));
  for (const TrialRecord& record : records("low")) {
    EXPECT_EQ(record.outcome, Outcome::kBenign) << record.why;
  }
}

TEST_F(CampaignTest, FailuresOfTheProgramAreOutcomes) {
  for (const auto& [how, outcome] :
       {std::pair{"hang", Outcome::kTimedOut}, std::pair{"refuse", Outcome::kRefused},
        std::pair{"die", Outcome::kCrashed}}) {
    CampaignOptions asked = options(how);
    asked.folder = root_ / how;
    asked.trials = 1;
    if (outcome == Outcome::kTimedOut) asked.deadline = 3;
    asked.request.sites.tensors = {"model.*"};
    asked.request.sites.bits = {.field = BitChoice::Field::kTopExponent};
    ASSERT_OK(run_campaign(*env_, asked));
    const auto recorded = records(how);
    ASSERT_EQ(recorded.size(), 1u);
    EXPECT_EQ(recorded[0].outcome, outcome) << how << ": " << recorded[0].why;
  }
  const auto pairs = compare("hang", "die");
  ASSERT_OK(pairs);
  EXPECT_EQ(pairs->timed_out_once, 1);
  EXPECT_EQ(pairs->deadline_a, 3);
  EXPECT_GE(pairs->deadline_b, 10);
}

TEST_F(CampaignTest, TheFolderOfACampaignIsNoReasonForARefusal) {
  for (CampaignOptions asked : {options("path"), served("path")}) {
    asked.folder = root_ / (asked.serve ? "damaged" : "corrupted");
    asked.trials = 1;
    asked.request.sites.tensors = {"model.*"};
    asked.request.sites.bits = {.field = BitChoice::Field::kTopExponent};
    ASSERT_OK(run_campaign(*env_, asked));
    const auto seen = records(asked.folder.filename().c_str());
    ASSERT_EQ(seen.size(), 1u);
    EXPECT_EQ(seen[0].outcome, Outcome::kCrashed) << seen[0].why;
    EXPECT_NE(seen[0].why.find("cannot read {checkpoint}"), std::string::npos)
        << seen[0].why;
  }
}

TEST_F(CampaignTest, ACampaignHasTheSitesOfItsPlans) {
  CampaignOptions asked = options();
  asked.trials = 1;
  asked.request.sites.tensors = {"model.*"};
  asked.request.fault = {.kind = Fault::Kind::kBurst, .length = 4};
  ASSERT_OK(run_campaign(*env_, asked));
  const auto analysis = analyse("out");
  ASSERT_OK(analysis);
  EXPECT_EQ(analysis->file.sites, 16 * 29);  // a burst of 4 bits has 29 places in 32
}

TEST_F(CampaignTest, GivenPlansAreCarriedOut) {
  const auto base = open_file(*env_, root_ / "base.safetensors");
  ASSERT_OK(base);
  CampaignOptions asked = served();
  for (int64_t i = 0; i < 3; ++i) {
    asked.plans.push_back(make_plan(*base, {.seed = 9, .trial = 2 - i}).value());
  }
  asked.trials = 3;
  ASSERT_OK(run_campaign(*env_, asked));
  const auto seen = records();
  ASSERT_EQ(seen.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(seen[i].flips[0].flip.element, asked.plans[i].flips[0].element);
    EXPECT_EQ(seen[i].flips[0].flip.after, asked.plans[i].flips[0].after);
  }
}

TEST_F(CampaignTest, TheAnalysisCountsAndPredicts) {
  CampaignOptions asked = served();
  asked.trials = 24;
  asked.request.sites.tensors = {"model.*"};
  ASSERT_OK(run_campaign(*env_, asked));
  const auto analysis = analyse("out");
  ASSERT_OK(analysis);
  EXPECT_EQ(analysis->all.trials, 24);
  int64_t outcomes = 0, nev = 0, in_groups = 0;
  for (const int64_t count : analysis->all.outcomes) outcomes += count;
  EXPECT_EQ(outcomes, 24);
  for (const TrialGroup& group : analysis->by_bit) {
    in_groups += group.nev.total;
    if (group.name != "F32 bit 30") continue;
    nev = group.nev.count;
    EXPECT_EQ(group.nev.count, group.nev.total);
  }
  EXPECT_EQ(in_groups, 24);
  EXPECT_EQ(nev, analysis->all.nev.count);
  ASSERT_TRUE(analysis->file.predicted);
  EXPECT_NEAR(*analysis->file.predicted, 1.0 / 32, 1e-12);
  EXPECT_EQ(analysis->file.sites, 16 * 32);
  ASSERT_EQ(analysis->by_role.size(), 1u);
  EXPECT_EQ(analysis->by_role[0].name, "parameter");
  EXPECT_EQ(analysis->all.low_after_loading.total, 0) << "the training logs from step 1 on";
  EXPECT_FALSE(records()[0].first_accuracy);
}

TEST_F(CampaignTest, TheAccuracyAfterLoadingIsThatOfStepZero) {
  CampaignOptions asked = served("evaluate");
  asked.trials = 24;
  asked.request.sites.tensors = {"model.*"};
  asked.request.sites.bits = *parse_bit_choice("28-31");
  ASSERT_OK(run_campaign(*env_, asked));
  const auto analysis = analyse("out");
  ASSERT_OK(analysis);
  EXPECT_EQ(analysis->all.low_after_loading.total, 24);
  const auto low = std::ranges::count_if(records(), [](const TrialRecord& record) {
    return record.first_accuracy && *record.first_accuracy < 1;
  });
  EXPECT_GT(low, 0);
  EXPECT_EQ(analysis->all.low_after_loading.count, low);
}

TEST_F(CampaignTest, PairsOfTheSamePlansAreComparedAndOthersRefused) {
  CampaignOptions asked = served();
  asked.state = true;
  asked.trials = 6;
  asked.request.sites.tensors = {"model.*"};
  ASSERT_OK(run_campaign(*env_, asked));
  asked.folder = root_ / "again";
  ASSERT_OK(run_campaign(*env_, asked));
  asked.folder = root_ / "other";
  asked.request.seed = 1;
  ASSERT_OK(run_campaign(*env_, asked));
  const auto pairs = compare("out", "again");
  ASSERT_OK(pairs);
  EXPECT_EQ(pairs->harm.total(), 6);
  EXPECT_EQ(pairs->equal, 6);
  EXPECT_EQ(pairs->difference, 0);
  EXPECT_EQ(pairs->p, 1);
  ASSERT_EQ(pairs->distances.size(), 2u);
  EXPECT_EQ(pairs->distances[0].log_ratio.value, 0);
  EXPECT_ERROR(compare("out", "other"),
               ErrorCode::kConflict);
  asked.thresholds.spiked_loss = 3;
  asked.trials = 1;
  asked.folder = root_ / "lenient";
  ASSERT_OK(run_campaign(*env_, asked));
  EXPECT_NE(message_of(compare("other", "lenient"))
                .find("have the thresholds"),
            std::string::npos);
  const std::vector<Path> twice{root_ / "out", root_ / "again"};
  EXPECT_NE(message_of(analyse_strata(*env_, twice)).find("are the same stratum"),
            std::string::npos);
  write_base("other.safetensors", 0.75f);
  asked.base = root_ / "other.safetensors";
  asked.thresholds = {};
  asked.folder = root_ / "elsewhere";
  ASSERT_OK(run_campaign(*env_, asked));
  const std::vector<Path> bases{root_ / "out", root_ / "elsewhere"};
  EXPECT_NE(message_of(analyse_strata(*env_, bases)).find("have different bases"),
            std::string::npos);
  EXPECT_ERROR(compare("out", "elsewhere"), ErrorCode::kConflict);
  EXPECT_NE(message_of(compare("out", "elsewhere", true)).find("the plans differ"),
            std::string::npos)
      << "the numbers that are flipped are others";
  const std::vector<Path> both{root_ / "out", root_ / "other"};
  const auto strata = analyse_strata(*env_, both);
  ASSERT_OK(strata);
  EXPECT_EQ(strata->trials, 12);
  EXPECT_ERROR(analyse("none"), ErrorCode::kNotFound);
}

TEST_F(CampaignTest, PartsAreCountedAndComparedTogether) {
  CampaignOptions asked = served();
  asked.state = true;
  asked.trials = 8;
  asked.request.sites.tensors = {"model.*"};
  asked.request.sites.bits = *parse_bit_choice("28-31");
  std::vector<Path> parts;
  for (const int64_t seed : {0, 1}) {
    asked.request.seed = seed;
    asked.folder = root_ / fmt::format("part.{}", seed);
    parts.push_back(asked.folder);
    ASSERT_OK(run_campaign(*env_, asked));
  }
  const auto first = analyse("part.0"), second = analyse("part.1");
  const auto all = analyse_campaign(*env_, parts);
  ASSERT_OK(all);
  EXPECT_EQ(all->all.trials, 16);
  for (size_t i = 0; i < kAllOutcomes.size(); ++i) {
    const auto sum = [&](auto counts) {
      return (first->all.*counts)[i] + (second->all.*counts)[i];
    };
    EXPECT_EQ(all->all.outcomes[i], sum(&TrialGroup::outcomes));
    EXPECT_EQ(all->all.top_exponent[i], sum(&TrialGroup::top_exponent));
    EXPECT_EQ(all->all.sign_only[i], sum(&TrialGroup::sign_only));
  }
  for (const TrialGroup& group : all->by_bit) {
    EXPECT_EQ(group.top_exponent == group.outcomes, group.name == "F32 bit 30");
    EXPECT_EQ(group.sign_only == group.outcomes, group.name == "F32 bit 31");
  }
  const auto pairs = analyse_pairs(*env_, {parts, parts});
  ASSERT_OK(pairs);
  EXPECT_EQ(pairs->harm.total(), 16);
  EXPECT_TRUE(pairs->same_golden);
  EXPECT_GT(pairs->without_end, 0);
  const DistancePairs& distance = pairs->distances[0];
  EXPECT_EQ(distance.pairs, 16 - pairs->without_end);
  EXPECT_EQ(distance.above + distance.below, 0);
  EXPECT_NEAR(distance.within_p, std::pow(0.5, distance.pairs), 1e-12);
  EXPECT_ERROR(analyse_pairs(*env_, {parts, {parts[0]}}), ErrorCode::kInvalid);
  EXPECT_ERROR(analyse_pairs(*env_, {parts, {parts[1], parts[0]}}),
               ErrorCode::kConflict);
}

}  // namespace
}  // namespace holdfast::campaign_test
