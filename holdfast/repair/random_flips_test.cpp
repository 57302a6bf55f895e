// Single bits that flip anywhere: in the files of a step, in memory between the copy of a
// tensor and its file, and in a .pt file. Each one is found or changes nothing that is
// read, and none is mended wrongly.
//
// HOLDFAST_LONG=1 makes 10,000 flips instead of 2,000.
#include <gtest/gtest.h>

#include <cstdlib>

#include "holdfast/checkpoint/checkpoint_testing.h"
#include "holdfast/checkpoint/run_saver_internal.h"
#include "holdfast/contents/contents_testing.h"
#include "holdfast/repair/repair.h"
#include "holdfast/formats/format.h"
#include "holdfast/inspect/verify.h"
#include "holdfast/store/step_check.h"

namespace holdfast::tests::random_flips_test {
namespace {

int64_t flips(int64_t share_of_2000) {
  const bool all = std::getenv("HOLDFAST_LONG") != nullptr;
  return all ? 5 * share_of_2000 : share_of_2000;
}

// What became of the flips.
struct Outcome {
  int64_t mended = 0, refused = 0, harmless = 0;
};

void show(const char* what, const Outcome& outcome) {
  std::printf("%s: %ld mended, %ld refused, %ld harmless\n", what,
              static_cast<long>(outcome.mended), static_cast<long>(outcome.refused),
              static_cast<long>(outcome.harmless));
}

std::vector<Tensor> net() {
  return {{.name = "w", .dtype = Dtype::kF32, .shape = {100, 70}},
          {.name = "b", .dtype = Dtype::kBf16, .shape = {301}},
          {.name = "n", .dtype = Dtype::kI64, .shape = {}}};
}

TEST(RandomFlips, EveryBitOfAStepIsFoundAndNoneIsMendedWrongly) {
  MemoryEnv env;
  Job job(replicated(net(), 1));
  Dice dice(11);
  job.set(random_values(dice, net()));
  const Path step = save_alone(env, job, 1).value().folder;
  std::vector<std::pair<Path, Bytes>> files;
  int64_t total = 0;
  for (const std::string& name : env.list(step).value()) {
    files.emplace_back(step / name, env.read_file(step / name).value());
    total += std::ssize(files.back().second);
  }
  Outcome outcome;
  for (int64_t trial = 0; trial < flips(1300); ++trial) {
    int64_t at = dice.below(total);
    size_t file = 0;
    while (at >= std::ssize(files[file].second)) {
      at -= std::ssize(files[file++].second);
    }
    Bytes bytes = files[file].second;
    bytes[static_cast<size_t>(at)] ^= static_cast<std::byte>(1 << dice.below(8));
    SCOPED_TRACE(fmt::format("{} byte {}", files[file].first.native(), at));
    ASSERT_OK(env.write_file(files[file].first, bytes));
    ASSERT_FALSE(check_step(env, step, Depth::kFull)->whole());
    const Found found{.path = step};
    const auto report = plan_repair(env, found);
    ASSERT_OK(report);
    if (report->lost.empty()) {
      ASSERT_OK(repair_in_place(env, found, *report));
      ASSERT_TRUE(env.read_file(files[file].first).value() == files[file].second);
      ++outcome.mended;
    } else {
      ASSERT_OK(env.write_file(files[file].first, files[file].second));
      ++outcome.refused;
    }
  }
  show("step", outcome);
  EXPECT_EQ(outcome.refused, 0);
}

// Saves a step while this fault strikes.
Result<Durable> save_struck(Env& env, Job& job, int64_t step,
                            const SaverOptions& options, const Strike& strike) {
  const auto saver = HOLDFAST_TRY(RunSaver::open(env, kRun, nullptr, options, strike));
  const LocalState state = job.state(0);
  return HOLDFAST_TRY(saver->save({.step = step, .state = &state})).durable();
}

TEST(RandomFlips, EveryBitOfAStagedBlockIsFoundOrChangesNoTensor) {
  MemoryEnv env;
  Job job(replicated(net(), 1));
  Dice dice(12);
  const std::vector<Memory> values = random_values(dice, net());
  job.set(values);
  SaverOptions options = test_options();
  options.seal_at = SealAt::kSource;
  Outcome outcome;
  for (int64_t trial = 0; trial < flips(250); ++trial) {
    const int64_t header = 4096, data = 100 * 70 * 4 + 301 * 2 + 8;
    const int64_t at = dice.below(header + data);
    const auto mask = static_cast<std::byte>(1 << dice.below(8));
    const Strike strike = [&](int64_t offset, ByteSpan bytes) {
      if (at < offset || at >= offset + std::ssize(bytes)) return;
      bytes[static_cast<size_t>(at - offset)] ^= mask;
    };
    SCOPED_TRACE(fmt::format("byte {}", at));
    const Path step = save_struck(env, job, trial, options, strike).value().folder;
    // The digests are those of the damaged bytes.
    ASSERT_TRUE(check_step(env, step, Depth::kFull)->whole());
    const Found found{.path = step};
    const auto report = plan_repair(env, found);
    ASSERT_OK(report);
    outcome.mended += !report->whole();
    outcome.harmless += report->whole();
    ASSERT_EQ(report->whole(), at < header);
    if (!report->whole()) ASSERT_OK(repair_in_place(env, found, *report));
    Job other(replicated(net(), 1));
    ASSERT_OK(restore_alone(env, other));
    ASSERT_TRUE(other.has(values));
    ASSERT_OK(env.remove_all(step));
  }
  show("staged", outcome);
}

TEST(RandomFlips, EveryBitOfAPtFileIsFoundOrChangesNothingThatIsRead) {
  MemoryEnv env;
  const Contents contents = random_contents(
      {{.name = "w", .dtype = Dtype::kF32, .shape = {300, 300}},
       {.name = "b", .dtype = Dtype::kBf16, .shape = {301}},
       {.name = "n", .dtype = Dtype::kI64, .shape = {}}});
  ASSERT_OK(write_file(env, "a.pt", contents));
  const Bytes good = env.read_file("a.pt").value();
  const Object objects = open_file(env, "a.pt").value().objects;
  Dice dice(13);
  Outcome outcome;
  for (int64_t trial = 0; trial < flips(450); ++trial) {
    const int64_t at = dice.below(std::ssize(good));
    Bytes bytes = good;
    bytes[static_cast<size_t>(at)] ^= static_cast<std::byte>(1 << dice.below(8));
    SCOPED_TRACE(fmt::format("byte {} of {}", at, good.size()));
    ASSERT_OK(env.write_file("a.pt", bytes));
    const auto seen = verify(env, "a.pt");
    if (seen.ok() && seen->at(0).whole()) {
      const Contents read = open_file(env, "a.pt").value();
      expect_same_tensors(read, contents);
      ASSERT_TRUE(read.objects == objects);
      ++outcome.harmless;
    }
    const auto found = find_to_repair(env, "a.pt");
    ASSERT_OK(found);
    const auto report = plan_repair(env, *found);
    if (!report.ok()) {
      ++outcome.refused;
    } else if (report->changes()) {
      ASSERT_OK(repair_in_place(env, *found, *report));
      ASSERT_TRUE(env.read_file("a.pt").value() == good);
      ++outcome.mended;
    }
  }
  show(".pt", outcome);
}

}  // namespace
}  // namespace holdfast::tests::random_flips_test
