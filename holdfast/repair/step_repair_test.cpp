// Tests of each rung of the ladder on steps that were really saved.
#include "holdfast/repair/step_repair.h"

#include <gtest/gtest.h>

#include "holdfast/checkpoint/checkpoint_testing.h"
#include "holdfast/checkpoint/step_files.h"
#include "holdfast/env/faulty_env.h"
#include "holdfast/env/flipped_env.h"
#include "holdfast/store/step_check.h"
#include "holdfast/corruption/step_patch.h"

namespace holdfast::tests::step_repair_test {
namespace {

using Files = std::map<Path, Bytes>;

std::vector<Tensor> net() {
  return {{.name = "embedding", .dtype = Dtype::kF32, .shape = {700, 1000}},
          {.name = "bias", .dtype = Dtype::kBf16, .shape = {30}},
          {.name = "h.0.weight", .dtype = Dtype::kF32, .shape = {50, 40}},
          {.name = "odd", .dtype = Dtype::kU8, .shape = {7}}};
}

class StepRepairTest : public ::testing::Test {
 protected:
  StepRepairTest() : job(replicated(net(), 1)) {}

  Path save(int64_t step, uint64_t values, const SaverOptions& options) {
    Dice dice(values);
    job.set(random_values(dice, net()));
    const Result<Durable> durable = save_alone(env, job, step, options);
    EXPECT_OK(durable);
    return durable.ok() ? durable->folder : Path();
  }
  Path save(int64_t step, uint64_t values = 1) {
    SaverOptions options = test_options();
    options.ring_bytes = 8 << 20;
    return save(step, values, options);
  }

  Files files_in(const Path& folder) {
    Files files;
    for (const std::string& name : env.list(folder).value()) {
      files[folder / name] = env.read_file(folder / name).value();
    }
    return files;
  }

  Path save_with_parity(int compress) {
    SaverOptions options = test_options();
    options.ring_bytes = 8 << 20;
    options.parity = 0.05;
    options.compress = compress;
    return save(10 + compress, 5, options);
  }

  void flip(const Path& path, int64_t offset, std::byte mask = std::byte{0x40}) {
    Bytes bytes = env.read_file(path).value();
    bytes[static_cast<size_t>(offset)] ^= mask;
    ASSERT_OK(env.write_file(path, bytes));
  }
  // Damages two words of each of two far places.
  void hurt(const Path& path, int64_t offset) {
    for (const int64_t at : {0, 40, 900}) flip(path, offset + at, std::byte{0x21});
  }

  // Mends the step and expects it to be as it was, by this rung alone.
  void expect_mended(const Path& folder, const Files& good, const std::string& rung,
                     std::vector<std::unique_ptr<CopySource>> sources = {}) {
    const auto repair = plan_step_repair(env, folder, sources);
    ASSERT_OK(repair);
    for (const LostPart& lost : repair->lost) ADD_FAILURE() << to_string(lost);
    ASSERT_TRUE(repair->lost.empty());
    ASSERT_FALSE(repair->mended.empty());
    for (const MendedPart& part : repair->mended) EXPECT_EQ(part.rung, rung);
    ASSERT_OK(apply_step_repair(env, *repair));
    EXPECT_TRUE(files_in(folder) == good);
    EXPECT_TRUE(check_step(env, folder, Depth::kFull)->whole());
  }

  // Expects that nothing is mended and nothing changed. Returns what was said.
  std::string expect_lost(const Path& folder,
                          std::vector<std::unique_ptr<CopySource>> sources = {}) {
    const Files before = files_in(folder);
    const auto repair = plan_step_repair(env, folder, sources);
    EXPECT_OK(repair);
    EXPECT_EQ(repair->lost.size(), 1u);
    EXPECT_TRUE(files_in(folder) == before);
    return repair->lost.empty() ? "" : to_string(repair->lost.front());
  }

  std::vector<std::unique_ptr<CopySource>> only(std::unique_ptr<CopySource> source) {
    std::vector<std::unique_ptr<CopySource>> sources;
    sources.push_back(std::move(source));
    return sources;
  }

