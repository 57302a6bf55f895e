// Kills a rank at every call that changes something while its job leaves the state in
// memory, or lets that call fail. The next job must find all of that state, or all of the
// state that was there before.
#include <gtest/gtest.h>

#include <array>
#include <tuple>

#include "holdfast/env/faulty_env.h"
#include "holdfast/env/unsynced_env.h"
#include "holdfast/job/handover_testing.h"

namespace holdfast {
namespace {

enum class Fault { kDeath, kError };
// Calls that change nothing: a rank that dies before one of them dies, for all others,
// before the next one that does.
bool only_looks(Op op) {
  return op == Op::kOpen || op == Op::kRead || op == Op::kInfo || op == Op::kList ||
         op == Op::kSync || op == Op::kSyncFolder || op == Op::kClose ||
         op == Op::kFreeSpace;
}

enum class Before { kInMemory, kOnDisk };  // where the state is that was there before

class HandoverCrash
    : public Handover,
      public ::testing::WithParamInterface<std::tuple<std::vector<int>, Fault, Before>> {
 protected:
  void SetUp() override {
    used_ = &unsynced_;
    start_anew();
    save_and_leave(hosts_);
    whole_ = tried_ = 2;
  }

  // The next job runs after its host was started anew, so that the killed one is dead.
  void start_anew() {
    identity_ = Identity{.host = "alpha", .boot = fmt::format("boot-{}", ++boots_)};
  }

  // What a job must find: the step that was tried, or the one before.
  void note_found(int64_t step) {
    EXPECT_TRUE(step == tried_ || (!must_be_new_ && step == whole_))
        << "found step " << step << " of " << whole_ << " and " << tried_;
    whole_ = step;
  }

  // Moves the state from memory to the disk.
  void save_all() {
    start_anew();
    std::array<int64_t, 2> found{};
    job_on(hosts_, [&](int rank, Job& job, RankState& state) {
      const Result<RestoredState> restored = job.resume(state.pieces());
      ASSERT_OK(restored);
      EXPECT_TRUE(state.is(restored->step));
      found[static_cast<size_t>(rank)] = restored->step;
      ASSERT_OK(job.save({.step = restored->step, .pieces = state.pieces()}));
      job.settle();
    });
    EXPECT_EQ(found[0], found[1]);
    note_found(found[0]);
    tried_ = whole_;
    for (const int number : hosts_) EXPECT_TRUE(is_empty(number));
  }

  // Resumes, and leaves the next step with a fault at a call of the victim. False if the
  // victim has not made so many calls.
  bool leave_next(int victim, int64_t call) {
    start_anew();
    LocalNetwork network(unsynced_, 2);
    FaultyEnv faulty(unsynced_);
    std::array<int64_t, 2> found{};
    std::array<bool, 2> left{};
    int64_t calls = 0, calls_before = 0;
    const int64_t next = tried_ + 1;
    on_ranks(2, [&](int rank) {
      const auto number = static_cast<size_t>(rank);
      Env& env = rank == victim ? faulty : *used_;
      JobOptions options{.signals = false, .handover = host(hosts_[number])};
      options.saver.space_reserve = 0;
      options.saver.timeout = std::chrono::seconds(20);
      options.saver.identity = identity_;
      const auto job = Job::open(env, run(), &network.endpoint(rank), options);
      ASSERT_OK(job);
      RankState state(rank, 2);
      const Result<RestoredState> restored = (*job)->resume(state.pieces());
      ASSERT_OK(restored);
      EXPECT_TRUE(state.is(restored->step));
      found[number] = restored->step;
      state.set(next);
      if (rank == victim) {
        calls_before = faulty.calls();
        set_fault(faulty, network, victim, call);
      }
      left[number] = (*job)->hand_over({.step = next, .pieces = state.pieces()}).ok();
      if (rank == victim) calls = faulty.calls() - calls_before;
      static_cast<void>((*job)->close_alone());
    });
    EXPECT_EQ(found[0], found[1]);
    note_found(found[0]);
    EXPECT_TRUE(fault_ == Fault::kDeath || left[0] == left[1]);
    must_be_new_ = left[0] || left[1];
    tried_ = next;
    if (calls >= call) return true;
    EXPECT_TRUE(left[0] && left[1]);
    note_changes(faulty.log(), calls_before);
    return false;
  }

  // Notes which calls of the victim have changed something.
  void note_changes(const std::vector<Call>& log, int64_t first) {
    changes_.clear();
    for (int64_t i = first; i < std::ssize(log); ++i) {
      if (only_looks(log[static_cast<size_t>(i)].op)) continue;
      changes_.push_back(i - first + 1);
    }
  }

  void set_fault(FaultyEnv& env, LocalNetwork& network, int victim, int64_t call) const {
    if (fault_ == Fault::kError) {
      env.fail_at(Op::kAny, call, ErrorCode::kNoSpace);
      return;
    }
    env.before(Op::kAny, call, [&network, victim] { network.kill(victim); });
    env.crash_at(Op::kAny, call);
  }

  const std::vector<int> hosts_ = std::get<0>(GetParam());
  const Fault fault_ = std::get<1>(GetParam());
  const Before before_ = std::get<2>(GetParam());
  UnsyncedEnv unsynced_{*env_};
  int boots_ = 0;
  int64_t whole_ = 0;  // the newest step that is known to be whole
  int64_t tried_ = 0;  // the step that was left last, perhaps in part
  bool must_be_new_ = true;
  std::vector<int64_t> changes_;  // the calls of the victim that change something
};

TEST_P(HandoverCrash, EveryCallLeavesTheNewStateOrTheOldOne) {
  for (int victim = 0; victim < 2; ++victim) {
    if (before_ == Before::kOnDisk) save_all();
    ASSERT_FALSE(leave_next(victim, 100'000));
    const std::vector<int64_t> calls = changes_;
    ASSERT_GT(calls.size(), 3u);
    for (const int64_t call : calls) {
      if (before_ == Before::kOnDisk) save_all();
      static_cast<void>(leave_next(victim, call));
      if (HasFailure()) FAIL() << "rank " << victim << ", call " << call;
    }
  }
  save_all();
}

INSTANTIATE_TEST_SUITE_P(
    OneHostAndTwo, HandoverCrash,
    ::testing::Values(
        std::tuple(std::vector{0, 0}, Fault::kDeath, Before::kOnDisk),
        std::tuple(std::vector{0, 1}, Fault::kDeath, Before::kInMemory),
        std::tuple(std::vector{0, 1}, Fault::kError, Before::kInMemory)));

}  // namespace
}  // namespace holdfast
