// Tests that flip plans change just their bits: in files of every format, and in steps of
// every kind, with the digests that were asked for.
#include "holdfast/corruption/alter.h"

#include <gtest/gtest.h>

#include "holdfast/checkpoint/checkpoint_testing.h"
#include "holdfast/checkpoint/step_files.h"
#include "holdfast/contents/contents_testing.h"
#include "holdfast/env/faulty_env.h"
#include "holdfast/formats/format.h"
#include "holdfast/formats/patch_testing.h"
#include "holdfast/shard/zstd.h"
#include "holdfast/store/run.h"
#include "holdfast/inspect/seal_file.h"

namespace holdfast::tests::alter_test {
namespace {

std::vector<Tensor> net() {
  return {{.name = "conv.weight", .dtype = Dtype::kF32, .shape = {4, 3, 3}},
          {.name = "conv.bias", .dtype = Dtype::kF32, .shape = {4}},
          {.name = "norm.running_var", .dtype = Dtype::kF64, .shape = {4}},
          {.name = "steps", .dtype = Dtype::kI64, .shape = {}}};
}

// Expects that `seen` has the tensors of `before` with the changes of the plan.
void expect_altered(const Contents& seen, const Contents& before,
                    const FlipPlan& plan) {
  std::map<std::string, Bytes> want;
  for (TensorId t = 0; t < before.collection.tensors().size(); ++t) {
    want[before.collection.tensor(t).name] = canonical_bytes(before, t);
  }
  tests::apply_flips(before, flips_of(plan), want);
  for (const auto& [name, bytes] : want) {
    const TensorId t = seen.collection.find(name).value();
    EXPECT_TRUE(canonical_bytes(seen, t) == bytes) << name;
  }
}

TEST(AlterFileTest, ACopyOfEveryFormatHasJustThePlannedFlipsAndTheyCanBeUndone) {
  for (const Format& format : formats()) {
    if (!format.can_write() || !format.can_patch() || format.one_tensor) continue;
    SCOPED_TRACE(format.name);
    MemoryEnv env;
    ASSERT_OK(env.create_folder("d"));
    const Contents contents = random_contents(net());
    ASSERT_OK(write_file(env, "d/file", contents, {.format = &format}));
    const Snapshot original = files_under(env, "d");
    const auto found = find_any(env, "d/file");
    ASSERT_OK(found);
    const auto plan = make_plan(contents, {.count = 12, .seed = 3});
    ASSERT_OK(plan);
    for (const Fixing fixing : {Fixing::kRaw, Fixing::kConsistent}) {
      const Path to = fmt::format("d/{}", name_of(fixing));
      ASSERT_OK(alter_copy(env, *found, *plan, fixing, to));
      EXPECT_ERROR(alter_copy(env, *found, *plan, fixing, to), ErrorCode::kConflict);
      const auto copy = find_any(env, to);
      ASSERT_OK(copy);
      if (fixing == Fixing::kConsistent) {
        expect_altered(open_file(env, to).value(), contents, *plan);
        EXPECT_ERROR(alter_in_place(env, *copy, *plan, fixing), ErrorCode::kConflict);
        ASSERT_OK(alter_in_place(env, *copy, inverse(*plan), fixing));
        expect_altered(open_file(env, to).value(), contents, {});
      }
      ASSERT_OK(env.remove_all(to));
    }
    for (const std::string& name : env.list("d").value()) {
      if (name.starts_with("raw") || name.starts_with("consistent")) {
        ASSERT_OK(env.remove_file("d/" + name));
      }
    }
    EXPECT_EQ(files_under(env, "d"), original) << "nothing is left";
    EXPECT_ERROR(alter_copy(env, *found, *plan, Fixing::kSealed, "d/sealed"),
                 ErrorCode::kInvalid);
    EXPECT_EQ(files_under(env, "d"), original) << "nothing was touched";
  }
}

TEST(AlterFileTest, BytesAnywhereAreAlteredAndRestored) {
  MemoryEnv env;
  ASSERT_OK(write_file(env, "a.pt", random_contents(net())));
  const Bytes before = env.read_file("a.pt").value();
  const Found found = find_any(env, "a.pt").value();
  const auto files = files_of(env, found);
  ASSERT_OK(files);
  const auto plan = make_byte_plan(env, *files, 30, 1, 0);
  ASSERT_OK(plan);
  EXPECT_ERROR(alter_copy(env, found, *plan, Fixing::kConsistent, "b.pt"),
               ErrorCode::kInvalid);
  ASSERT_OK(alter_copy(env, found, *plan, Fixing::kRaw, "b.pt"));
  const Bytes after = env.read_file("b.pt").value();
  EXPECT_EQ(changed_bytes(before, after), std::ssize(plan->bytes));
  const Found copy{.path = "b.pt", .format = found.format};
  ASSERT_OK(alter_in_place(env, copy, inverse(*plan), Fixing::kRaw));
  EXPECT_TRUE(env.read_file("b.pt").value() == before);
}

TEST(AlterFileTest, BytesOfSeveralFilesAreNotPutIntoOne) {
  MemoryEnv env;
  ASSERT_OK(write_file(env, "a.pt", random_contents(net())));
  const Bytes before = env.read_file("a.pt").value();
  FlipPlan plan;
  plan.bytes.push_back({.file = "a", .before = before[0], .after = before[1]});
  plan.bytes.push_back(
      {.file = "b", .offset = 1, .before = before[1], .after = before[0]});
  const auto made =
      alter_copy(env, find_any(env, "a.pt").value(), plan, Fixing::kRaw, "c.pt");
  EXPECT_ERROR(made, ErrorCode::kConflict);
  // The copy has another name while it is made, which says nothing to people.
  EXPECT_TRUE(message_of(made).starts_with("a.pt: is one file")) << message_of(made);
}

TEST(AlterFileTest, AFileWithTwoNamesIsNotAlteredInPlace) {
  MemoryEnv env;
  const Contents contents = random_contents(net());
  ASSERT_OK(write_file(env, "a.pt", contents));
  ASSERT_OK(env.link("a.pt", "b.pt"));
  const Found found = find_any(env, "a.pt").value();
  const auto plan = make_plan(contents, {});
  ASSERT_OK(plan);
  EXPECT_ERROR(alter_in_place(env, found, *plan, Fixing::kRaw), ErrorCode::kConflict);
  EXPECT_OK(alter_copy(env, found, *plan, Fixing::kRaw, "c.pt"));
}

// A crash at any moment leaves no copy or the altered copy, and never a part.
TEST(AlterFileTest, ACrashLeavesTheWholeCopyOrNone) {
  const Contents contents = random_contents(net());
  const FlipPlan plan = make_plan(contents, {.count = 3}).value();
  const auto alter = [&](Env& env) {
    const Result<Found> found = find_any(env, "a.pt");
    if (!found.ok()) return found.ok();
    return alter_copy(env, *found, plan, Fixing::kConsistent, "b.pt").ok();
  };
  MemoryEnv counted_disk;
  ASSERT_OK(write_file(counted_disk, "a.pt", contents));
  FaultyEnv counted(counted_disk);
  ASSERT_TRUE(alter(counted));
  for (int64_t k = 1; k <= counted.calls(); ++k) {
    MemoryEnv disk;
    ASSERT_OK(write_file(disk, "a.pt", contents));
    FaultyEnv env(disk);
    env.crash_at(Op::kAny, k);
    EXPECT_FALSE(alter(env));
    const auto after = disk.after_crash(
        {.unsynced = Unsynced::kReordered, .seed = static_cast<uint64_t>(k)});
    const auto copy = open_file(*after, "b.pt");
    if (copy.ok()) expect_altered(*copy, contents, plan);
    if (!copy.ok()) EXPECT_ERROR(copy, ErrorCode::kNotFound);
    expect_altered(open_file(*after, "a.pt").value(), contents, {});
  }
}

TEST(SealFileTest, SealsAreReadAsTheyWereWrittenOrRefused) {
  std::vector<SealedTensor> seals{
      {.name = "w", .dtype = Dtype::kBf16, .shape = {2, 3}},
      {.name = "\"odd\"\n", .dtype = Dtype::kF32, .shape = {}}};
  seals[0].seal = {.lanes = {1, ~uint64_t{0}}, .bytes = 12};
  seals[1].seal = {.lanes = {0x1234, 5}, .bytes = 4};
  Bytes bytes = encode_seals(seals);
  const auto again = decode_seals(bytes, "seals");
  ASSERT_OK(again);
  EXPECT_TRUE(*again == seals);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] ^= std::byte{1};
    EXPECT_ERROR(decode_seals(bytes, "seals"), ErrorCode::kCorrupt);
    bytes[i] ^= std::byte{1};
  }
}

