// A job that stops, and the next one that goes on with what is left in memory. Each host
// is a folder of its own, as its /dev/shm would be.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>

#include "holdfast/base/testing.h"
#include "holdfast/env/env_wrapper.h"
#include "holdfast/env/faulty_env.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/job/job.h"
#include "holdfast/store/shared_place.h"
#include "holdfast/transport/local_transport.h"
#include "holdfast/transport/transport_testing.h"

namespace holdfast {
namespace {

constexpr int64_t kRows = 12, kColumns = 8;

// What a rank of a world holds: some rows of "w", and "b", of which all ranks have a
// replica. Ranks beyond the rows would hold nothing of "w".
class RankState {
 public:
  RankState(int rank, int world)
      : first_(kRows * rank / world), last_(kRows * (rank + 1) / world) {
    rows_.resize(static_cast<size_t>((last_ - first_) * kColumns));
    bias_.resize(kColumns);
  }

  LocalPieces pieces() {
    const Box rows{{first_, last_}, {0, kColumns}}, all{{0, kColumns}};
    return std::vector<LocalPiece>{
        make_piece({.name = "w", .dtype = Dtype::kF32, .shape = {kRows, kColumns}}, rows,
                   std::as_writable_bytes(std::span(rows_)), Map::dense(rows, 4)),
        make_piece({.name = "b", .dtype = Dtype::kF32, .shape = {kColumns}}, all,
                   std::as_writable_bytes(std::span(bias_)), Map::dense(all, 4))};
  }

  void set(int64_t step) {
    for (size_t i = 0; i < rows_.size(); ++i) rows_[i] = value(step, i);
    for (size_t i = 0; i < bias_.size(); ++i) bias_[i] = static_cast<float>(step);
  }
  bool is(int64_t step) const {
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (rows_[i] != value(step, i)) return false;
    }
    return bias_ == std::vector<float>(kColumns, static_cast<float>(step));
  }

 private:
  float value(int64_t step, size_t i) const {
    return static_cast<float>(step * 1000 + first_ * kColumns) + static_cast<float>(i);
  }

  int64_t first_, last_;
  std::vector<float> rows_, bias_;
};

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

class Handover : public ::testing::Test {
 protected:
  using Body = std::function<void(int rank, Job& job, RankState& state)>;

  Path host(int number) const {
    return temp_.path() / fmt::format("host-{}", number);
  }
  Path run() const { return temp_.path() / run_name_; }
  // The one place that a host has.
  Path place(int number) const {
    for (const auto& entry : std::filesystem::directory_iterator(host(number))) {
      return entry.path();
    }
    return {};
  }
  bool is_empty(int number) const { return place(number).empty(); }

  // Runs a job with one rank for each entry, which says the host that the rank is on.
  void job_on(const std::vector<int>& hosts, const Body& body) {
    LocalNetwork network(*env_, static_cast<int>(hosts.size()));
    on_ranks(static_cast<int>(hosts.size()), [&](int rank) {
      const Path memory = host(hosts[static_cast<size_t>(rank)]);
      std::filesystem::create_directories(memory);
      JobOptions options{.signals = false, .handover = memory};
      options.saver.space_reserve = reserve_;
      options.saver.timeout = std::chrono::seconds(20);
      Transport* const transport = hosts.size() > 1 ? &network.endpoint(rank) : nullptr;
      const Result<std::unique_ptr<Job>> job =
          Job::open(*used_, run(), transport, options);
      ASSERT_OK(job);
      RankState state(rank, static_cast<int>(hosts.size()));
      body(rank, **job, state);
      EXPECT_OK((*job)->close());
    });
  }

  // Saves step 1 to disk, and leaves step 2 in memory.
  void save_and_leave(const std::vector<int>& hosts) {
    job_on(hosts, [](int rank, Job& job, RankState& state) {
      state.set(1);
      const Result<SaveHandle> handle = job.save({.step = 1, .pieces = state.pieces()});
      ASSERT_OK(handle);
      job.settle();
      ASSERT_OK(handle->durable());
      state.set(2);
      ASSERT_OK(job.hand_over(
          {.step = 2,
           .pieces = state.pieces(),
           .objects = {.of_all = Object(Object::Value(std::string("all"))),
                       .of_rank = Object(Object::Value(int64_t{rank}))}}));
    });
  }

  // Leaves step 2 in memory, and nothing on disk.
  void only_leave(const std::vector<int>& hosts) {
    job_on(hosts, [](int, Job& job, RankState& state) {
      state.set(2);
      ASSERT_OK(job.hand_over({.step = 2, .pieces = state.pieces()}));
    });
  }

  // Changes a byte of the shard of rank 1.
  void damage_shard(int number) {
    const Path shard = place(number) / "step-00000002" / "rank-0001.safetensors";
    Bytes bytes = env_->read_file(shard).value();
    bytes.back() ^= std::byte{1};
    ASSERT_OK(env_->write_file(shard, bytes));
  }

  // Expects that all ranks fail to resume, also when they try again.
  void expect_none_is_whole(const std::vector<int>& hosts) {
    for (int again = 0; again < 2; ++again) {
      job_on(hosts, [&](int, Job& job, RankState& state) {
        const Result<RestoredState> restored = job.resume(state.pieces());
        EXPECT_ERROR(restored, ErrorCode::kCorrupt);
        if (restored.ok()) return;
        EXPECT_NE(restored.error().message().find("no step is whole; the newest, "),
                  std::string::npos)
            << restored.error().message();
      });
    }
  }

  // Resumes, and returns what rank 0 was told.
  RestoredState resume(const std::vector<int>& hosts, int64_t step) {
    RestoredState told;
    job_on(hosts, [&](int rank, Job& job, RankState& state) {
      Result<RestoredState> restored = job.resume(state.pieces());
      ASSERT_OK(restored);
      EXPECT_EQ(restored->step, step);
      EXPECT_TRUE(state.is(step)) << "rank " << rank;
      EXPECT_EQ(restored->in_memory, step == 2);
      if (rank == 0) told = *std::move(restored);
    });
    return told;
  }

  std::unique_ptr<Env> env_ = make_posix_env();
  Env* used_ = env_.get();  // by jobs
  TempFolder temp_;
  int64_t reserve_ = 0;
  std::string run_name_ = "run";
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
  std::string record = env_->read_text(own / "place.json").value();
  const size_t boot = record.find("\"boot\": \"") + 9;
  record[boot] = record[boot] == 'x' ? 'y' : 'x';
  ASSERT_OK(env_->write_file(other / "place.json", bytes_of(record)));
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

TEST_F(Handover, ATrainingThatIsNewSeesTheMemoryOfAllHosts) {
  only_leave({0, 1});
  std::filesystem::remove_all(place(0));
  job_on({0, 1}, [](int, Job& job, RankState&) {
    EXPECT_ERROR(job.check_new("a new run"), ErrorCode::kInvalid);
  });
}

}  // namespace
}  // namespace holdfast
