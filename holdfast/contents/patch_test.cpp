#include "holdfast/contents/patch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "holdfast/base/testing.h"
#include "holdfast/contents/contents_testing.h"
#include "holdfast/contents/file_edit.h"
#include "holdfast/contents/patched_env.h"
#include "holdfast/env/faulty_env.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/env/posix_env.h"

namespace holdfast {
namespace {

using testing::HasSubstr;
using tests::Dice;

Bytes random_bytes(Dice& dice, int64_t count) {
  Bytes bytes(static_cast<size_t>(count));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(dice.below(256));
  return bytes;
}

// Edits a file and a copy of its bytes in the same random ways.
Bytes edit_randomly(Dice& dice, FileEdit& edit, Bytes bytes) {
  for (int64_t left = dice.below(12); left > 0; --left) {
    const int64_t at = dice.below(std::ssize(bytes) + 1);
    const Bytes more = random_bytes(dice, dice.below(6));
    const auto here = bytes.begin() + at;
    if (dice.one_in(4)) {
      EXPECT_OK(edit.write_tail(at, more));
      bytes.erase(here, bytes.end());
      bytes.insert(bytes.end(), more.begin(), more.end());
    } else if (dice.one_in(2)) {
      EXPECT_OK(edit.write(at, more));
      bytes.resize(std::max(bytes.size(), static_cast<size_t>(at) + more.size()));
      std::ranges::copy(more, bytes.begin() + at);
    } else if (at + std::ssize(more) <= std::ssize(bytes)) {
      EXPECT_OK(edit.flip(at, more));
      for (size_t i = 0; i < more.size(); ++i) {
        bytes[static_cast<size_t>(at) + i] ^= more[i];
      }
    }
  }
  return bytes;
}

RC_GTEST_PROP(PatchTest, AnEditIsThePatchThatMakesIt, (uint64_t seed)) {
  Dice dice(seed);
  MemoryEnv env;
  const Bytes before = random_bytes(dice, dice.below(40));
  RC_ASSERT(env.write_file("file", before).ok());
  PatchPlan plan(env, "file");
  FileEdit& edit = *plan.edit("file").value();
  const Bytes after = edit_randomly(dice, edit, before);
  RC_ASSERT(edit.size() == std::ssize(after));
  RC_ASSERT(edit.read_bytes(0, edit.size()).value() == after);
  const Patch patch = std::move(plan).finish();
  PatchedEnv shown(env, patch);
  RC_ASSERT(shown.read_file("file").value() == after);
  RC_ASSERT(shown.info("file").value().size == std::ssize(after));
  RC_ASSERT(env.read_file("file").value() == before);
  const auto applied = apply_patch(env, patch);
  RC_LOG() << message_of(applied);
  RC_ASSERT(applied.ok());
  RC_ASSERT(env.read_file("file").value() == after);
  RC_ASSERT(apply_patch(env, inverse(patch)).ok());
  RC_ASSERT(env.read_file("file").value() == before);
  RC_ASSERT(env.list("").value().size() == 1);
}

class ApplyTest : public ::testing::Test {
 protected:
  // Two files in a folder: one changes in place, the other grows.
  static void make(Env& env) {
    ASSERT_OK(env.create_folder("f"));
    ASSERT_OK(env.write_file("f/a", bytes_of("0123456789")));
    ASSERT_OK(env.write_file("f/b", bytes_of("abcdef")));
    ASSERT_OK(env.sync_folder("f"));
    ASSERT_OK(env.sync_folder(""));
  }

  static Patch patch() {
    return {.path = "f/",
            .files = {{.file = "f/a",
                       .size_before = 10,
                       .size_after = 10,
                       .changes = {change(2, "23", "xy"), change(7, "7", "z")}},
                      {.file = "f/b",
                       .size_before = 6,
                       .size_after = 9,
                       .changes = {change(1, "b", "B"), change(5, "f", "F123")}}}};
  }

  static Change change(int64_t at, const char* before, const char* after) {
    return {at, copy_of(bytes_of(before)), copy_of(bytes_of(after))};
  }

  static std::string state(Env& env) {
    return env.read_text("f/a").value() + " " + env.read_text("f/b").value();
  }