// A run with one or two steps, in all the ways in which they are stored.
class AlterStepTest : public ::testing::TestWithParam<const char*> {
 protected:
  bool is(std::string_view kind) const { return kind == GetParam(); }

  void SetUp() override {
    if (is("compressed") && !compress(Bytes(8), 4, 1).ok()) {
      GTEST_SKIP() << "built without libzstd";
    }
    const std::vector<Tensor> tensors{
        {.name = "w", .dtype = Dtype::kF32, .shape = {300, 1000}},
        {.name = "v", .dtype = Dtype::kBf16, .shape = {7, 5}},
        {.name = "n", .dtype = Dtype::kI64, .shape = {}}};
    Dice dice(4);
    const int ranks = is("ranks") ? 3 : 1;
    Job job(dice, tensors, ranks);
    std::vector<Memory> values = random_values(dice, tensors);
    job.set(values);
    options_ = test_options();
    if (is("compressed")) options_.compress = 1;
    if (is("incremental")) options_.incremental = true;
    run_ranks(env_, ranks, [&](int rank, Transport& transport) {
      const auto saver =
          Saver::open(env_, kRun, ranks > 1 ? &transport : nullptr, options_);
      ASSERT_OK(saver);
      for (int step = 1; step <= (is("incremental") ? 2 : 1); ++step) {
        if (step > 1) {
          values[1][0] ^= std::byte{1};
          job.set(values);
        }
        const LocalState state = job.state(rank);
        const auto handle = (*saver)->save({.step = step, .state = &state});
        ASSERT_OK(handle);
        ASSERT_OK(handle->durable());
      }
      ASSERT_OK((*saver)->close());
    });
    found_ = find_any(env_, kRun).value();
    before_ = std::make_unique<Contents>(open_to_alter(env_, found_).value());
    plan_ = make_plan(*before_,
                      {.sites = {.tensors = {"w", "v", "n"}}, .count = 40, .seed = 8})
                .value();
  }

