// Tests that damage is found and mended exactly, or refused.
#include "holdfast/repair/repair.h"

#include <gtest/gtest.h>

#include "holdfast/checkpoint/checkpoint_testing.h"
#include "holdfast/contents/contents_testing.h"
#include "holdfast/corruption/alter.h"
#include "holdfast/formats/format.h"
#include "holdfast/formats/patch_testing.h"
#include "holdfast/inspect/seal_check.h"
#include "holdfast/inspect/verify.h"

namespace holdfast::tests::repair_test {
namespace {

std::vector<Tensor> net() {
  return {{.name = "conv.weight", .dtype = Dtype::kF32, .shape = {4, 3, 3}},
          {.name = "half", .dtype = Dtype::kBf16, .shape = {7}},
          {.name = "byte", .dtype = Dtype::kU8, .shape = {5}},
          {.name = "double", .dtype = Dtype::kF64, .shape = {4}}};
}

std::vector<Damage> damage_of(Env& env, const Path& path) {
  return verify(env, path).value().at(0).damage;
}

void seal(Env& env, const Path& path, const Contents& contents) {
  const auto seals = seal_tensors(contents);
  ASSERT_OK(seals);
  ASSERT_OK(env.write_file(seals_path(path), encode_seals(*seals)));
}

TEST(RepairTest, OneFlipInASealedFileOfAnyFormatIsNamedAndMended) {
  for (const Format& format : formats()) {
    if (!format.can_write() || !format.can_patch() || format.one_tensor) continue;
    MemoryEnv env;
    const Contents contents = random_contents(net());
    ASSERT_OK(write_file(env, "file", contents, {.format = &format}));
    seal(env, "file", contents);
    EXPECT_TRUE(damage_of(env, "file").empty());
    const Found found = find_any(env, "file").value();
    EXPECT_TRUE(plan_repair(env, found).value().whole());
    for (int trial = 0; trial < 12; ++trial) {
      SCOPED_TRACE(fmt::format("{} {}", format.name, trial));
      const FlipPlan plan = make_plan(contents, {.trial = trial}).value();
      const Fixing fixing = trial % 2 == 0 ? Fixing::kConsistent : Fixing::kRaw;
      ASSERT_OK(alter_copy(env, found, plan, fixing, "hurt"));
      const Found hurt = find_any(env, "hurt").value();
      const std::vector<Damage> damage = damage_of(env, "hurt");
      ASSERT_FALSE(damage.empty());
      if (fixing == Fixing::kConsistent) {
        ASSERT_EQ(damage.size(), 1u);
        EXPECT_EQ(damage[0].tensors, std::vector{plan.flips[0].tensor});
        EXPECT_NE(damage[0].what.find(bits_in_words(plan.flips[0].mask())),
                  std::string::npos)
            << damage[0].what;
      }
      const auto report = plan_repair(env, hurt);
      ASSERT_OK(report);
      ASSERT_OK(repair_copy(env, hurt, *report, "mended"));
      expect_same_tensors(open_file(env, "mended").value(), contents);
      EXPECT_TRUE(damage_of(env, "mended").empty());
      ASSERT_OK(repair_in_place(env, hurt, *report));
      EXPECT_TRUE(damage_of(env, "hurt").empty());
      for (const char* name : {"hurt", "mended"}) {
        ASSERT_OK(env.remove_all(name));
        ASSERT_OK(env.remove_all(seals_path(name)));
      }
    }
  }
}

TEST(RepairTest, MoreThanOneWordIsRefusedAndNothingIsTouched) {
  MemoryEnv env;
  const Contents contents = random_contents(net());
  ASSERT_OK(write_file(env, "a.safetensors", contents));
  seal(env, "a.safetensors", contents);
  const Found found = find_any(env, "a.safetensors").value();
  const FlipPlan plan =
      make_plan(contents, {.sites = {.tensors = {"conv"}}, .count = 5}).value();
  ASSERT_OK(alter_in_place(env, found, plan, Fixing::kRaw));
  const Snapshot before = files_under(env, "");
  EXPECT_ERROR(plan_repair(env, found), ErrorCode::kCorrupt);
  EXPECT_EQ(files_under(env, ""), before);
  // Five words in five tensors would be no problem: each tensor has a seal of its own.
  ASSERT_OK(alter_in_place(env, found, inverse(plan), Fixing::kRaw));
  for (const char* name : {"conv", "half", "byte", "double"}) {
    const FlipPlan one = make_plan(contents, {.sites = {.tensors = {name}}}).value();
    ASSERT_OK(alter_in_place(env, found, one, Fixing::kRaw));
  }
  const auto report = plan_repair(env, found);
  ASSERT_OK(report);
  EXPECT_EQ(report->mended.size(), 4u);
  ASSERT_OK(repair_in_place(env, found, *report));
  expect_same_tensors(open_file(env, "a.safetensors").value(), contents);
}

TEST(RepairTest, DamagedSealsAreNotTakenForDamageOfTheFile) {
  MemoryEnv env;
  const Contents contents = random_contents(net());
  ASSERT_OK(write_file(env, "a.pt", contents));
  seal(env, "a.pt", contents);
  Bytes seals = env.read_file("a.pt.seals.json").value();
  seals[seals.size() / 2] ^= std::byte{1};
  ASSERT_OK(env.write_file("a.pt.seals.json", seals));
  const std::vector<Damage> damage = damage_of(env, "a.pt");
  ASSERT_EQ(damage.size(), 1u);
  EXPECT_EQ(damage[0].file, "a.pt.seals.json");
}

// Every bit of all records, in files that have nothing but their own CRCs.
TEST(RepairTest, AnyFlippedBitOfARecordIsMendedByItsCrc) {
  for (const char* name : {"torch", "npz", "tensorflow"}) {
    const Format& format = *find_format(name).value();
    MemoryEnv env;
    const Contents contents = random_contents(net());
    ASSERT_OK(write_file(env, "file", contents, {.format = &format}));
    const Snapshot original = files_under(env, "file");
    const Found found = find_any(env, "file").value();
    for (int trial = 0; trial < 60; ++trial) {
      SCOPED_TRACE(fmt::format("{} {}", name, trial));
      const FlipPlan plan = make_plan(contents, {.trial = trial}).value();
      ASSERT_OK(alter_in_place(env, found, plan, Fixing::kRaw));
      const auto report = plan_repair(env, found);
      ASSERT_OK(report);
      EXPECT_EQ(report->flips.bytes.size(), 1u);
      ASSERT_OK(repair_in_place(env, found, *report));
      EXPECT_EQ(files_under(env, "file"), original);
    }
    int refused = 0;
    for (int trial = 0; trial < 60; ++trial) {
      const FlipPlan plan =
          make_plan(contents,
                    {.sites = {.tensors = {"conv"}}, .count = 2, .trial = trial})
              .value();
      ASSERT_OK(alter_in_place(env, found, plan, Fixing::kRaw));
      refused += !plan_repair(env, found).ok();
      ASSERT_OK(alter_in_place(env, found, inverse(plan), Fixing::kRaw));
    }
    EXPECT_EQ(refused, 60) << name;
  }
}

TEST(RepairTest, AFlippedBitOfACrcIsMended) {
  MemoryEnv env;
  ASSERT_OK(write_file(env, "a.pt", random_contents(net())));
  const Bytes original = env.read_file("a.pt").value();
  Bytes bytes = original;
  const auto name = text_of(bytes).rfind("/data/0");  // in the directory
  const auto entry = text_of(bytes).rfind("PK\x01\x02", name);
  bytes[entry + 17] ^= std::byte{4};
  ASSERT_OK(env.write_file("a.pt", bytes));
  const Found found = find_any(env, "a.pt").value();
  const auto report = plan_repair(env, found);
  ASSERT_OK(report);
  ASSERT_OK(repair_in_place(env, found, *report));
  EXPECT_TRUE(env.read_file("a.pt").value() == original);
}

// In a large record other damage passes too often for one bit: only a seal decides.
TEST(RepairTest, ALargeRecordNeedsASealToConfirmTheBit) {
  MemoryEnv env;
  const Contents contents =
      random_contents({{.name = "w", .dtype = Dtype::kF32, .shape = {150'000}}});
  ASSERT_OK(write_file(env, "a.pt", contents));
  const Found found = find_any(env, "a.pt").value();
  const FlipPlan plan = make_plan(contents, {}).value();
  ASSERT_OK(alter_in_place(env, found, plan, Fixing::kRaw));
  const auto refused = plan_repair(env, found);
  EXPECT_ERROR(refused, ErrorCode::kCorrupt);
  EXPECT_NE(message_of(refused).find("once in"), std::string::npos);
  seal(env, "a.pt", contents);
  const auto report = plan_repair(env, found);
  ASSERT_OK(report);
  ASSERT_OK(repair_in_place(env, found, *report));
  expect_same_tensors(open_file(env, "a.pt").value(), contents);
}

// A step: rot on the disk, which chunk CRCs show, and damage between seal and file, which
// only the seal shows. Damage before the seal is what was saved: nothing can show it.
TEST(RepairTest, AStepIsMendedByItsSealsWhateverItsChecksumsSay) {
  MemoryEnv env;
  Job job(replicated(small_state(), 1));
  job.set(small_state_at(1));
  ASSERT_OK(save_alone(env, job, 1));
  const Found found = find_any(env, kRun).value();
  const Contents contents = open_found(env, found).value();
  for (const Fixing fixing : {Fixing::kRaw, Fixing::kConsistent, Fixing::kSealed}) {
    SCOPED_TRACE(name_of(fixing));
    const FlipPlan plan = make_plan(contents, {.seed = 5}).value();
    ASSERT_OK(alter_copy(env, found, plan, fixing, "/runs/hurt"));
    const Found hurt = find_any(env, "/runs/hurt").value();
    EXPECT_EQ(damage_of(env, hurt.path).empty(), fixing != Fixing::kRaw);
    const auto sealed = verify(env, hurt.path, {.seals = true});
    ASSERT_OK(sealed);
    EXPECT_EQ(sealed->at(0).whole(), fixing == Fixing::kSealed);
    const auto report = plan_repair(env, hurt);
    ASSERT_OK(report);
    if (fixing == Fixing::kSealed) {
      EXPECT_TRUE(report->whole());
    } else {
      ASSERT_OK(repair_copy(env, hurt, *report, "/runs/mended"));
      const Found mended = find_any(env, "/runs/mended").value();
      expect_same_tensors(open_found(env, mended).value(), contents);
      for (const std::string& name : env.list(found.path).value()) {
        EXPECT_TRUE(env.read_file(found.path / name).value() ==
                    env.read_file(mended.path / name).value())
            << name;
      }
      ASSERT_OK(env.remove_all("/runs/mended"));
    }
    ASSERT_OK(env.remove_all("/runs/hurt"));
  }
}

// The ladder mends what the digests show; what they agree with, only the seals show then.
TEST(RepairTest, AStepMendedByItsDigestsIsAlsoCheckedByItsSeals) {
  MemoryEnv env;
  const std::vector<std::string> names{"a", "b"};
  const std::vector<Tensor> tensors{
      {.name = names[0], .dtype = Dtype::kF32, .shape = {30, 100}},
      {.name = names[1], .dtype = Dtype::kF32, .shape = {4, 8}}};
  Dice dice(1);
  Job job(replicated(tensors, 1));
  job.set(random_values(dice, tensors));
  ASSERT_OK(save_alone(env, job, 1));
  const Found found = find_any(env, kRun).value();
  const Contents contents = open_found(env, found).value();
  const Snapshot good = files_under(env, found.path);
  const auto hurt = [&](const std::string& name, int64_t count, Fixing fixing) {
    const auto plan = make_plan(contents, {.sites = {.tensors = {name}}, .count = count});
    ASSERT_OK(plan);
    ASSERT_OK(alter_in_place(env, found, *plan, fixing));
  };
  hurt(names[0], 1, Fixing::kConsistent);
  hurt(names[1], 1, Fixing::kRaw);
  const auto report = plan_repair(env, found);
  ASSERT_OK(report);
  ASSERT_TRUE(report->changes());
  ASSERT_OK(repair_copy(env, found, *report, "/runs/mended"));
  const Path copy = Path("/runs/mended") / found.path.filename();
  for (const auto& [path, bytes] : good) {
    EXPECT_TRUE(env.read_file(copy / Path(path).filename()).value() == bytes) << path;
  }
  const auto more = repair_in_place(env, found, *report);
  ASSERT_OK(more);
  ASSERT_EQ(more->size(), 1u);
  EXPECT_EQ(more->at(0).tensor, names[0]);
  EXPECT_TRUE(files_under(env, found.path) == good);
  // More than the seals can mend is an error, and the step is never called whole.
  hurt(names[0], 5, Fixing::kConsistent);
  hurt(names[1], 1, Fixing::kRaw);
  const auto again = plan_repair(env, found);
  ASSERT_OK(again);
  const auto refused = repair_in_place(env, found, *again);
  EXPECT_ERROR(refused, ErrorCode::kCorrupt);
  EXPECT_NE(message_of(refused).find(names[0]), std::string::npos);
}

TEST(RepairTest, TheHeadersOfManyFormatsAreMendedByOneBit) {
  for (const char* name : {"torch", "npz", "safetensors", "hdf5", "tensorflow"}) {
    const Format& format = *find_format(name).value();
    MemoryEnv env;
    const Contents contents = random_contents(
        {{.name = "w", .dtype = Dtype::kF32, .shape = {40, 50}},
         {.name = "b", .dtype = Dtype::kU8, .shape = {5}}});
    const Path path = fmt::format(
        "a{}", format.extensions.empty() ? std::string_view() : format.extensions[0]);
    ASSERT_OK(write_file(env, path, contents, {.format = &format}));
    seal(env, path, contents);
    const Snapshot good = files_under(env, path);
    Dice dice(7);
    int mended = 0, refused = 0, harmless = 0;
    for (int trial = 0; trial < 24; ++trial) {
      // A bit of the first 300 or of the last 300 bytes of a small file of it.
      auto file = good.begin();
      while (format.folder && !file->first.ends_with(".index")) ++file;
      Bytes bytes = file->second;
      const int64_t at = dice.below(std::min<int64_t>(300, std::ssize(bytes)));
      const int64_t offset = trial % 2 == 0 ? at : std::ssize(bytes) - 1 - at;
      bytes[static_cast<size_t>(offset)] ^= static_cast<std::byte>(1 << dice.below(8));
      SCOPED_TRACE(fmt::format("{} byte {} of {}", name, offset, bytes.size()));
      ASSERT_OK(env.write_file(file->first, bytes));
      const auto found = find_to_repair(env, path);
      ASSERT_OK(found);
      const auto report = plan_repair(env, *found);
      if (!report.ok()) {
        ++refused;
      } else if (!report->changes()) {
        expect_same_tensors(open_file(env, path).value(), contents);
        ++harmless;
      } else {
        ASSERT_OK(repair_in_place(env, *found, *report));
        EXPECT_TRUE(files_under(env, path) == good);
        ++mended;
      }
      ASSERT_OK(env.write_file(file->first, file->second));
    }
    std::printf("%s: %d mended, %d harmless, %d refused\n", name, mended, harmless,
                refused);
    EXPECT_GT(mended, 0) << name;
  }
}

// A file that only newer code can read is not damaged.
TEST(RepairTest, WhatCannotBeReadIsNotCalledDamaged) {
  for (const bool sealed : {false, true}) {
    MemoryEnv env;
    const Contents contents = random_contents(net());
    ASSERT_OK(write_file(env, "a.safetensors", contents));
    if (sealed) seal(env, "a.safetensors", contents);
    Bytes bytes = env.read_file("a.safetensors").value();
    const size_t at = text_of(bytes).find("\"F32\"");
    ASSERT_NE(at, std::string::npos);
    bytes[at + 2] = bytes[at + 3] = std::byte{'Z'};
    ASSERT_OK(env.write_file("a.safetensors", bytes));
    const Found found = find_to_repair(env, "a.safetensors").value();
    const auto said = plan_repair(env, found);
    EXPECT_ERROR(said, ErrorCode::kUnsupported);
    EXPECT_NE(message_of(said).find("FZZ"), std::string::npos) << message_of(said);
    EXPECT_EQ(message_of(said).find("flipped bit"), std::string::npos);
  }
}

TEST(RepairTest, ACopyThatIsOfNoUseForAHeaderIsNamed) {
  MemoryEnv env;
  const Contents contents = random_contents(net());
  ASSERT_OK(write_file(env, "a.safetensors", contents));
  ASSERT_OK(write_file(env, "copy.pt", contents));
  Bytes bytes = env.read_file("a.safetensors").value();
  for (size_t i = 8; i < 30; ++i) bytes[i] = std::byte{'x'};
  ASSERT_OK(env.write_file("a.safetensors", bytes));
  const Found found = find_to_repair(env, "a.safetensors").value();
  const auto said = plan_repair(env, found, {.from = "copy.pt"});
  EXPECT_ERROR(said, ErrorCode::kCorrupt);
  EXPECT_NE(message_of(said).find("copy.pt was not used"), std::string::npos);
}

TEST(RepairTest, ACopyOfAnyFormatMendsWhatChecksumsThenConfirm) {
  MemoryEnv env;
  const Contents contents = random_contents(net());
  ASSERT_OK(write_file(env, "a.pt", contents));
  ASSERT_OK(write_file(env, "copy.safetensors", contents));
  const Bytes good = env.read_file("a.pt").value();
  const Found found = find_any(env, "a.pt").value();
  const FlipPlan plan =
      make_plan(contents, {.sites = {.tensors = {"conv"}}, .count = 9}).value();
  ASSERT_OK(alter_in_place(env, found, plan, Fixing::kRaw));
  const Bytes bad = env.read_file("a.pt").value();
  EXPECT_ERROR(plan_repair(env, found), ErrorCode::kCorrupt);
  const auto report = plan_repair(env, found, {.from = "copy.safetensors"});
  ASSERT_OK(report);
  EXPECT_EQ(report->mended.at(0).rung, "copy");
  ASSERT_OK(repair_copy(env, found, *report, "b.pt"));
  EXPECT_TRUE(env.read_file("b.pt").value() == good);
  ASSERT_OK(repair_in_place(env, found, *report));
  EXPECT_TRUE(env.read_file("a.pt").value() == good);
  // Another model is no copy: what comes of it does not have the CRC, and nothing changes.
  ASSERT_OK(alter_in_place(env, found, plan, Fixing::kRaw));
  ASSERT_OK(write_file(env, "other.safetensors", random_contents(net(), 99)));
  const auto wrong = plan_repair(env, found, {.from = "other.safetensors"});
  if (wrong.ok()) {
    EXPECT_ERROR(repair_in_place(env, found, *wrong), ErrorCode::kCorrupt);
  }
  EXPECT_TRUE(env.read_file("a.pt").value() == bad);
}

TEST(RepairTest, ACopyThatDoesNotMendAFileIsNeverWrittenIntoIt) {
  MemoryEnv env;
  const Contents contents = random_contents(net());
  ASSERT_OK(write_file(env, "a.pt", contents));
  ASSERT_OK(write_file(env, "other.safetensors", random_contents(net(), 99)));
  const Found found = find_any(env, "a.pt").value();
  const FlipPlan plan =
      make_plan(contents, {.sites = {.tensors = {"conv"}}, .count = 9}).value();
  ASSERT_OK(alter_in_place(env, found, plan, Fixing::kRaw));
  const auto report = plan_repair(env, found, {.from = "other.safetensors"});
  ASSERT_OK(report);
  FaultyEnv logged(env);
  EXPECT_ERROR(repair_in_place(logged, found, *report), ErrorCode::kCorrupt);
  for (const Call& call : logged.log()) {
    EXPECT_NE(call.op, Op::kWrite) << call.path;
    EXPECT_NE(call.op, Op::kRename) << call.path;
  }
}

TEST(RepairTest, ACopyIsTheReferenceForABitInALargeRecord) {
  MemoryEnv env;
  const Contents contents =
      random_contents({{.name = "w", .dtype = Dtype::kF32, .shape = {150'000}}});
  ASSERT_OK(write_file(env, "a.pt", contents));
  // The copy is damaged elsewhere, and still confirms the bit.
  ASSERT_OK(write_file(env, "copy.safetensors", contents));
  const Found copy = find_any(env, "copy.safetensors").value();
  ASSERT_OK(alter_in_place(env, copy, make_plan(contents, {.count = 3, .seed = 5}).value(),
                           Fixing::kRaw));
  const Bytes good = env.read_file("a.pt").value();
  const Found found = find_any(env, "a.pt").value();
  ASSERT_OK(alter_in_place(env, found, make_plan(contents, {}).value(), Fixing::kRaw));
  EXPECT_ERROR(plan_repair(env, found), ErrorCode::kCorrupt);
  const auto report = plan_repair(env, found, {.from = "copy.safetensors"});
  ASSERT_OK(report);
  EXPECT_EQ(report->mended.at(0).rung, "crc");
  ASSERT_OK(repair_in_place(env, found, *report));
  EXPECT_TRUE(env.read_file("a.pt").value() == good);
}

}  // namespace
}  // namespace holdfast::tests::repair_test
