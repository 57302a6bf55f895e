#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "holdfast/checkpoint/checkpoint_testing.h"
#include "holdfast/checkpoint/step_files.h"

namespace holdfast::tests::save_restore_test {
namespace {

// Saves a step by all ranks of a job.
void save_by_all(Env& env, Job& job, int64_t step, const SaverOptions& options) {
  run_ranks(env, job.ranks(), [&](int rank, Transport& transport) {
    const auto saver = Saver::open(env, kRun, &transport, options);
    ASSERT_OK(saver);
    const LocalState state = job.state(rank);
    const Result<SaveHandle> handle = (*saver)->save({.step = step, .state = &state});
    ASSERT_OK(handle);
    EXPECT_OK(handle->durable());
    EXPECT_OK((*saver)->close());
  });
}

void restore_by_all(Env& env, Job& job) {
  run_ranks(env, job.ranks(), [&](int rank, Transport& transport) {
    EXPECT_OK(restore(env, kRun, job.state(rank), &transport));
  });
}

RC_GTEST_PROP(SaveRestore, AnyLayoutComesBackInAnyOther, (uint64_t seed)) {
  Dice dice(seed);
  MemoryEnv env(seed);
  const std::vector<Tensor> tensors = random_tensors(dice);
  const std::vector<Memory> values = random_values(dice, tensors);
  Job saved(dice, tensors, 1 + static_cast<int>(dice.below(4)));
  Job restored(dice, tensors, 1 + static_cast<int>(dice.below(4)));
  saved.set(values);
  SaverOptions options = test_options();
  options.background = dice.one_in(2);
  save_by_all(env, saved, 400, options);
  restore_by_all(env, restored);
  RC_ASSERT(restored.has(values));
}

std::vector<Tensor> two_tensors() {
  return {{.name = "w", .dtype = Dtype::kF32, .shape = {300, 100}},
          {.name = "b", .dtype = Dtype::kBf16, .shape = {77}}};
}

struct SaveRestoreAlone : ::testing::Test {
  std::vector<Memory> values_at(int64_t step) {
    Dice dice(static_cast<uint64_t>(step));
    return random_values(dice, two_tensors());
  }
  void save(int64_t step, const SaverOptions& options = test_options()) {
    job.set(values_at(step));
    ASSERT_OK(save_alone(env, job, step, options));
  }

