// A place in shared memory while another process uses it, too.
#include "holdfast/shared_place/shared_place.h"

#include <gtest/gtest.h>

#include "holdfast/base/testing.h"
#include "holdfast/env/faulty_env.h"
#include "holdfast/env/posix_env.h"

namespace holdfast {
namespace {

constexpr const char* kId = "0123456789abcdef0123456789abcdef";

class SharedPlaceTest : public ::testing::Test {
 protected:
  SharedPlace place_by(Env& env) const {
    return SharedPlace(env, temp_.path(), temp_.path() / "run", kId);
  }

  // A step without files.
  static Manifest step(int64_t number, int64_t epoch) {
    return {.step = number,
            .run = kId,
            .epoch = epoch,
            .sequence = 1,
            .attempt = static_cast<uint64_t>(100 * epoch + number)};
  }
  void leave(const Manifest& manifest) const {
    ASSERT_OK(place_.make());
    const Result<Path> begun = place_.begin(manifest.step, manifest.attempt);
    ASSERT_OK(begun);
    ASSERT_OK(place_.publish(*begun, manifest, {}));
  }
  std::vector<Manifest> left() const {
    std::vector<Manifest> found;
    for (const Step& one : place_.steps().value()) found.push_back(one.manifest);
    return found;
  }

  std::unique_ptr<Env> env_ = make_posix_env();
  TempFolder temp_;
  const SharedPlace place_ = place_by(*env_);
};

TEST_F(SharedPlaceTest, AStepThatComesWhileAnEmptyPlaceIsRemovedStays) {
  for (int64_t call = 1;; ++call) {
    ASSERT_OK(place_.make());
    FaultyEnv other(*env_);
    bool came = false;
    other.before(Op::kAny, call, [&] {
      came = true;
      leave(step(7, 2));
    });
    EXPECT_OK(place_by(other).remove_if_empty());
    if (!came) break;
    EXPECT_EQ(left(), std::vector{step(7, 2)}) << "before call " << call;
    std::filesystem::remove_all(place_.path());
  }
  EXPECT_FALSE(std::filesystem::exists(place_.path()));
}

// The process that removes the place is killed before one of its calls. A step may come
// before that, or not at all.
TEST_F(SharedPlaceTest, AnEmptyPlaceWhoseRemovalWasCutShortIsCollected) {
  for (const int64_t comes : {0, 2, 4, 6}) {
    for (int64_t call = 1;; ++call) {
      SCOPED_TRACE(fmt::format("step before call {}, death before call {}", comes, call));
      ASSERT_OK(place_.make());
      FaultyEnv other(*env_);
      bool came = false;
      if (comes > 0) {
        other.before(Op::kAny, comes, [&] {
          came = true;
          leave(step(7, 2));
        });
      }
      other.crash_at(Op::kAny, call);
      const bool died = !place_by(other).remove_if_empty().ok();
      const auto names = env_->list(temp_.path()).value();
      remove_old_places(*env_, temp_.path(), place_.path(), true);
      EXPECT_EQ(env_->list(temp_.path()).value(), names);
      remove_old_places(*env_, temp_.path(), place_.path());
      EXPECT_EQ(left(), came ? std::vector{step(7, 2)} : std::vector<Manifest>());
      for (const std::string& name : env_->list(temp_.path()).value()) {
        EXPECT_EQ(name, place_.path().filename());
      }
      std::filesystem::remove_all(place_.path());
      if (!died) break;
    }
  }
}

TEST_F(SharedPlaceTest, AnEmptyPlaceIsRemovedWithAllThatIsInIt) {
  leave(step(7, 2));
  EXPECT_OK(place_.remove_if_empty());
  EXPECT_EQ(left(), std::vector{step(7, 2)});
  ASSERT_OK(place_.remove_older({3, 0}));
  EXPECT_OK(place_.remove_if_empty());
  EXPECT_TRUE(std::filesystem::is_empty(temp_.path()));
  EXPECT_OK(place_.remove_if_empty());
}

TEST_F(SharedPlaceTest, AnOwnerThatComesLateDoesNotRemoveWhatIsNewer) {
  leave(step(7, 3));
  leave(step(8, 1));
  leave(step(9, 2));
  ASSERT_OK(place_.remove_all_but(step(9, 2)));
  EXPECT_EQ(left(), (std::vector{step(7, 3), step(9, 2)}));
}

TEST_F(SharedPlaceTest, AStepThatCannotBeReadNowIsNotRemoved) {
  leave(step(9, 2));
  for (int64_t call = 1;; ++call) {
    FaultyEnv faulty(*env_);
    faulty.fail_at(Op::kAny, call, ErrorCode::kIo);
    static_cast<void>(place_by(faulty).remove_all_but(step(9, 2)));
    EXPECT_EQ(left(), std::vector{step(9, 2)}) << "call " << call;
    if (faulty.calls() < call) break;
  }
}

TEST_F(SharedPlaceTest, AStepThatTwoRanksPublishLeavesNothingElse) {
  leave(step(7, 1));
  leave(step(7, 1));
  EXPECT_EQ(left().size(), 1u);
  for (const std::string& name : env_->list(place_.path()).value()) {
    EXPECT_FALSE(parse_attempt_name(name).has_value()) << name;
  }
}

TEST_F(SharedPlaceTest, AStepWhoseFolderIsTakenCannotBePublished) {
  ASSERT_OK(place_.make());
  const Result<Path> begun = place_.begin(7, step(7, 1).attempt);
  ASSERT_OK(begun);
  ASSERT_OK(place_.remove_attempts());
  EXPECT_FALSE(place_.publish(*begun, step(7, 1), {}).ok());
  EXPECT_TRUE(left().empty());
}

TEST_F(SharedPlaceTest, AStepWhoseShardIsGoneCannotBePublished) {
  const std::string shard = "rank-0000.safetensors";
  Manifest manifest = step(7, 1);
  manifest.files = {{.name = shard, .bytes = 4, .digest = crc_digest(0)}};
  ASSERT_OK(place_.make());
  const Path begun = place_.begin(7, manifest.attempt).value();
  ASSERT_OK(env_->write_file(begun / shard, Bytes(4)));
  ASSERT_OK(place_.remove_attempts());  // by a process that had the run before
  ASSERT_OK(place_.begin(7, manifest.attempt));  // by a rank that is slower
  EXPECT_ERROR(place_.publish(begun, manifest, {}, {shard}), ErrorCode::kConflict);
  EXPECT_TRUE(left().empty());
  ASSERT_OK(env_->write_file(begun / shard, Bytes(4)));
  EXPECT_OK(place_.publish(begun, manifest, {}, {shard}));
}

TEST_F(SharedPlaceTest, ADamagedStepDoesNotHideTheOthers) {
  leave(step(7, 1));
  leave(step(8, 2));
  const Path manifest = place_.path() / "step-00000008" / kManifestName;
  ASSERT_OK(env_->write_file(manifest, bytes_of("{")));
  EXPECT_FALSE(place_.steps().ok());
  const StepList list = place_.list_steps().value();
  ASSERT_EQ(list.steps.size(), 1u);
  EXPECT_EQ(list.steps[0].manifest, step(7, 1));
  ASSERT_EQ(list.skipped.size(), 1u);
  EXPECT_EQ(list.skipped[0].folder, "step-00000008");
  ASSERT_OK(place_.remove_older({9, 0}));
  EXPECT_TRUE(env_->info(manifest).ok());
  ASSERT_OK(place_.remove_older({9, 0}, true));
  EXPECT_FALSE(env_->info(manifest).ok());
}

TEST_F(SharedPlaceTest, WhatIsDiscardedIsGone) {
  leave(step(7, 1));
  EXPECT_OK(place_.discard({}));
  EXPECT_OK(place_.discard(place_.path() / "step-00000008"));
  EXPECT_EQ(left(), std::vector{step(7, 1)});
  EXPECT_OK(place_.discard(place_.path() / "step-00000007"));
  EXPECT_TRUE(left().empty());
}

}  // namespace
}  // namespace holdfast
