// What a campaign refuses, and that nothing is touched then.
#include <gtest/gtest.h>

#include <limits>

#include "holdfast/campaign/campaign_testing.h"

namespace holdfast::campaign_test {
namespace {

TEST_F(CampaignTest, LossesOfZeroAndBelowAreRefused) {
  expect_refused(options("negative"), ErrorCode::kInvalid,
                 "the golden run: step 1: loss is -0.");
}

TEST_F(CampaignTest, GoldenRunsThatDifferAreNamedAndNothingIsLeft) {
  expect_refused(options("random"), ErrorCode::kUnavailable,
                 "the golden runs differ: step 1: loss is ");
  expect_refused(options("other state", true), ErrorCode::kUnavailable,
                 "the golden runs differ: state: model.weight differs, in 1 elements");
}

TEST_F(CampaignTest, WrongCallsAreRefusedAndNothingIsTouched) {
  CampaignOptions asked = options();
  asked.command.erase(asked.command.begin() + 4);
  expect_refused(asked, ErrorCode::kInvalid, "does not name {checkpoint}");
  asked = options();
  asked.command.pop_back();
  expect_refused(asked, ErrorCode::kInvalid, "does not name {log}");
  asked = options();
  asked.state = true;
  expect_refused(asked, ErrorCode::kInvalid, "does not name {state}");
  asked = options();
  asked.command[0] = "no-such-program";
  expect_refused(asked, ErrorCode::kNotFound, "cannot be started: no-such-program");
  asked = options();
  asked.command.clear();
  expect_refused(asked, ErrorCode::kInvalid, "no command");
  asked = options();
  asked.request.sites.tensors = {"conv9"};
  expect_refused(asked, ErrorCode::kNotFound, "conv9: no tensor has such a name");
  asked = options();
  asked.trials = 0;
  expect_refused(asked, ErrorCode::kInvalid, "0 trials");
  asked = options();
  asked.thresholds.spiked_loss = 0.5;
  expect_refused(asked, ErrorCode::kInvalid, "thresholds");
  asked = options();
  asked.thresholds.extreme_loss = std::numeric_limits<double>::infinity();
  expect_refused(asked, ErrorCode::kInvalid, "thresholds: N-EV above inf x");
  asked = options();
  asked.base = root_ / "none.pt";
  expect_refused(asked, ErrorCode::kNotFound, "none.pt");
  asked = options();
  asked.fixing = Fixing::kSealed;
  expect_refused(asked, ErrorCode::kInvalid, "has no seals");
  asked = options();
  asked.command[2] = root_ / "no.py";
  expect_refused(asked, ErrorCode::kUnavailable, "the golden run failed: exit code 2");
  asked = served();
  asked.command[2] = root_ / "no.py";
  expect_refused(asked, ErrorCode::kUnavailable,
                 "the golden run failed: the process ended with exit code 2");
}

TEST_F(CampaignTest, APlanOfAnotherFileIsRefused) {
  write_base("other.safetensors", 0.75f);
  const auto other = open_file(*env_, root_ / "other.safetensors");
  ASSERT_OK(other);
  CampaignOptions asked = options();
  asked.plans = {make_plan(*other, {.seed = 1}).value()};
  asked.trials = 1;
  asked.plans[0].flips[0].before[0] ^= std::byte{1};
  asked.plans[0].flips[0].after[0] ^= std::byte{1};
  expect_refused(asked, ErrorCode::kConflict, "as in the plan");
  asked.trials = 2;
  expect_refused(asked, ErrorCode::kInvalid, "2 trials with 1 plans");
}

TEST_F(CampaignTest, AFolderOfSomethingElseIsRefusedAndStaysAsItIs) {
  CampaignOptions asked = served();
  asked.trials = 1;
  ASSERT_OK(env_->create_folder(root_ / "mine"));
  ASSERT_OK(env_->write_file(root_ / "mine" / "thesis.txt", bytes_of("x")));
  asked.folder = root_ / "mine";
  const auto refused = run_campaign(*env_, asked);
  EXPECT_ERROR(refused, ErrorCode::kConflict);
  EXPECT_NE(message_of(refused).find("holds thesis.txt and is no campaign"),
            std::string::npos);
  EXPECT_EQ(env_->list(root_ / "mine").value(),
            (std::vector<std::string>{"thesis.txt"}));
  asked.folder = root_ / "out";
  ASSERT_OK(run_campaign(*env_, asked));
  const std::string before = env_->read_text(root_ / "out" / kTrialsFile).value();
  CampaignOptions other = asked;
  other.request.seed = 5;
  EXPECT_NE(message_of(run_campaign(*env_, other)).find("seed \"0\", not \"5\""),
            std::string::npos);
  other = asked;
  other.thresholds.degraded_loss = 1.5;
  EXPECT_ERROR(run_campaign(*env_, other), ErrorCode::kConflict);
  other = asked;
  other.deadline = 1000;
  EXPECT_NE(message_of(run_campaign(*env_, other)).find("with a deadline of"),
            std::string::npos);
  other = asked;
  other.command[3] = "hang";
  EXPECT_NE(message_of(run_campaign(*env_, other)).find("another command"),
            std::string::npos);
  write_base("other.safetensors", 0.75f);
  other = asked;
  other.base = root_ / "other.safetensors";
  EXPECT_NE(message_of(run_campaign(*env_, other)).find("another base"),
            std::string::npos);
  EXPECT_EQ(env_->read_text(root_ / "out" / kTrialsFile).value(), before);
}

}  // namespace
}  // namespace holdfast::campaign_test
