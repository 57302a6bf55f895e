// Steps in an object store, read by all code that reads a run directory.
#include <gtest/gtest.h>

#include "holdfast/checkpoint/checkpoint_testing.h"
#include "holdfast/inspect/list_runs.h"
#include "holdfast/inspect/open_any.h"
#include "holdfast/inspect/verify.h"
#include "holdfast/remote/object_memory_testing.h"
#include "holdfast/store/object_store_env.h"
#include "holdfast/store/object_store_run.h"

namespace holdfast::tests::object_store_steps_test {
namespace {

// The bucket "runs" has steps 1 and 2 under "gpt", and step 1 once more.
struct ObjectStoreSteps : ::testing::Test {
  void SetUp() override {
    save(1, 2, 1);
    save(1, 1, 2);
    const auto tier = make_object_tier(ObjectStoreRun::create(*bucket, "gpt").value());
    const auto run = make_folder_tier(env, kRun);
    for (const TierStep& step : run->steps().value()) {
      ASSERT_OK(copy_step(*run, step, *tier));
    }
  }
  void save(int64_t first, int64_t last, int boots) {
    for (int64_t step = first; step <= last; ++step) {
      job.set(small_state_at(step));
      ASSERT_OK(save_alone(env, job, step, test_options(boots)));
    }
  }
  void flip(const std::string& suffix) {
    for (const ObjectInfo& object : bucket->list("gpt/").value()) {
      if (!object.key.ends_with(suffix)) continue;
      Bytes bytes = bucket->get(object.key, kReadLimit).value();
      bytes[bytes.size() / 2] ^= std::byte{1};
      ASSERT_OK(bucket->put(object.key, bytes));
    }
  }

  MemoryEnv env{1};
  Job job{replicated(small_state(), 1)};
  const std::shared_ptr<MemoryObjectStore> bucket =
      std::make_shared<MemoryObjectStore>();
  ObjectStoreEnv opened{
      env, [this](const std::string& name) -> Result<std::shared_ptr<ObjectStore>> {
        if (name != "runs") return not_found("s3://{}: no such bucket", name);
        return std::shared_ptr<ObjectStore>(bucket);
      }};
  const Path gpt = "s3://runs/gpt";
};

TEST_F(ObjectStoreSteps, AreListedLikeARunDirectory) {
  const Result<RunList> seen = list_runs(opened, "s3://runs");
  ASSERT_OK(seen);
  ASSERT_EQ(seen->runs.size(), 1u);
  const RunView& run = seen->runs[0];
  EXPECT_EQ(run.path, gpt);
  ASSERT_EQ(run.steps.size(), 3u);
  EXPECT_EQ(run.steps[0].step.name.text(), "step-00000001.g2");
  EXPECT_EQ(run.steps[1].step.name.text(), "step-00000002");
  EXPECT_TRUE(run.steps[0].newest);
  EXPECT_ERROR(list_runs(opened, "s3://runs/other"), ErrorCode::kNotFound);
  EXPECT_ERROR(list_runs(opened, "s3://elsewhere/gpt"), ErrorCode::kNotFound);
}

TEST_F(ObjectStoreSteps, AreFoundByStepAndRestoredWithoutACopy) {
  EXPECT_EQ(find_any(opened, "s3://runs/gpt@2")->path, gpt / "step-00000002");
  EXPECT_EQ(find_any(opened, "s3:/runs/gpt/")->path.filename(), "step-00000001.g2");
  EXPECT_ERROR(find_any(opened, "s3://runs/gpt@7"), ErrorCode::kNotFound);
  job.set(small_state_at(9));
  const LocalState state = job.state(0);
  const Result<RestoredState> restored =
      restore(opened, gpt, state, nullptr, {.step = 2});
  ASSERT_OK(restored);
  EXPECT_TRUE(job.has(small_state_at(2)));
}

TEST_F(ObjectStoreSteps, AreVerifiedToTheLastByte) {
  const auto whole = verify(opened, gpt);
  ASSERT_OK(whole);
  ASSERT_EQ(whole->size(), 3u);
  for (const Verified& step : *whole) EXPECT_TRUE(step.whole());
  flip(".safetensors");
  for (const Verified& step : verify(opened, gpt).value()) EXPECT_FALSE(step.whole());
}

TEST_F(ObjectStoreSteps, ADamagedManifestHasNoNumberAndTheNameOfItsKey) {
  const auto keys = bucket->list("gpt/manifest-").value();
  Bytes bytes = bucket->get(keys[1].key, kReadLimit).value();  // of step 2
  bytes[bytes.size() / 2] ^= std::byte{1};
  ASSERT_OK(bucket->put(keys[1].key, bytes));
  const Result<RunView> seen = view_run(opened, gpt);
  ASSERT_OK(seen);
  EXPECT_EQ(seen->steps.size(), 2u);
  ASSERT_EQ(seen->skipped.size(), 1u);
  EXPECT_EQ("gpt/" + seen->skipped[0].folder, keys[1].key);
  EXPECT_EQ(seen->skipped[0].error.code(), ErrorCode::kCorrupt);
  EXPECT_ERROR(find_any(opened, "s3://runs/gpt@0"), ErrorCode::kNotFound);
  const auto verified = verify(opened, gpt).value();
  ASSERT_EQ(verified.size(), 3u);
  EXPECT_EQ("s3://runs/" + keys[1].key, verified[2].path);
  EXPECT_FALSE(verified[2].whole());
}

TEST_F(ObjectStoreSteps, ADamagedManifestIsNotPassedOver) {
  flip(".json");
  const auto seen = verify(opened, gpt);
  ASSERT_OK(seen);
  EXPECT_EQ(seen->size(), 3u);
  for (const Verified& step : *seen) EXPECT_FALSE(step.whole());
}

TEST_F(ObjectStoreSteps, AreNotWrittenTo) {
  EXPECT_ERROR(opened.write_file(gpt / "latest", {}), ErrorCode::kUnsupported);
  EXPECT_ERROR(opened.create_folder(gpt / "step-00000009"), ErrorCode::kUnsupported);
  EXPECT_ERROR(opened.remove_file(gpt / "holdfast.json"), ErrorCode::kUnsupported);
  EXPECT_ERROR(opened.rename(kRun, gpt), ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace holdfast::tests::object_store_steps_test
