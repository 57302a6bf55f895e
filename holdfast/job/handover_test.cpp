// A job that stops, and the next one that goes on with what is left in memory.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "holdfast/env/env_wrapper.h"
#include "holdfast/env/faulty_env.h"
#include "holdfast/job/handover_testing.h"
#include "holdfast/shared_place/shared_place.h"

namespace holdfast {
namespace {

// A host that has almost no free memory.
class FullHostEnv : public EnvWrapper {
 public:
  FullHostEnv(Env& inner, Path meminfo)
      : EnvWrapper(inner), meminfo_(std::move(meminfo)) {}

  Result<std::unique_ptr<File>> open(const Path& path, OpenOptions options) override {
    return inner_.open(path == "/proc/meminfo" ? meminfo_ : path, options);
  }

 private:
  const Path meminfo_;
};

// A host on which files of that name are slow to open.
class SlowHostEnv : public EnvWrapper {
 public:
  SlowHostEnv(Env& inner, std::string name) : EnvWrapper(inner), name_(std::move(name)) {}

  Result<std::unique_ptr<File>> open(const Path& path, OpenOptions options) override {
    if (path.filename() == name_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
    }
    return inner_.open(path, options);
  }

 private:
  const std::string name_;
};

// Makes a place look as if nobody had used it for some days.
void let_days_pass(const Path& place) {
  std::filesystem::last_write_time(
      place, std::filesystem::file_time_type::clock::now() - std::chrono::hours(72));
}

TEST_F(Handover, TwoRanksLeaveWhatThreeTakeOnOneHost) {
  save_and_leave({0, 0});
  const RestoredState told = resume({0, 0, 0}, 2);
  EXPECT_EQ(told.objects, Object(Object::Value(std::string("all"))));
  EXPECT_TRUE(told.rank_objects.none());
  EXPECT_TRUE(told.skipped.empty());
}

TEST_F(Handover, OneRankDoesWithoutATransport) {
  save_and_leave({0});
  EXPECT_EQ(resume({0}, 2).rank_objects, Object(Object::Value(int64_t{0})));
}

TEST_F(Handover, BetweenHostsTheBytesAreExchanged) {
  save_and_leave({0, 0, 1, 1});
  // Host 2 is new, and two ranks share a host.
  const RestoredState told = resume({2, 1, 0, 0, 2}, 2);
  EXPECT_EQ(told.objects, Object(Object::Value(std::string("all"))));
  EXPECT_EQ(told.folder.parent_path(), place(2));
}

TEST_F(Handover, BetweenHostsTheTensorsThatAreThereNeedNoFreeMemory) {
  save_and_leave({0, 1});
  const Path meminfo = temp_.path() / "meminfo";
  ASSERT_OK(env_->write_file(meminfo, bytes_of("MemAvailable: 1 kB\n")));
  FullHostEnv full(*env_, meminfo);
  used_ = &full;
  EXPECT_TRUE(resume({1, 0}, 2).skipped.empty());
}

TEST_F(Handover, TheSameRanksGetTheirOwnObjects) {
  save_and_leave({0, 1});
  EXPECT_EQ(resume({1, 0}, 2).rank_objects, Object(Object::Value(int64_t{0})));
}

TEST_F(Handover, ABoxThatWentWithItsHostIsNamedAndTheDurableStepTaken) {
  save_and_leave({0, 1});
  std::filesystem::remove_all(place(1));
  const RestoredState told = resume({0, 0, 0}, 1);
  ASSERT_EQ(told.skipped.size(), 1u);
  const std::string& why = told.skipped[0].error.message();
  EXPECT_NE(why.find("w [6:12, 0:8] was in rank-0001.safetensors"), std::string::npos)
      << why;
}

TEST_F(Handover, ADamagedShardIsPassedOver) {
  for (const std::vector<int>& hosts : {std::vector{0, 0}, std::vector{0, 1}}) {
    save_and_leave(hosts);
    damage_shard(hosts[1]);
    const RestoredState told = resume(hosts, 1);
    ASSERT_EQ(told.skipped.size(), 1u);
    EXPECT_EQ(told.skipped[0].error.code(), ErrorCode::kCorrupt);
    std::filesystem::remove_all(run());
    std::filesystem::remove_all(host(0));
  }
}

TEST_F(Handover, ADamagedShardWithNothingOnDiskIsAnError) {
  only_leave({0, 0});
  damage_shard(0);
  expect_none_is_whole({0, 0});
}

TEST_F(Handover, ADamagedShardOfAHostWithNothingOnDiskIsAnError) {
  only_leave({0, 1});
  damage_shard(1);
  expect_none_is_whole({0, 1});
}

TEST_F(Handover, ALostHostWithNothingOnDiskIsAnError) {
  only_leave({0, 1});
  std::filesystem::remove_all(place(1));
  expect_none_is_whole({0, 0});
}

TEST_F(Handover, WhatIsNewerOnDiskWins) {
  save_and_leave({0, 0});
  const Path kept = temp_.path() / "kept";
  std::filesystem::copy(host(0), kept, std::filesystem::copy_options::recursive);
  job_on({0, 0}, [](int, Job& job, RankState& state) {
    ASSERT_OK(job.resume(state.pieces()));
    state.set(1);  // the number of a step does not count, but its age
    ASSERT_OK(job.save({.step = 1, .pieces = state.pieces()}));
    job.settle();
  });
  EXPECT_TRUE(is_empty(0)) << "the step in memory stays after a newer one is durable";
  std::filesystem::remove_all(host(0));
  std::filesystem::rename(kept, host(0));
  EXPECT_TRUE(resume({0, 0}, 1).skipped.empty());
}

TEST_F(Handover, IfWhatIsNewerOnDiskIsDamagedTheStepInMemoryIsTaken) {
  for (const std::vector<int>& hosts : {std::vector{0}, std::vector{0, 0}}) {
    for (const bool has_older : {true, false}) {
      has_older ? save_and_leave(hosts) : only_leave(hosts);
      const Path kept = temp_.path() / "kept";
      std::filesystem::copy(host(0), kept, std::filesystem::copy_options::recursive);
      go_on_and_save(hosts);
      std::filesystem::remove_all(host(0));
      std::filesystem::rename(kept, host(0));
      damage_newest_on_disk();
      const RestoredState told = resume(hosts, 2);
      EXPECT_EQ(told.skipped.size(), 1u);
      std::filesystem::remove_all(run());
      std::filesystem::remove_all(host(0));
    }
  }
}

TEST_F(Handover, IfThatIsDamagedTooTheOlderOneOnDiskIsTaken) {
  save_and_leave({0, 0});
  damage_shard(0);
  const Path kept = temp_.path() / "kept";
  std::filesystem::copy(host(0), kept, std::filesystem::copy_options::recursive);
  go_on_and_save({0, 0});
  std::filesystem::remove_all(host(0));
  std::filesystem::rename(kept, host(0));
  damage_newest_on_disk();
  EXPECT_FALSE(resume({0, 0}, 1).skipped.empty());
}

TEST_F(Handover, ASaveThatIsCommittedLaterIsOlder) {
  job_on({0, 0}, [](int, Job& job, RankState& state) {
    state.set(1);
    ASSERT_OK(job.save({.step = 1, .pieces = state.pieces()}));
    job.settle();
    state.set(2);
    ASSERT_OK(job.hand_over({.step = 2, .pieces = state.pieces()}));
  });
  EXPECT_TRUE(resume({0, 0}, 2).skipped.empty());
}

TEST_F(Handover, ARankThatIsSlowerThanTheGraceIsWaitedFor) {
  SlowHostEnv slow(*env_, "rank-0001.safetensors");
  used_ = &slow;
  configure_ = [](JobOptions& options) { options.grace = std::chrono::milliseconds(50); };
  only_leave({0, 1});
  used_ = env_.get();
  EXPECT_TRUE(resume({0, 1}, 2).skipped.empty());
}

TEST_F(Handover, ASkippedSaveDoesNotKeepWhatANewerOneReplaces) {
  save_and_leave({0});
  SlowHostEnv slow(*env_, "rank-0000.safetensors");
  used_ = &slow;
  configure_ = [](JobOptions& options) {
    options.saver.in_flight = 1;
    options.saver.backpressure = Backpressure::kSkip;
  };
  job_on({0}, [](int, Job& job, RankState& state) {
    ASSERT_OK(job.resume(state.pieces()));
    const Result<SaveHandle> first = job.save({.step = 3, .pieces = state.pieces()});
    ASSERT_OK(first);
    job.settle();
    const Result<SaveHandle> second = job.save({.step = 4, .pieces = state.pieces()});
    ASSERT_OK(second);
    EXPECT_FALSE(second->durable().ok());
    job.settle();
    ASSERT_OK(job.due(5));
    ASSERT_OK(first->durable());
  });
  EXPECT_TRUE(is_empty(0));
}

TEST_F(Handover, WithoutRoomNothingIsLeft) {
  reserve_ = int64_t{1} << 60;
  job_on({0, 1}, [](int, Job& job, RankState& state) {
    state.set(2);
    EXPECT_ERROR(job.hand_over({.step = 2, .pieces = state.pieces()}),
                 ErrorCode::kNoSpace);
  });
  EXPECT_TRUE(is_empty(0));
  EXPECT_TRUE(is_empty(1));
}

TEST_F(Handover, APlaceThatOthersMayEnterIsRefused) {
  save_and_leave({0, 0});
  ASSERT_EQ(::chmod(place(0).c_str(), 0755), 0);
  const RestoredState told = resume({0, 0}, 1);
  ASSERT_EQ(told.skipped.size(), 1u);
  EXPECT_EQ(told.skipped[0].error.code(), ErrorCode::kDenied);
  job_on({0}, [](int, Job& job, RankState& state) {
    ASSERT_OK(job.resume(state.pieces()));
    EXPECT_ERROR(job.hand_over({.step = 2, .pieces = state.pieces()}),
                 ErrorCode::kDenied);
  });
}

TEST_F(Handover, ANewHostWhosePlaceOthersMayEnterPassesOverTheStep) {
  save_and_leave({0, 1});
  const Path refused = host(2) / place(0).filename();
  std::filesystem::create_directories(refused);
  ASSERT_EQ(::chmod(refused.c_str(), 0755), 0);
  EXPECT_EQ(resume({0, 1, 2}, 1).skipped.size(), 2u);
  std::filesystem::remove_all(refused);
  EXPECT_TRUE(resume({0, 1, 2}, 2).skipped.empty());
}

TEST_F(Handover, ALinkInThePlaceOfTheFolderIsRefused) {
  save_and_leave({0});
  const Path real = place(0), elsewhere = temp_.path() / "elsewhere";
  std::filesystem::rename(real, elsewhere);
  std::filesystem::create_directory_symlink(elsewhere, real);
  EXPECT_EQ(resume({0}, 1).skipped.size(), 1u);
}

TEST_F(Handover, ARankThatDiesMeanwhileLeavesNothingThatCounts) {
  save_and_leave({0, 1});
  for (int again = 1; again <= 2; ++again) {
    LocalNetwork network(*env_, 2);
    on_ranks(2, [&](int rank) {
      Transport& transport = network.endpoint(rank);
      RankState state(rank, 2);
      JobOptions options{.signals = false, .handover = host(rank)};
      options.saver.timeout = std::chrono::seconds(20);
      const auto job = Job::open(*env_, run(), &transport, options);
      ASSERT_OK(job);
      const Result<RestoredState> restored = (*job)->resume(state.pieces());
      ASSERT_OK(restored);
      EXPECT_TRUE(state.is(restored->step));
      EXPECT_EQ(restored->step, 2);
      const auto dies = [&]() -> Result<SaveObjects> {
        if (rank == 1) network.kill(1);
        return SaveObjects{};
      };
      const Result<Path> left = (*job)->hand_over(
          {.step = 2 + again, .pieces = state.pieces(), .make_objects = dies});
      EXPECT_FALSE(left.ok());
      static_cast<void>((*job)->close_alone());
    });
  }
  EXPECT_TRUE(resume({0, 1}, 2).skipped.empty());
}

TEST_F(Handover, AnErrorOfOneRankLeavesNothingOnAnyHost) {
  job_on({0, 1}, [](int rank, Job& job, RankState& state) {
    const auto fails = [&]() -> Result<SaveObjects> {
      if (rank == 1) return invalid("no objects");
      return SaveObjects{};
    };
    EXPECT_ERROR(job.hand_over({.step = 2,
                                .pieces = state.pieces(),
                                .make_objects = fails}),
                 ErrorCode::kInvalid);
  });
  EXPECT_TRUE(is_empty(0));
  EXPECT_TRUE(is_empty(1));
}

TEST_F(Handover, OldPlacesAreRemovedAndOthersStay) {
  save_and_leave({0});
  const Path own = place(0);
  const Path other = host(0) / "holdfast-other";
  std::filesystem::copy(own, other, std::filesystem::copy_options::recursive);
  ASSERT_EQ(::chmod(other.c_str(), 0700), 0);
  change_boot(other);
  EXPECT_EQ(remove_old_places(*env_, host(0), {}), std::vector<std::string>{other});
  EXPECT_TRUE(std::filesystem::exists(own));
  std::filesystem::remove_all(run());  // the run itself is gone, or only moved away
  EXPECT_TRUE(remove_old_places(*env_, host(0), {}).empty());
  let_days_pass(own);
  EXPECT_TRUE(remove_old_places(*env_, host(0), own).empty());
  EXPECT_EQ(remove_old_places(*env_, host(0), {}), std::vector<std::string>{own});
}

TEST_F(Handover, ARunThatIsRenamedKeepsWhatItLeft) {
  save_and_leave({0});
  let_days_pass(place(0));
  std::filesystem::rename(run(), temp_.path() / "renamed");
  EXPECT_TRUE(remove_old_places(*env_, host(0), {}).empty());
  run_name_ = "elsewhere/renamed";
  std::filesystem::create_directory(temp_.path() / "elsewhere");
  std::filesystem::rename(temp_.path() / "renamed", run());
  EXPECT_TRUE(resume({0}, 2).skipped.empty());
}

TEST_F(Handover, APlaceThatCannotBeReadNowIsNoEmptyPlace) {
  save_and_leave({0});
  FaultyEnv faulty(*env_);
  faulty.fail_file(Op::kOpen, place(0) / "place.json", ErrorCode::kUnavailable);
  used_ = &faulty;
  job_on({0}, [](int, Job& job, RankState& state) {
    EXPECT_ERROR(job.resume(state.pieces()), ErrorCode::kUnavailable);
  });
  used_ = env_.get();
  EXPECT_TRUE(resume({0}, 2).skipped.empty());
}

TEST_F(Handover, AStepThatIsNotUnderstoodStays) {
  save_and_leave({0});
  FaultyEnv faulty(*env_);
  faulty.fail_file(Op::kOpen, place(0) / "step-00000002" / kManifestName,
                   ErrorCode::kUnsupported);
  used_ = &faulty;
  EXPECT_EQ(resume({0}, 1).skipped.size(), 1u);
  used_ = env_.get();
  EXPECT_TRUE(resume({0}, 2).skipped.empty());
}

TEST_F(Handover, ADamagedManifestWithNothingOnDiskIsAnError) {
  only_leave({0});
  const Path manifest = place(0) / "step-00000002" / kManifestName;
  ASSERT_OK(env_->write_file(manifest, bytes_of("{")));
  expect_none_is_whole({0});
}

TEST_F(Handover, AStepOnDiskThatCannotBeReadNowIsNotDamaged) {
  save_and_leave({0});
  const Path kept = temp_.path() / "kept";
  std::filesystem::copy(host(0), kept, std::filesystem::copy_options::recursive);
  job_on({0}, [](int, Job& job, RankState& state) {
    ASSERT_OK(job.resume(state.pieces()));
    state.set(3);
    ASSERT_OK(job.save({.step = 3, .pieces = state.pieces()}));
    job.settle();
  });
  std::filesystem::remove_all(host(0));
  std::filesystem::rename(kept, host(0));
  FaultyEnv faulty(*env_);
  faulty.fail_file(Op::kList, run() / "step-00000003", ErrorCode::kDenied);
  used_ = &faulty;
  job_on({0}, [](int, Job& job, RankState& state) {
    EXPECT_ERROR(job.resume(state.pieces()), ErrorCode::kDenied);
  });
  used_ = env_.get();
  EXPECT_TRUE(resume({0}, 3).skipped.empty());
}

TEST_F(Handover, TheMemoryIsClearedBeforeTheRunIsReleased) {
  save_and_leave({0});
  FaultyEnv logged(*env_);
  used_ = &logged;
  go_on_and_save({0});
  EXPECT_TRUE(is_empty(0));
  std::ptrdiff_t in_memory = 0, of_owner = 0;
  const std::vector<Call> log = logged.log();
  for (std::ptrdiff_t i = 0; i < std::ssize(log); ++i) {
    const Path& path = log[static_cast<size_t>(i)].path;
    if (path.native().starts_with(host(0).native())) in_memory = i;
    if (path.filename().native().starts_with("owner")) of_owner = i;
  }
  EXPECT_LT(0, in_memory);
  EXPECT_LT(in_memory, of_owner);
}

TEST_F(Handover, WithoutOwnerFilesASaveIsStillNewerThanWhatWasLeft) {
  save_and_leave({0});
  leave_again({0});
  leave_again({0});  // in epoch 3, which no step on disk has
  lose_owner_files();
  go_on_and_save({0});
  EXPECT_TRUE(is_empty(0)) << "what was left counts as newer";
  EXPECT_TRUE(resume({0}, 3).skipped.empty());
}

TEST_F(Handover, WithoutOwnerFilesTheEpochsInTheMemoryOfAllHostsCount) {
  save_and_leave({1});
  leave_again({1});
  leave_again({1});
  lose_owner_files();
  go_on_and_save({0, 1});
  EXPECT_TRUE(resume({0, 1}, 3).skipped.empty());
}

TEST_F(Handover, WithoutOwnerFilesAJobThatDoesNotTakeItIsNewer) {
  save_and_leave({0});
  leave_again({0});
  leave_again({0});
  lose_owner_files();
  FaultyEnv faulty(*env_);
  faulty.fail_file(Op::kOpen, place(0) / "step-00000002" / kManifestName,
                   ErrorCode::kUnsupported);
  used_ = &faulty;
  go_on_and_save({0});
  used_ = env_.get();
  EXPECT_TRUE(resume({0}, 3).skipped.empty());
}

TEST_F(Handover, ACopyOfTheRunDoesNotTakeWhatTheRunHasLeft) {
  save_and_leave({0});
  std::filesystem::copy(run(), temp_.path() / "copy",
                        std::filesystem::copy_options::recursive);
  run_name_ = "copy";
  const RestoredState told = resume({0}, 1);
  ASSERT_EQ(told.skipped.size(), 1u);
  EXPECT_EQ(told.skipped[0].error.code(), ErrorCode::kDenied);
  job_on({0}, [](int, Job& job, RankState& state) {
    EXPECT_ERROR(job.hand_over({.step = 2, .pieces = state.pieces()}),
                 ErrorCode::kDenied);
  });
  run_name_ = "run";
  EXPECT_TRUE(resume({0}, 2).skipped.empty());
}

TEST_F(Handover, ACopyOfTheRunDoesNotTakeItWhenTheRunIsRemoved) {
  save_and_leave({0});
  std::filesystem::copy(run(), temp_.path() / "copy",
                        std::filesystem::copy_options::recursive);
  leave_again({0});
  leave_again({0});
  run_name_ = "copy";
  go_on_and_save({0});
  std::filesystem::remove_all(temp_.path() / "run");
  resume({0}, 3);
}

TEST_F(Handover, ARunOnStorageThatDoesNotAnswerIsNotTakenForOneThatWasMoved) {
  save_and_leave({0});
  std::filesystem::copy(run(), temp_.path() / "copy",
                        std::filesystem::copy_options::recursive);
  FaultyEnv faulty(*env_);
  faulty.fail_file(Op::kInfo, run());
  used_ = &faulty;
  run_name_ = "copy";
  resume({0}, 1);
  used_ = env_.get();
  run_name_ = "run";
  EXPECT_TRUE(resume({0}, 2).skipped.empty());
}

TEST_F(Handover, TheStateOfAnotherBootIsRemoved) {
  save_and_leave({0});
  change_boot(place(0));
  EXPECT_TRUE(resume({0}, 1).skipped.empty());
  EXPECT_TRUE(is_empty(0));
}

TEST_F(Handover, TheStateOfAnotherBootIsNotThereAfterAFailedHandover) {
  save_and_leave({0});
  change_boot(place(0));
  reserve_ = int64_t{1} << 60;
  job_on({0}, [](int, Job& job, RankState& state) {
    EXPECT_ERROR(job.hand_over({.step = 3, .pieces = state.pieces()}),
                 ErrorCode::kNoSpace);
  });
  EXPECT_TRUE(resume({0}, 1).skipped.empty());
}

TEST_F(Handover, AnOlderStateIsTakenIfTheNewestIsDamaged) {
  leave_two({0, 1});
  const Path shard = place(1) / "step-00000004" / "rank-0001.safetensors";
  ASSERT_OK(env_->write_file(shard, Bytes(std::filesystem::file_size(shard))));
  EXPECT_EQ(resume({0, 1}, 2).skipped.size(), 1u);
}

TEST_F(Handover, AnOlderStateIsTakenIfTheManifestOfTheNewestIsDamaged) {
  for (const std::vector<int>& hosts :
       {std::vector{0}, std::vector{0, 0}, std::vector{0, 1}}) {
    leave_two(hosts);
    const Path manifest = place(hosts.back()) / "step-00000004" / kManifestName;
    ASSERT_OK(env_->write_file(manifest, bytes_of("{")));
    for (int again = 0; again < 2; ++again) {
      const RestoredState told = resume(hosts, 2);
      // With two hosts, the part of the other one is named, too.
      ASSERT_EQ(std::ssize(told.skipped), hosts.back() + 1);
      EXPECT_EQ(told.skipped[0].error.code(), ErrorCode::kCorrupt);
      EXPECT_NE(told.skipped[0].error.message().find(manifest.native()),
                std::string::npos);
    }
    go_on_and_save(hosts);
    EXPECT_TRUE(is_empty(0) && (hosts.back() == 0 || is_empty(1)));
    std::filesystem::remove_all(run());
  }
}

// A process that had the run before removes what it takes for left by dead ones, while
// rank 0 has left its shard and rank 1 has not begun.
TEST_F(Handover, AShardThatIsRemovedMeanwhileIsMissed) {
  save_and_leave({0, 0});
  const SharedPlace before(*env_, host(0), run(), Run::open(*env_, run())->id());
  FaultyEnv slow(*env_);
  LocalNetwork network(*env_, 2);
  on_ranks(2, [&](int rank) {
    JobOptions options{.signals = false, .handover = host(0)};
    options.saver.space_reserve = 0;
    Env& env = rank == 1 ? slow : *env_;
    const auto job = Job::open(env, run(), &network.endpoint(rank), options);
    ASSERT_OK(job);
    RankState state(rank, 2);
    ASSERT_OK((*job)->resume(state.pieces()));
    if (rank == 1) {
      slow.before(Op::kCreateFolder, 1, [&] {
        wait_for_shard();
        EXPECT_OK(before.remove_attempts());
      });
    }
    EXPECT_FALSE((*job)->hand_over({.step = 3, .pieces = state.pieces()}).ok());
    EXPECT_OK((*job)->close());
  });
  EXPECT_TRUE(resume({0, 0}, 2).skipped.empty());
}

TEST_F(Handover, ATrainingThatIsNewSeesTheMemoryOfAllHosts) {
  only_leave({0, 1});
  std::filesystem::remove_all(place(0));
  job_on({0, 1}, [](int, Job& job, RankState&) {
    EXPECT_ERROR(job.check_new("a new run"), ErrorCode::kInvalid);
  });
}

}  // namespace
}  // namespace holdfast