  MemoryEnv env;
  Job job;
  static constexpr const char* kShard = "rank-0000.safetensors";
};

TEST_F(StepRepairTest, AWholeStepNeedsNothing) {
  const Path step = save(1);
  const auto repair = plan_step_repair(env, step, {});
  ASSERT_OK(repair);
  EXPECT_TRUE(repair->whole());
  EXPECT_TRUE(repair->files.empty());
}

// A bit that flips on the way from the disk is gone when the bytes are read again.
TEST_F(StepRepairTest, WhatIsRightTheSecondTimeIsReportedAndNotWritten) {
  const Path step = save(1);
  for (const auto& [path, bytes] : files_in(step)) {
    SCOPED_TRACE(path);
    FlippedEnv flaky(env, {path, std::ssize(bytes) / 2, std::byte{4}}, 1);
    const auto repair = plan_step_repair(flaky, step, {});
    ASSERT_OK(repair);
    ASSERT_EQ(repair->mended.size(), 1u);
    EXPECT_EQ(repair->mended[0].rung, "reread");
    EXPECT_EQ(repair->mended[0].damage.file, path.filename().native());
    EXPECT_TRUE(repair->lost.empty());
    EXPECT_TRUE(repair->files.empty());
  }
}

TEST_F(StepRepairTest, OneWordIsMendedByTheSealAndNamed) {
  const Path step = save(1);
  const Files good = files_in(step);
  const StepFiles files = open_step(env, step).value();
  const auto id = files.collection.find("h.0.weight").value();
  const auto& layout = files.collection.layout();
  const int64_t offset =
      layout.map(layout.slices(id).begin()->first, 4).offset + (12 * 40 + 7) * 4;
  flip(step / kShard, offset + 3);
  const auto repair = plan_step_repair(env, step, {});
  ASSERT_OK(repair);
  ASSERT_EQ(repair->mended.size(), 1u);
  EXPECT_EQ(repair->mended[0].what.find("h.0.weight [12, 7] bit 30: "), 0u)
      << repair->mended[0].what;
  expect_mended(step, good, "seal");
  // A second word of another tensor in another chunk.
  flip(step / kShard, offset + 3);
  flip(step / kShard, 900'000);
  expect_mended(step, good, "seal");
}

// Two flipped bits of one tensor in two chunks: the seal alone cannot tell, but the CRC of
// each chunk names one bit, and the seal confirms both.
TEST_F(StepRepairTest, OneBitOfEachChunkIsMendedByTheCrcsThatASealConfirms) {
  const Path step = save(1);
  const Files good = files_in(step);
  flip(step / kShard, 900'000);
  flip(step / kShard, 2'300'000);
  expect_mended(step, good, "crc");
  // The header is no tensor.
  flip(step / kShard, 20);
  expect_mended(step, good, "crc");
}

// By the manifest of another save, all that is good in this step would be damaged.
TEST_F(StepRepairTest, TheManifestOfAnotherSaveOfTheStepIsNotTaken) {
  // The objects are the same in both saves.
  const auto save_again = [&](uint64_t values) {
    Dice dice(values);
    job.set(random_values(dice, net()));
    const auto saver = Saver::open(env, kRun, nullptr, test_options());
    const LocalState state = job.state(0);
    return (*saver)
        ->save({.step = 400,
                .state = &state,
                .objects = {.of_all = Object(Object::Value(int64_t{7})), .of_rank = {}}})
        ->durable()
        ->folder;
  };
  save_again(1);
  const auto here = make_folder_tier(env, kRun);
  const auto tier = make_folder_tier(env, "/tier");
  ASSERT_OK(copy_step(*here, here->steps().value()[0], *tier));
  const Path again = save_again(2);
  for (const int64_t at : {30, 60, 90}) flip(again / kManifestName, at);
  EXPECT_NE(expect_lost(again, only(copies_in_tier(*tier))).find("of another save"),
            std::string::npos);
}

TEST_F(StepRepairTest, OneBitOfAnIndexOrOfTheManifestIsMendedByItsDigest) {
  const Path step = save(1);
  const Files good = files_in(step);
  for (const char* name : {"rank-0000.index.json", "manifest.json"}) {
    flip(step / name, 150, std::byte{2});
    expect_mended(step, good, "digest");
  }
}

TEST_F(StepRepairTest, MoreDamageIsNamedWithItsTensorsAndWithWhatEachRungSaid) {
  const Path step = save(1);
  hurt(step / kShard, 1'500'000);
  std::vector<std::unique_ptr<CopySource>> sources;
  sources.push_back(copies_in_run(env, kRun));
  sources.push_back(copies_by_parity(env));
  const std::string said = expect_lost(step, std::move(sources));
  for (const char* part :
       {"rank-0000.safetensors: chunk 2 (bytes ", "; embedding) ", "reread: is the same",
        "seal: more than one word of embedding differs", "crc: the chunk has more damage",
        "another step of the run: nothing else in the run has a whole embedding",
        "parity: the shard was saved without parity"}) {
    EXPECT_NE(said.find(part), std::string::npos) << said << "\n lacks " << part;
  }
}

TEST_F(StepRepairTest, AChunkOrAFileComesFromATier) {
  const Path step = save(1);
  const Files good = files_in(step);
  const auto here = make_folder_tier(env, kRun), tier = make_folder_tier(env, "/other");
  const std::vector<TierStep> steps = here->steps().value();
  ASSERT_OK(copy_step(*here, steps.at(0), *tier));
  hurt(step / kShard, 1'500'000);
  expect_mended(step, good, "tier", only(copies_in_tier(*tier)));
  for (const auto& [path, bytes] : good) {
    SCOPED_TRACE(path);
    ASSERT_OK(env.remove_file(path));
    if (path.filename() != kManifestName) {
      expect_mended(step, good, "tier", only(copies_in_tier(*tier)));
      continue;
    }
    ASSERT_OK(env.write_file(path, bytes_of("nonsense")));
    expect_mended(step, good, "tier", only(copies_in_tier(*tier)));
  }
  // A tier that is damaged in the same place is not believed.
  hurt(step / kShard, 1'500'000);
  hurt(Path("/other/step-00000001") / kShard, 1'500'000);
  EXPECT_NE(expect_lost(step, only(copies_in_tier(*tier))).find("has other bytes"),
            std::string::npos);
}

TEST_F(StepRepairTest, APieceWithTheSameSealComesFromAnotherStep) {
  const Path first = save(1, 1), second = save(2, 1), third = save(3, 2);
  const Files good = files_in(first);
  hurt(first / kShard, 1'500'000);
  expect_mended(first, good, "step", only(copies_in_run(env, kRun)));
  // Step 3 has other values, so it does not help step 2 once step 1 is gone.
  ASSERT_OK(env.remove_all(first));
  hurt(second / kShard, 1'500'000);
  expect_lost(second, only(copies_in_run(env, kRun)));
  EXPECT_TRUE(check_step(env, third, Depth::kFull)->whole());
}

TEST_F(StepRepairTest, AFileThatSeveralStepsLinkIsMendedInAllOfThem) {
  SaverOptions options = test_options();
  options.ring_bytes = 8 << 20;
  options.incremental = true;
  options.parity = 0.05;
  std::vector<Path> steps;
  {
    const auto saver = Saver::open(env, kRun, nullptr, options).value();
    Dice dice(1);
    job.set(random_values(dice, net()));
    for (int64_t step = 1; step <= 3; ++step) {
      const LocalState state = job.state(0);
      const SaveHandle handle = saver->save({.step = step, .state = &state}).value();
      steps.push_back(handle.durable().value().folder);
    }
    ASSERT_OK(saver->close());
  }
  std::vector<Files> good;
  for (const Path& step : steps) good.push_back(files_in(step));
  Path linked;
  for (const auto& [path, bytes] : good[2]) {
    const bool shard = path.native().ends_with(kShard) && path.filename() != kShard;
    if (shard) linked = path;
  }
  ASSERT_FALSE(linked.empty());
  ASSERT_EQ(env.info(linked)->inode, env.info(steps[0] / kShard)->inode);
  hurt(linked, 1'500'000);
  for (const Path& step : steps) {
    EXPECT_FALSE(check_step(env, step, Depth::kFull)->whole());
  }
  expect_mended(steps[1], good[1], "parity", only(copies_by_parity(env)));
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_TRUE(files_in(steps[i]) == good[i]) << steps[i];
  }
  EXPECT_EQ(env.info(linked)->inode, env.info(steps[0] / kShard)->inode);
}

TEST_F(StepRepairTest, TensorsComeFromAFileOfAnotherKind) {
  const Path step = save(1);
  const Files good = files_in(step);
  ASSERT_OK(env.create_folder("/copy"));
  for (const auto& [path, bytes] : good) {
    ASSERT_OK(env.write_file("/copy" / path.filename(), bytes));
  }
  const Contents copy = open_step_contents(env, "/copy").value();
  hurt(step / kShard, 1'500'000);
  expect_mended(step, good, "copy", only(copies_in_contents(copy, "copy")));
}

TEST_F(StepRepairTest, AfterAPatchParityIsThatOfTheNewBytes) {
  for (const int compress : {0, 1}) {
    SCOPED_TRACE(compress);
    const Path step = save_with_parity(compress);
    const std::string shard = compress == 0 ? kShard : "rank-0000.packed";
    Flip bit{.tensor = "embedding", .element = 375'000};
    bit.mask[3] = std::byte{0x40};
    const auto patch = plan_step_patch(env, step, std::span(&bit, 1),
                                       {.checksums = Checksums::kConsistent});
    ASSERT_OK(patch);
    ASSERT_OK(apply_patch(env, *patch));
    EXPECT_TRUE(check_step(env, step, Depth::kFull)->whole());
    const Files altered = files_in(step);
    hurt(step / shard, 1'500'000);
    expect_mended(step, altered, "parity", only(copies_by_parity(env)));
    flip(step / (shard + ".parity"), 5000);
    expect_mended(step, altered, "parity", only(copies_by_parity(env)));
  }
}

TEST_F(StepRepairTest, ParityMendsWhatIsLostUpToItsShare) {
  for (const int compress : {0, 1}) {
    SCOPED_TRACE(compress);
    const Path step = save_with_parity(compress);
    const Files good = files_in(step);
    const std::string shard = compress == 0 ? kShard : "rank-0000.packed";
    ASSERT_TRUE(good.contains(step / (shard + ".parity")));
    EXPECT_TRUE(check_step(env, step, Depth::kFull)->whole());
    hurt(step / shard, 1'500'000);
    expect_mended(step, good, "parity", only(copies_by_parity(env)));
    // The parity file itself, and both at once.
    flip(step / (shard + ".parity"), 5000);
    expect_mended(step, good, "parity", only(copies_by_parity(env)));
    hurt(step / shard, 1'500'000);
    flip(step / (shard + ".parity"), 5000);
    expect_mended(step, good, "parity", only(copies_by_parity(env)));
    ASSERT_OK(env.remove_file(step / (shard + ".parity")));
    expect_mended(step, good, "parity", only(copies_by_parity(env)));
    // A cut file loses its end.
    Bytes cut = good.at(step / shard);
    cut.resize(cut.size() - 3000);
    ASSERT_OK(env.write_file(step / shard, cut));
    expect_mended(step, good, "parity", only(copies_by_parity(env)));
    // More than the parity has room for.
    Bytes wiped = good.at(step / shard);
    std::fill(wiped.begin() + 1'200'000, wiped.begin() + 1'900'000, std::byte{0});
    ASSERT_OK(env.write_file(step / shard, wiped));
    const auto repair = plan_step_repair(env, step, only(copies_by_parity(env)));
    ASSERT_OK(repair);
    ASSERT_FALSE(repair->lost.empty());
    EXPECT_NE(to_string(repair->lost[0]).find("are lost in group"), std::string::npos)
        << to_string(repair->lost[0]);
  }
}

// A crash at any call leaves each name with the damaged or the mended file.
TEST_F(StepRepairTest, ACrashLeavesTheDamagedFileOrTheMendedOne) {
  const Path step = save(1);
  const Files good = files_in(step);
  flip(step / kShard, 900'000);
  flip(step / kShard, 2'300'000);
  const Bytes bad = env.read_file(step / kShard).value();
  for (int64_t k = 1;; ++k) {
    ASSERT_LT(k, 1000);
    const auto disk = env.after_crash({});
    FaultyEnv faulty(*disk);
    const auto repair = plan_step_repair(faulty, step, {});
    ASSERT_OK(repair);
    ASSERT_TRUE(repair->lost.empty());
    faulty.crash_at(Op::kAny, k);
    const bool done = apply_step_repair(faulty, *repair).ok();
    const auto after = disk->after_crash({Unsynced::kLost, static_cast<uint64_t>(k)});
    const Bytes left = after->read_file(step / kShard).value();
    EXPECT_TRUE(left == bad || left == good.at(step / kShard)) << k;
    if (!done) continue;
    EXPECT_TRUE(left == good.at(step / kShard));
    break;
  }
}

}  // namespace
}  // namespace holdfast::tests::step_repair_test