  MemoryEnv env{1};
  Job job{replicated(two_tensors(), 1)};
};

TEST_F(SaveRestoreAlone, TheNewestStepComesBackBitForBit) {
  save(100);
  save(200, test_options(2));
  job.set(values_at(0));
  const Result<RestoredState> restored = restore_alone(env, job);
  ASSERT_OK(restored);
  EXPECT_EQ(restored->step, 200);
  EXPECT_TRUE(job.has(values_at(200)));
  EXPECT_TRUE(restored->unverified.empty());
  EXPECT_EQ(restored->needed, 300 * 100 * 4 + 77 * 2);
}

TEST_F(SaveRestoreAlone, AStepCanBeChosen) {
  save(100);
  save(200, test_options(2));
  ASSERT_OK(restore_alone(env, job, {.step = 100}));
  EXPECT_TRUE(job.has(values_at(100)));
  EXPECT_ERROR(restore_alone(env, job, {.step = 150}), ErrorCode::kNotFound);
}

TEST_F(SaveRestoreAlone, AfterGoingBackTheNewBranchWins) {
  for (int64_t step : {300, 400, 500}) save(step, test_options(static_cast<int>(step)));
  ASSERT_OK(restore_alone(env, job, {.step = 300}));
  job.set(values_at(4000));
  ASSERT_OK(save_alone(env, job, 400, test_options(501)));
  const Result<RestoredState> restored = restore_alone(env, job);
  ASSERT_OK(restored);
  EXPECT_EQ(restored->step, 400);
  EXPECT_EQ(restored->folder.filename(), "step-00000400.g2");
  EXPECT_TRUE(job.has(values_at(4000)));
}

TEST_F(SaveRestoreAlone, WithoutAStepThereIsNothingToRestore) {
  EXPECT_ERROR(restore_alone(env, job), ErrorCode::kNotFound);
}

TEST_F(SaveRestoreAlone, AnotherModelIsRefusedByNameAndNothingIsTouched) {
  save(100);
  std::vector<Tensor> others = two_tensors();
  others[0].shape = {100, 300};
  others[1].name = "bias";
  Job other(replicated(others, 1));
  Dice dice(5);
  const std::vector<Memory> before = random_values(dice, others);
  other.set(before);
  const Result<RestoredState> restored = restore_alone(env, other);
  EXPECT_ERROR(restored, ErrorCode::kInvalid);
  EXPECT_EQ(restored.error().message(),
            "/runs/gpt/step-00000100: not in it: bias; different: w is F32 [300, 100] "
            "(expected F32 [100, 300])");
  EXPECT_TRUE(other.has(before));
}

TEST_F(SaveRestoreAlone, PartOfAModelCanBeRestored) {
  save(100);
  Job part(replicated({two_tensors()[1]}, 1));
  const Result<RestoredState> restored = restore_alone(env, part);
  ASSERT_OK(restored);
  EXPECT_TRUE(part.has({values_at(100)[1]}));
  EXPECT_EQ(restored->unused, std::vector<std::string>{"w"});
}

TEST_F(SaveRestoreAlone, ADamagedStepIsPassedOverAndTheReportSaysWhy) {
  save(100);
  save(200, test_options(2));
  const Path shard = kRun / "step-00000200" / "rank-0000.safetensors";
  Bytes bytes = env.read_file(shard).value();
  bytes[bytes.size() / 2] ^= std::byte{1};
  ASSERT_OK(env.replace_file(shard, bytes));
  const Result<RestoredState> restored = restore_alone(env, job);
  ASSERT_OK(restored);
  EXPECT_EQ(restored->step, 100);
  EXPECT_TRUE(job.has(values_at(100)));
  ASSERT_EQ(restored->skipped.size(), 1u);
  EXPECT_EQ(restored->skipped[0].folder, "step-00000200");
  EXPECT_NE(restored->skipped[0].error.message().find("chunk"), std::string::npos);
}

TEST_F(SaveRestoreAlone, IfNoStepIsWholeItSaysThatTheTensorsAreUndefined) {
  save(100);
  const Path shard = kRun / "step-00000100" / "rank-0000.safetensors";
  Bytes bytes = env.read_file(shard).value();
  bytes.back() ^= std::byte{1};
  ASSERT_OK(env.replace_file(shard, bytes));
  const Result<RestoredState> restored = restore_alone(env, job);
  EXPECT_ERROR(restored, ErrorCode::kCorrupt);
  EXPECT_NE(restored.error().message().find("undefined"), std::string::npos);
}

TEST_F(SaveRestoreAlone, ObjectsComeBackToo) {
  const Object objects(Object::Dict{
      {{Object(Object::Value(std::string("lr"))), Object(Object::Value(0.1))}}});
  const Object own(Object::Value(int64_t{42}));
  {
    const auto saver = Saver::open(env, kRun, nullptr, test_options());
    ASSERT_OK(saver);
    const LocalState state = job.state(0);
    ASSERT_OK((*saver)->save({.step = 1,
                              .state = &state,
                              .objects = {.of_all = objects, .of_rank = own},
                              .metrics = {{"loss", 0.5}},
                              .parallel = "dp 1",
                              .parent = "step-00000000"}));
  }
  const Result<RestoredState> restored = restore_alone(env, job);
  ASSERT_OK(restored);
  EXPECT_EQ(restored->objects, objects);
  EXPECT_EQ(restored->rank_objects, own);
  EXPECT_EQ(restored->manifest.metrics.at("loss"), 0.5);
  EXPECT_EQ(restored->manifest.parent, "step-00000000");
}

TEST_F(SaveRestoreAlone, ReplicasShareTheWriting) {
  Job four(replicated(two_tensors(), 4));
  four.set(values_at(7));
  save_by_all(env, four, 7, test_options());
  const Result<StepFiles> step = open_step(env, kRun / "step-00000007");
  ASSERT_OK(step);
  ASSERT_EQ(step->files.size(), 4u);
  int64_t bytes = 0;
  for (const ShardFile& file : step->files) {
    bytes += file.bytes - file.chunks[0].bytes;
    EXPECT_LT(file.bytes - file.chunks[0].bytes, 40'000);
  }
  EXPECT_EQ(bytes, job.collection().bytes());
}

TEST_F(SaveRestoreAlone, ShardsAreReadByPlainSafetensorsToo) {
  save(100);
  const Result<Contents> contents = open_step_contents(env, kRun / "step-00000100");
  ASSERT_OK(contents);
  Bytes b(154);
  ASSERT_OK(read_canonical(*contents, *contents->collection.find("b"), 0, b));
  EXPECT_EQ(b, values_at(100)[1]);
}

// A tensor cut into a left and a right half, whose rows are long enough to be read one
// by one. Without `both`, only rank 0's half is there.
Collection halves(const Tensor& tensor, bool both) {
  LayoutBuilder builder(std::span(&tensor, 1), rank_holders(both ? 2 : 1));
  const int64_t columns = tensor.shape[1];
  const Box whole = Box::whole(tensor.shape);
  builder.add(0, whole.with(1, {0, columns / 2}), 0, 0);
  if (both) builder.add(0, whole.with(1, {columns / 2, columns}), 1, 0);
  return Collection::create({tensor}, std::move(builder).build().value()).value();
}

struct ColumnCut : ::testing::Test {
  void SetUp() override {
    Dice dice(3);
    values = random_values(dice, std::span(&tensor, 1));
    Job whole(replicated({tensor}, 1));
    whole.set(values);
    SaverOptions options = test_options();
    options.ring_bytes = 8 << 20;
    ASSERT_OK(save_alone(env, whole, 1, options));
  }
  void damage(size_t at) {
    const Path shard = kRun / "step-00000001" / "rank-0000.safetensors";
    Bytes bytes = env.read_file(shard).value();
    bytes[4096 + at] ^= std::byte{4};
    ASSERT_OK(env.replace_file(shard, bytes));
  }

  MemoryEnv env{1};
  const Tensor tensor{.name = "w", .dtype = Dtype::kC128, .shape = {4, 16 << 10}};
  std::vector<Memory> values;
};

TEST_F(ColumnCut, AllRanksTogetherReadOnlyWhatTheyNeedAndCheckIt) {
  Job job(halves(tensor, true));
  run_ranks(env, 2, [&](int rank, Transport& transport) {
    const Result<RestoredState> restored =
        restore(env, kRun, job.state(rank), &transport);
    ASSERT_OK(restored);
    EXPECT_EQ(restored->read, restored->needed);
    EXPECT_TRUE(restored->unverified.empty());
  });
  EXPECT_TRUE(job.has(values));
}

TEST_F(ColumnCut, DamageInOneRanksPartIsSeenByAll) {
  damage(200 << 10);
  Job job(halves(tensor, true));
  run_ranks(env, 2, [&](int rank, Transport& transport) {
    EXPECT_ERROR(restore(env, kRun, job.state(rank), &transport), ErrorCode::kCorrupt);
  });
}

TEST_F(ColumnCut, ALoneReaderOfAPartIsToldThatNobodyCheckedIt) {
  Job job(halves(tensor, false));
  const Result<RestoredState> restored = restore_alone(env, job);
  ASSERT_OK(restored);
  EXPECT_EQ(restored->unverified, std::vector<std::string>{"w"});
  EXPECT_TRUE(job.has(values));
}

}  // namespace
}  // namespace holdfast::tests::save_restore_test
