#include "holdfast/store/object_store_run.h"

#include <gtest/gtest.h>

#include "holdfast/base/testing.h"
#include "holdfast/remote/object_memory_testing.h"

namespace holdfast {
namespace {

WallTime at(int hours) { return WallTime(std::chrono::hours(hours)); }

class ObjectTierTest : public testing::Test {
 protected:
  ObjectStoreRun tier() { return ObjectStoreRun::create(store, "runs/gpt").value(); }

  Result<void> write(uint64_t attempt, const std::string& file,
                     const std::string& text) {
    auto upload = HOLDFAST_TRY(
        tier().create_file(attempt, file, static_cast<int64_t>(text.size())));
    HOLDFAST_TRY(upload->append(bytes_of(text)));
    return upload->finish();
  }
  Result<void> save(const ObjectStoreStep& step, const std::string& text) {
    HOLDFAST_TRY(write(step.attempt, "rank-0000.safetensors", text));
    HOLDFAST_TRY(write(step.attempt, "objects.json", "{}"));
    return tier().commit(step, bytes_of("manifest of " + text), files_of(text));
  }
  static std::vector<ManifestFile> files_of(const std::string& text) {
    return {{"rank-0000.safetensors", static_cast<int64_t>(text.size()), ""},
            {"objects.json", 2, ""}};
  }
  // The contents of the newest checkpoint, read as a restore reads them.
  Result<std::string> newest() {
    const auto steps = HOLDFAST_TRY(tier().steps());
    if (steps.empty()) return std::string("none");
    const Bytes manifest = HOLDFAST_TRY(tier().read_manifest(steps[0]));
    const auto source = HOLDFAST_TRY(tier().open(steps[0], "rank-0000.safetensors"));
    const Bytes shard = HOLDFAST_TRY(source->read_bytes(0, source->size()));
    HOLDFAST_TRY(tier().open(steps[0], "objects.json"));
    const std::string text(text_of(shard));
    if (text_of(manifest) != "manifest of " + text) return corrupt("mixed: {}", text);
    return text;
  }
  size_t keys() { return store.list("")->size(); }