  // Alters a copy and returns the folder of its step.
  Path altered(Fixing fixing) {
    const Path to = fmt::format("/runs/{}", name_of(fixing));
    EXPECT_OK(alter_copy(env_, found_, plan_, fixing, to));
    EXPECT_TRUE(env_.info(to / "holdfast.json").ok());
    const auto run = Run::open(env_, to);
    EXPECT_OK(run);
    return to / found_.path.filename();
  }

  std::vector<Damage> damage_of(const Path& folder) {
    return check_step(env_, folder, Depth::kFull).value().damage;
  }

  MemoryEnv env_;
  SaverOptions options_;
  Found found_;
  std::unique_ptr<Contents> before_;
  FlipPlan plan_;
};

TEST_P(AlterStepTest, ConsistentFlipsKeepEveryDigestRightExceptForTheSeals) {
  const Snapshot original = files_under(env_, found_.path);
  const Path folder = altered(Fixing::kConsistent);
  for (const Damage& damage : damage_of(folder)) ADD_FAILURE() << to_string(damage);
  expect_altered(open_step_contents(env_, folder).value(), *before_, plan_);
  EXPECT_TRUE(open_step(env_, folder).value().seals ==
              open_step(env_, found_.path).value().seals);
  EXPECT_EQ(files_under(env_, found_.path), original);
  if (is("compressed")) return;  // its chunks may be compressed in another way
  ASSERT_OK(
      alter_in_place(env_, {.path = folder}, inverse(plan_), Fixing::kConsistent));
  for (const auto& [path, bytes] : original) {
    EXPECT_TRUE(env_.read_file(folder / Path(path).filename()).value() == bytes)
        << path;
  }
}

TEST_P(AlterStepTest, SealedFlipsGiveTheSealsOfTheAlteredTensors) {
  const Path folder = altered(Fixing::kSealed);
  EXPECT_TRUE(damage_of(folder).empty());
  const StepFiles step = open_step(env_, folder).value();
  const Contents seen = open_step_contents(env_, folder).value();
  for (TensorId t = 0; t < step.seals.size(); ++t) {
    EXPECT_TRUE(step.seals[t] == seal_bytes(canonical_bytes(seen, t), 0)) << t;
  }
}

TEST_P(AlterStepTest, RawFlipsAreFoundAndUndone) {
  if (is("compressed")) {
    EXPECT_ERROR(alter_copy(env_, found_, plan_, Fixing::kRaw, "/runs/raw"),
                 ErrorCode::kUnsupported);
    EXPECT_FALSE(env_.info("/runs/raw").ok());
    return;
  }
  const Path folder = altered(Fixing::kRaw);
  EXPECT_FALSE(damage_of(folder).empty());
  ASSERT_OK(alter_in_place(env_, {.path = folder}, inverse(plan_), Fixing::kRaw));
  EXPECT_TRUE(damage_of(folder).empty());
}

TEST_P(AlterStepTest, AStepThatSharesAFileOrHasALiveOwnerIsNotAlteredInPlace) {
  const Snapshot original = files_under(env_, found_.path);
  if (is("incremental")) {
    EXPECT_ERROR(alter_in_place(env_, found_, plan_, Fixing::kConsistent),
                 ErrorCode::kConflict);
  }
  options_.identity->boot = "boot-9";
  options_.identity->host = "elsewhere";  // whose lease has not run out
  const auto saver = Saver::open(env_, kRun, nullptr, options_);
  ASSERT_OK(saver);
  const auto refused = alter_in_place(env_, found_, plan_, Fixing::kConsistent);
  EXPECT_ERROR(refused, ErrorCode::kConflict);
  EXPECT_NE(message_of(refused).find("elsewhere"), std::string::npos);
  EXPECT_EQ(files_under(env_, found_.path), original);
}

INSTANTIATE_TEST_SUITE_P(Kinds, AlterStepTest,
                         ::testing::Values("plain", "compressed", "incremental",
                                           "ranks"),
                         [](const auto& kind) { return std::string(kind.param); });

}  // namespace
}  // namespace holdfast::tests::alter_test