  static constexpr const char* kOld = "0123456789 abcdef";
  static constexpr const char* kNew = "01xy456z89 aBcdeF123";
};

TEST_F(ApplyTest, ChangesAllFilesWithFewSyncsAndUndoesThem) {
  MemoryEnv disk;
  make(disk);
  FaultyEnv env(disk);
  ASSERT_OK(apply_patch(env, patch()));
  EXPECT_EQ(state(disk), kNew);
  EXPECT_LE(env.calls(Op::kSync) + env.calls(Op::kSyncFolder), 5);
  EXPECT_EQ(state(*disk.after_crash({})), kNew);
  EXPECT_EQ(disk.list("f").value().size(), 2u);
  ASSERT_OK(apply_patch(env, inverse(patch())));
  EXPECT_EQ(state(disk), kOld);
}

TEST_F(ApplyTest, ACrashAtAnyCallLeavesTheOldOrTheNewAfterRepair) {
  for (const bool back : {false, true}) {
    MemoryEnv counted_disk;
    make(counted_disk);
    if (back) ASSERT_OK(apply_patch(counted_disk, patch()));
    FaultyEnv counted(counted_disk);
    const Patch done = back ? inverse(patch()) : patch();
    ASSERT_OK(apply_patch(counted, done));
    bool journal_seen = false;
    for (int64_t k = 1; k <= counted.calls(); ++k) {
      MemoryEnv disk;
      make(disk);
      if (back) ASSERT_OK(apply_patch(disk, patch()));
      FaultyEnv env(disk);
      env.crash_at(Op::kAny, k);
      EXPECT_FALSE(apply_patch(env, done).ok()) << k;
      for (uint64_t seed = 0; seed < 12; ++seed) {
        const auto unsynced = seed == 0   ? Unsynced::kLost
                              : seed == 1 ? Unsynced::kKept
                                          : Unsynced::kReordered;
        const auto after = disk.after_crash({.unsynced = unsynced, .seed = seed});
        const bool readable = check_no_journal(*after, "f").ok();
        journal_seen = journal_seen || !readable;
        const auto whole = [&] {
          return state(*after) == kOld || state(*after) == kNew;
        };
        EXPECT_TRUE(!readable || whole()) << k << " " << seed << " " << state(*after);
        const auto repaired = repair_patch(*after, "f");
        ASSERT_OK(repaired);
        EXPECT_EQ(*repaired, !readable);
        EXPECT_TRUE(whole()) << k << " " << seed << " " << state(*after);
        EXPECT_OK(check_no_journal(*after, "f"));
        EXPECT_EQ(after->list("f").value().size(), 2u);
      }
    }
    EXPECT_TRUE(journal_seen);
  }
}

TEST_F(ApplyTest, AnErrorAtAnyCallLeavesTheOldOrAJournalThatGivesItBack) {
  MemoryEnv counted_disk;
  make(counted_disk);
  FaultyEnv counted(counted_disk);
  ASSERT_OK(apply_patch(counted, patch()));
  for (int64_t k = 1; k <= counted.calls(); ++k) {
    for (const bool effect : {false, true}) {
      MemoryEnv disk;
      make(disk);
      FaultyEnv env(disk);
      if (effect) {
        env.fail_after(Op::kAny, k, ErrorCode::kNoSpace);
      } else {
        env.fail_at(Op::kAny, k, ErrorCode::kNoSpace);
      }
      const auto applied = apply_patch(env, patch());
      if (!applied.ok() && check_no_journal(disk, "f").ok()) {
        // The last two calls remove the journal and sync its folder.
        EXPECT_TRUE(state(disk) == kOld || k >= counted.calls() - 1) << k;
      }
      // The machine fails later; then the state is repaired and the patch applied again.
      const auto after = disk.after_crash(
          {.unsynced = Unsynced::kReordered, .seed = static_cast<uint64_t>(k)});
      for (Env* next : {static_cast<Env*>(&disk), static_cast<Env*>(after.get())}) {
        EXPECT_TRUE(next == &disk || !applied.ok() || state(*next) == kNew) << k;
        ASSERT_OK(repair_patch(*next, "f"));
        EXPECT_TRUE(state(*next) == kOld || state(*next) == kNew) << k;
        if (state(*next) == kOld) EXPECT_OK(apply_patch(*next, patch()));
        EXPECT_EQ(state(*next), kNew);
      }
    }
  }
}

TEST_F(ApplyTest, WhatIsNotAsPlannedIsRefusedAndUntouched) {
  MemoryEnv env;
  make(env);
  const auto refused = [&](const Patch& one, ErrorCode code, const char* words) {
    const std::string before = state(env);
    const auto applied = apply_patch(env, one);
    EXPECT_ERROR(applied, code);
    EXPECT_THAT(message_of(applied), HasSubstr(words));
    EXPECT_EQ(state(env), before);
  };
  Patch other = patch();
  other.files[1].changes[0].before[0] = std::byte{'q'};
  refused(other, ErrorCode::kConflict, "other bytes at 1");
  other = patch();
  other.files[0].size_before = other.files[0].size_after = 11;
  refused(other, ErrorCode::kConflict, "has 10 bytes; expected 11");
  other = patch();
  other.files[1].size_after = 8;
  refused(other, ErrorCode::kInvalid, "contradicts the sizes");
  other = patch();
  std::swap(other.files[0].changes[0], other.files[0].changes[1]);
  refused(other, ErrorCode::kInvalid, "the change before it");
  other = patch();
  other.files[0].file = "elsewhere";
  refused(other, ErrorCode::kInvalid, "is not in the folder");
  other = patch();
  other.files[1] = other.files[0];
  refused(other, ErrorCode::kInvalid, "in the patch twice");
  ASSERT_OK(env.link("f/b", "f/c"));
  refused(patch(), ErrorCode::kConflict, "has 2 hard links");
}

TEST(ApplyToDisk, ASymbolicLinkIsRefused) {
  const TempFolder folder;
  const auto env = make_posix_env();
  ASSERT_OK(env->write_file(folder.path() / "a", bytes_of("ab")));
  std::filesystem::create_symlink("a", folder.path() / "link");
  const Patch patch{
      .path = folder.path() / "link",
      .files = {{.file = folder.path() / "link",
                 .size_before = 2,
                 .size_after = 2,
                 .changes = {{0, Bytes{std::byte{'a'}}, Bytes{std::byte{'b'}}}}}}};
  const auto applied = apply_patch(*env, patch);
  EXPECT_ERROR(applied, ErrorCode::kConflict);
  EXPECT_THAT(message_of(applied), HasSubstr("symbolic link"));
}

// A file that is replaced by a link after a crash must not lead the repair elsewhere.
TEST(ApplyToDisk, ARepairDoesNotFollowASymbolicLink) {
  const auto disk = make_posix_env();
  const TempFolder folder;
  const Path file = folder.path() / "a", other = folder.path() / "other";
  ASSERT_OK(disk->write_file(file, bytes_of("abc")));
  FaultyEnv env(*disk);
  env.crash_at(Op::kWrite, 2);
  const Patch patch{.path = file,
                    .files = {{.file = file,
                               .size_before = 3,
                               .size_after = 3,
                               .changes = {{0, copy_of(bytes_of("a")),
                                            copy_of(bytes_of("x"))}}}}};
  EXPECT_FALSE(apply_patch(env, patch).ok());
  ASSERT_OK(disk->write_file(other, bytes_of("xyz")));
  ASSERT_OK(disk->remove_file(file));
  std::filesystem::create_symlink("other", file.native());
  const auto repaired = repair_patch(*disk, file);
  EXPECT_ERROR(repaired, ErrorCode::kConflict);
  EXPECT_THAT(message_of(repaired), HasSubstr("symbolic link"));
  EXPECT_EQ(text_of(disk->read_file(other).value()), "xyz");
}

TEST_F(ApplyTest, AJournalThatIsDamagedOrStrangeChangesNothing) {
  MemoryEnv disk;
  make(disk);
  FaultyEnv env(disk);
  env.crash_at(Op::kWrite, 3);  // after the journal and a part of the files
  EXPECT_FALSE(apply_patch(env, patch()).ok());
  const Path journal = journal_of("f/");
  const Bytes good = disk.read_file(journal).value();
  const std::string half = state(disk);
  for (size_t i = 0; i < good.size(); ++i) {
    Bytes bad = good;
    bad[i] ^= std::byte{1};
    ASSERT_OK(disk.write_file(journal, bad));
    EXPECT_ERROR(repair_patch(disk, "f"), ErrorCode::kCorrupt);
    EXPECT_ERROR(apply_patch(disk, patch()), ErrorCode::kCorrupt);
  }
  EXPECT_EQ(state(disk), half);
  ASSERT_OK(disk.write_file(journal, good));
  ASSERT_OK(disk.write_file("f/a", bytes_of("somebody's")));
  const auto repaired = repair_patch(disk, "f/a");
  EXPECT_ERROR(repaired, ErrorCode::kCorrupt);
  EXPECT_THAT(message_of(repaired), HasSubstr("somebody else has changed it"));
  const auto read = check_no_journal(disk, "f/b");
  EXPECT_ERROR(read, ErrorCode::kConflict);
  EXPECT_THAT(message_of(read), HasSubstr("f/.holdfast-patch"));
}

TEST(PlaceFlips, NamesWhatIsNotThere) {
  const Contents contents = tests::random_contents(
      {{.name = "w", .dtype = Dtype::kF32, .shape = {2, 3}, .aliases = {"tied"}},
       {.name = "empty", .dtype = Dtype::kU8, .shape = {0}}});
  std::vector<int64_t> offsets;
  const auto place = [&](Flip flip) {
    return place_flips(contents, std::array{flip}, [&](const PlacedFlip& at) {
      offsets.push_back(at.offset);
      return Result<void>();
    });
  };
  Flip flip{.tensor = "tied", .element = 5};
  flip.mask[3] = std::byte{1};
  EXPECT_OK(place(flip));
  EXPECT_EQ(offsets, std::vector<int64_t>{20});
  EXPECT_ERROR(place({.tensor = "v"}), ErrorCode::kNotFound);
  EXPECT_ERROR(place({.tensor = "w", .element = 6}), ErrorCode::kInvalid);
  EXPECT_ERROR(place({.tensor = "w", .element = -1}), ErrorCode::kInvalid);
  EXPECT_ERROR(place({.tensor = "empty"}), ErrorCode::kInvalid);
  flip.mask[4] = std::byte{1};
  EXPECT_ERROR(place(flip), ErrorCode::kInvalid);
}

}  // namespace
}  // namespace holdfast
