// Jobs that leave their state in memory and take it from there, for tests. Each host is a
// folder of its own, as its /dev/shm would be.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "holdfast/base/testing.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/job/job.h"
#include "holdfast/shard/step_name.h"
#include "holdfast/transport/local_transport.h"
#include "holdfast/transport/transport_testing.h"

namespace holdfast {

inline constexpr int64_t kRows = 12, kColumns = 8;

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
    const Box rows{{first_, last_}, {0, kColumns}};
    return std::vector<LocalPiece>{
        make_piece("w", std::span(rows_), {kRows, kColumns}, rows),
        whole_piece("b", std::span(bias_), {kColumns})};
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
      options.saver.identity = identity_;
      if (configure_) configure_(options);
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

  // Takes step 2 from memory, and leaves it again.
  void leave_again(const std::vector<int>& hosts) {
    job_on(hosts, [](int, Job& job, RankState& state) {
      ASSERT_OK(job.resume(state.pieces()));
      EXPECT_TRUE(state.is(2));
      ASSERT_OK(job.hand_over({.step = 2, .pieces = state.pieces()}));
    });
  }

  // Leaves step 4 in memory beside step 2, which would else be removed then.
  void leave_two(const std::vector<int>& hosts) {
    save_and_leave(hosts);
    const std::set<int> numbers(hosts.begin(), hosts.end());
    const auto kept = [&](int number) {
      return temp_.path() / fmt::format("kept-{}", number);
    };
    for (const int number : numbers) {
      std::filesystem::copy(place(number) / "step-00000002", kept(number));
    }
    job_on(hosts, [](int, Job& job, RankState& state) {
      ASSERT_OK(job.resume(state.pieces()));
      ASSERT_OK(job.hand_over({.step = 4, .pieces = state.pieces()}));
    });
    for (const int number : numbers) {
      std::filesystem::rename(kept(number), place(number) / "step-00000002");
    }
  }

  // Waits until rank 0 has written its shard of a step that is not published yet.
  void wait_for_shard() {
    for (int i = 0; i < 10'000; ++i) {
      for (const auto& entry : std::filesystem::directory_iterator(place(0))) {
        if (!parse_attempt_name(entry.path().filename().native())) continue;
        const auto shard = env_->info(entry.path() / "rank-0000.safetensors");
        if (shard.ok() && shard->size > 0) return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  // Goes on with what is there, and saves step 3 to disk.
  void go_on_and_save(const std::vector<int>& hosts) {
    job_on(hosts, [](int, Job& job, RankState& state) {
      ASSERT_OK(job.resume(state.pieces()));
      state.set(3);
      ASSERT_OK(job.save({.step = 3, .pieces = state.pieces()}));
      job.settle();
    });
  }

  // Removes the files that say which epochs the run has had.
  void lose_owner_files() {
    for (const std::string& name : env_->list(run()).value()) {
      if (name.starts_with("owner")) ASSERT_OK(env_->remove_file(run() / name));
    }
  }

  // Makes the place look as if the host had been started anew since.
  void change_boot(const Path& place) {
    std::string record = env_->read_text(place / "place.json").value();
    const size_t boot = record.find("\"boot\": \"") + 9;
    record[boot] = record[boot] == 'x' ? 'y' : 'x';
    ASSERT_OK(env_->write_file(place / "place.json", bytes_of(record)));
  }

  // Changes a byte of the shard of rank 1.
  void damage_shard(int number) {
    const Path shard = place(number) / "step-00000002" / "rank-0001.safetensors";
    Bytes bytes = env_->read_file(shard).value();
    bytes.back() ^= std::byte{1};
    ASSERT_OK(env_->write_file(shard, bytes));
  }

  // Changes more bytes of step 3 on disk than a seal can mend.
  void damage_newest_on_disk() {
    const Path shard = run() / "step-00000003" / "rank-0000.safetensors";
    Bytes bytes = env_->read_file(shard).value();
    std::fill_n(bytes.end() - 64, 64, std::byte{0xaa});
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
  std::function<void(JobOptions&)> configure_;  // changes the options of jobs
  std::optional<Identity> identity_;  // of the owner of the run; else this process
};

}  // namespace holdfast