  MemoryObjectStore store;
  const ObjectStoreStep one{.epoch = 1, .sequence = 1, .attempt = 0xa1};
  const ObjectStoreStep two{.epoch = 1, .sequence = 2, .attempt = 0xa2};
};

TEST_F(ObjectTierTest, ACommittedStepReadsBack) {
  ASSERT_OK(save(one, "first"));
  EXPECT_EQ(newest().value(), "first");
  EXPECT_EQ(store.list("")->at(2).key,
            "runs/gpt/manifest-0000000000000000001-0000000000000000001-"
            "00000000000000a1.json");
  EXPECT_EQ(store.list("")->at(0).key, "runs/gpt/data/00000000000000a1/objects.json");
  EXPECT_EQ(tier().name(), "memory://objects/runs/gpt");
}

TEST_F(ObjectTierTest, NewestIsByEpochThenSequenceThenAttempt) {
  const ObjectStoreStep later{.epoch = 2, .sequence = 1, .attempt = 1};
  const ObjectStoreStep tenth{.epoch = 1, .sequence = 10, .attempt = 2};
  for (const ObjectStoreStep& step : {tenth, later, one, two})
    ASSERT_OK(save(step, "x"));
  EXPECT_EQ(tier().steps().value(),
            (std::vector<ObjectStoreStep>{later, tenth, two, one}));
}

TEST_F(ObjectTierTest, DataWithoutManifestIsNoStep) {
  ASSERT_OK(save(one, "first"));
  ASSERT_OK(write(two.attempt, "rank-0000.safetensors", "second"));
  EXPECT_EQ(newest().value(), "first");
}

TEST_F(ObjectTierTest, ACommitWithoutItsFilesIsRefused) {
  ASSERT_OK(write(one.attempt, "rank-0000.safetensors", "short"));
  ASSERT_OK(write(one.attempt, "objects.json", "{}"));
  const auto outcome = tier().commit(one, bytes_of("m"), files_of("longer"));
  EXPECT_ERROR(outcome, ErrorCode::kConflict);
  EXPECT_EQ(
      message_of(outcome),
      "memory://objects/runs/gpt: attempt 00000000000000a1: rank-0000.safetensors "
      "has 5 bytes; expected 6");
  EXPECT_ERROR(tier().commit(two, bytes_of("m"), files_of("x")), ErrorCode::kConflict);
  EXPECT_TRUE(tier().steps()->empty());
}

TEST_F(ObjectTierTest, NamesOfOthersAreIgnored) {
  ASSERT_OK(save(one, "first"));
  for (const char* name :
       {"manifest-9.json", "manifest-", "latest", "manifest.json",
        "manifest-0000000000000000009-0000000000000000001-00000000000000A1.json",
        "manifest-+000000000000000009-0000000000000000001-00000000000000a1.json",
        "manifest-9999999999999999999-0000000000000000001-00000000000000a1.json",
        "manifest-0000000000000000009_0000000000000000001-00000000000000a1.json"}) {
    ASSERT_OK(store.put(std::string("runs/gpt/") + name, bytes_of("x")));
  }
  EXPECT_EQ(tier().steps().value(), std::vector<ObjectStoreStep>{one});
}

TEST_F(ObjectTierTest, AFileNameStaysInItsAttempt) {
  for (const char* file : {"", "a/b", "..", "."}) {
    EXPECT_ERROR(tier().create_file(1, file, 0), ErrorCode::kInvalid);
  }
  EXPECT_ERROR(ObjectStoreRun::create(store, "a/../b"), ErrorCode::kInvalid);
}

TEST_F(ObjectTierTest, ARemovedStepLeavesNothing) {
  ASSERT_OK(save(one, "first"));
  ASSERT_OK(save(two, "second"));
  ASSERT_OK(tier().remove(two));
  EXPECT_EQ(newest().value(), "first");
  ASSERT_OK(tier().remove(one));
  EXPECT_EQ(keys(), 0U);
}

TEST_F(ObjectTierTest, ACommittedAttemptIsNotDiscarded) {
  ASSERT_OK(save(one, "first"));
  EXPECT_ERROR(tier().discard(one.attempt), ErrorCode::kInvalid);
  ASSERT_OK(write(two.attempt, "objects.json", "{}"));
  ASSERT_OK(tier().discard(two.attempt));
  EXPECT_EQ(keys(), 3U);
}

TEST_F(ObjectTierTest, ASaveThatDiesAtAnyCallLeavesTheOldStepOrTheNew) {
  ASSERT_OK(save(one, "first"));
  const int64_t before = store.calls();
  ASSERT_OK(save(two, "second"));
  const int64_t calls = store.calls() - before;
  ASSERT_GT(calls, 4);
  for (int64_t k = 0; k <= calls; ++k) {
    for (const bool done : {false, true}) {
      ASSERT_OK(tier().remove(two));
      store.die_after(k, done);
      EXPECT_EQ(save(two, "second").ok(), k == calls) << k;
      store.revive();
      // The last call is the commit. If `done` is set, the commit happened and only its
      // answer was lost.
      const bool is_new = k == calls || (k == calls - 1 && done);
      EXPECT_EQ(newest().value(), is_new ? "second" : "first") << k << done;
    }
  }
}

TEST_F(ObjectTierTest, ARemovalThatDiesAtAnyCallLeavesAWholeStepNewest) {
  ASSERT_OK(save(one, "first"));
  ASSERT_OK(save(two, "second"));
  const int64_t before = store.calls();
  ASSERT_OK(tier().remove(two));
  const int64_t calls = store.calls() - before;
  for (int64_t k = 0; k < calls; ++k) {
    for (const bool done : {false, true}) {
      ASSERT_OK(save(two, "second"));
      store.die_after(k, done);
      EXPECT_FALSE(tier().remove(two).ok());
      store.revive();
      EXPECT_EQ(newest().value(), k == 0 && !done ? "second" : "first") << k;
      ASSERT_OK(tier().remove(two));  // the second call completes the removal
      EXPECT_EQ(keys(), 3U);
    }
  }
}

TEST_F(ObjectTierTest, SweepTakesOldDataWithoutManifestAndNothingElse) {
  ASSERT_OK(save(one, "first"));
  ASSERT_OK(write(0xdead, "rank-0000.safetensors", "old"));
  auto orphan = tier().create_file(0xdead, "rank-0001.safetensors", 9);
  ASSERT_OK(orphan);
  ASSERT_OK(write(0x11fe, "rank-0000.safetensors", "old, but alive"));
  ASSERT_OK(write(0xbeef, "rank-0000.safetensors", "old"));
  store.set_clock(at(10));
  ASSERT_OK(write(0xbeef, "rank-0001.safetensors", "new"));
  const auto swept = tier().sweep(at(5), {0x11fe});
  ASSERT_OK(swept);
  EXPECT_EQ(*swept, 2);
  EXPECT_TRUE(store.list_uploads("")->empty());
  EXPECT_EQ(keys(), 6U);
  EXPECT_EQ(newest().value(), "first");
  EXPECT_EQ(tier().sweep(at(11), {}).value(), 3);
  EXPECT_EQ(keys(), 3U);
}

TEST_F(ObjectTierTest, SweepWorksWhereUploadsCannotBeListed) {
  store.forget_uploads();
  ASSERT_OK(write(0xdead, "rank-0000.safetensors", "old"));
  EXPECT_EQ(tier().sweep(at(5), {}).value(), 1);
}

TEST(ObjectKeyTest, RefusesWhatSomeServerWouldChange) {
  for (const std::string& key :
       {std::string(), std::string(1025, 'a'), std::string("a\nb"), std::string("a//b"),
        std::string("/a"), std::string("a/"), std::string("a/./b"),
        std::string("..")}) {
    EXPECT_ERROR(check_object_key("s3://b", key), ErrorCode::kInvalid);
  }
  EXPECT_OK(check_object_key("s3://b", "a b/\xc3\xa9+%.json"));
}

}  // namespace
}  // namespace holdfast
