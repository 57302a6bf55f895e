#include "holdfast/store/owner.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "holdfast/env/collecting_sink.h"
#include "holdfast/env/faulty_env.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/store/claim_internal.h"
#include "holdfast/base/json_digest.h"
#include "holdfast/store/store_testing.h"

namespace holdfast {
namespace {

using std::chrono::minutes;

class OwnerTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_OK(disk.create_folders(kTestRun)); }

  Result<Owner> take(Env& env, const Identity& self, Liveness alive = nobody_lives(),
                     int64_t above = 0) {
    return Owner::acquire(env, kTestRun, self,
                          {.lease = minutes(2), .above = above, .alive = alive});
  }

  MemoryEnv disk;
};

TEST_F(OwnerTest, TheFirstOneTakesARunThatNobodyOwns) {
  const Result<Owner> owner = take(disk, test_process(1));
  ASSERT_OK(owner);
  EXPECT_EQ(owner->epoch(), 1);
  EXPECT_OK(owner->check());
  const auto record = read_owner(disk, kTestRun);
  ASSERT_OK(record);
  EXPECT_EQ(*record, owner->record());
  EXPECT_EQ(decode_owner(*disk.read_file(Path(kTestRun) / "owner.json"), "o").value(),
            owner->record());
}

TEST_F(OwnerTest, ALiveOwnerIsNamedAndNotReplaced) {
  ASSERT_OK(take(disk, test_process(41)));
  const Result<Owner> second = take(disk, test_process(42), only_live({41, 42}));
  EXPECT_ERROR(second, ErrorCode::kConflict);
  const std::string message = message_of(second);
  for (const char* word : {"process 41", "alpha", "since 2001-09-09", "stop it"}) {
    EXPECT_NE(message.find(word), message.npos) << message;
  }
}

TEST_F(OwnerTest, TheSameProcessIsRefusedToo) {
  ASSERT_OK(take(disk, test_process(41)));
  EXPECT_ERROR(take(disk, test_process(41), only_live({41})), ErrorCode::kConflict);
}

TEST_F(OwnerTest, ADeadOwnerLosesTheRunAndSeesIt) {
  const Result<Owner> first = take(disk, test_process(1));
  CollectingSink events;
  const Result<Owner> second = Owner::acquire(
      disk, kTestRun, test_process(2), {.alive = nobody_lives(), .events = &events});
  ASSERT_OK(second);
  EXPECT_EQ(second->epoch(), 2);
  EXPECT_ERROR(first->check(), ErrorCode::kConflict);
  ASSERT_EQ(events.records().size(), 1u);
  EXPECT_EQ(events.records()[0].name, "run_taken_over");
}

TEST_F(OwnerTest, OneThatLetGoNeedNotBeDead) {
  Result<Owner> first = take(disk, test_process(1));
  ASSERT_OK(std::move(*first).release());
  EXPECT_ERROR(first->check(), ErrorCode::kConflict);
  const Result<Owner> second = take(disk, test_process(2), only_live({1, 2}));
  ASSERT_OK(second);
  EXPECT_EQ(second->epoch(), 2);
}

TEST_F(OwnerTest, ARunCanBeReleasedUnderANewName) {
  Result<Owner> owner = take(disk, test_process(1));
  const Path moved = Path(kTestRun).concat("-moved");
  ASSERT_OK(disk.rename_new(kTestRun, moved));
  EXPECT_FALSE(read_owner(disk, moved).value()->released);
  ASSERT_OK(std::move(*owner).release_at(moved));
  EXPECT_TRUE(read_owner(disk, moved).value()->released);
}

// The process that asks is process 9 on the machine alpha, in the second start of job
// 7.
TEST_F(OwnerTest, DeathIsToldByTheWholeMatrix) {
  Identity self = test_process(9);
  self.job = "7";
  self.restart = 1;
  self.pid_space = 5;
  const WallTime now = disk.wall_now();
  const Liveness unknown = [](int64_t) -> Result<std::optional<int64_t>> {
    return io_error("no /proc");
  };
  struct Case {
    const char* what;
    std::function<void(OwnerRecord&)> change;
    Liveness alive;
    bool dead;
  };
  const auto far = [](OwnerRecord& r) { r.who.host = "beta"; };
  const auto late = [&](OwnerRecord& r) { r.lease_until = now - Duration(1); };
  const Case cases[] = {
      {"alive here", [](OwnerRecord&) {}, only_live({1}), false},
      {"alive here, lease over", late, only_live({1}), false},
      {"gone", [](OwnerRecord&) {}, nobody_lives(), true},
      {"number reused", [](OwnerRecord& r) { r.who.started = 3; }, only_live({1}),
       true},
      {"rebooted", [](OwnerRecord& r) { r.who.boot = "old"; }, only_live({1}), true},
      {"cannot be told", [](OwnerRecord&) {}, unknown, false},
      {"cannot be told, lease over", late, unknown, true},
      {"other container", [](OwnerRecord& r) { r.who.pid_space = 6; }, nobody_lives(),
       false},
      {"other host", far, nobody_lives(), false},
      {"other host, other boot", [&](OwnerRecord& r) { far(r), r.who.boot = "other"; },
       nobody_lives(), false},
      {"other host, lease over", [&](OwnerRecord& r) { far(r), late(r); },
       nobody_lives(), true},
      {"other host, earlier start of the job",
       [&](OwnerRecord& r) { far(r), r.who.job = "7", r.who.restart = 0; },
       nobody_lives(), true},
      {"other host, same start of the job",
       [&](OwnerRecord& r) { far(r), r.who.job = "7", r.who.restart = 1; },
       nobody_lives(), false},
      {"other host, other job",
       [&](OwnerRecord& r) { far(r), r.who.job = "8", r.who.restart = 0; },
       nobody_lives(), false},
      {"other host, let go", [&](OwnerRecord& r) { far(r), r.released = true; },
       nobody_lives(), true}};
  for (const Case& c : cases) {
    OwnerRecord record{.who = test_process(1),
                       .epoch = 1,
                       .since = now,
                       .lease_until = now + minutes(1),
                       .fence = {}};
    record.who.pid_space = 5;
    c.change(record);
    EXPECT_EQ(why_dead(record, self, now, c.alive).has_value(), c.dead) << c.what;
  }
}

TEST_F(OwnerTest, RenewingHoldsOffOtherMachines) {
  Result<Owner> owner = take(disk, test_process(1));
  disk.advance(minutes(1));
  ASSERT_OK(owner->renew());
  disk.advance(minutes(1) + std::chrono::seconds(59));
  EXPECT_ERROR(take(disk, test_process(1, "beta")), ErrorCode::kConflict);
  disk.advance(std::chrono::seconds(2));
  ASSERT_OK(take(disk, test_process(1, "beta")));
  EXPECT_ERROR(owner->renew(), ErrorCode::kConflict);
}

TEST_F(OwnerTest, AFullDiskDoesNotCostTheRun) {
  Result<Owner> owner = take(disk, test_process(1, "beta"));
  ASSERT_OK(owner);
  disk.set_capacity(0);
  for (int i = 0; i < 5; ++i) {
    disk.advance(minutes(1));
    ASSERT_OK(owner->renew());
  }
  EXPECT_ERROR(take(disk, test_process(2)), ErrorCode::kConflict);
  EXPECT_EQ(read_owner(disk, kTestRun).value(), owner->record());
}

// So that `gc` can make room.
TEST_F(OwnerTest, AFullDiskCanBeTaken) {
  ASSERT_OK(take(disk, test_process(1)));
  disk.set_capacity(0);
  const Result<Owner> next = take(disk, test_process(2));
  ASSERT_OK(next);
  EXPECT_EQ(next->epoch(), 2);
  EXPECT_OK(next->check());
  EXPECT_EQ(read_owner(disk, kTestRun).value(), next->record());
}

TEST_F(OwnerTest, EpochsThatCannotBeCountedUpAreRefused) {
  EXPECT_EQ(parse_claim_name(claim_name(kMostCommits)), kMostCommits);
  EXPECT_EQ(parse_claim_name(claim_name(kMostCommits + 1)), std::nullopt);
  EXPECT_EQ(parse_claim_name("owner-99999999999999999999.json"), std::nullopt);
  EXPECT_ERROR(take(disk, test_process(1), nobody_lives(), kMostCommits),
               ErrorCode::kCorrupt);
}

TEST_F(OwnerTest, EpochsGoOnAfterTheOwnerFilesWereLost) {
  ASSERT_OK(disk.remove_all(kTestRun));
  ASSERT_OK(disk.create_folders(kTestRun));
  const Result<Owner> owner = take(disk, test_process(1), nobody_lives(), 7);
  ASSERT_OK(owner);
  EXPECT_EQ(owner->epoch(), 8);
}

TEST_F(OwnerTest, AProcessThatHasTheRunOpenItselfIsToldToCloseIt) {
  ASSERT_OK(take(disk, test_process(1)));
  const Result<Owner> again = take(disk, test_process(1), only_live({1}));
  EXPECT_ERROR(again, ErrorCode::kConflict);
  EXPECT_NE(again.error().message().find("ck.close()"), std::string::npos);
  EXPECT_EQ(again.error().message().find("stop it first"), std::string::npos);
}

TEST_F(OwnerTest, AClaimThatWasTakenAwayIsNoticed) {
  const Result<Owner> owner = take(disk, test_process(1));
  ASSERT_OK(disk.remove_file(Path(kTestRun) / "owner-00000001.json"));
  EXPECT_ERROR(owner->check(), ErrorCode::kNotFound);
}

TEST_F(OwnerTest, TheCopyServesForADamagedClaim) {
  ASSERT_OK(take(disk, test_process(1)));
  const Path claim = Path(kTestRun) / "owner-00000001.json";
  ASSERT_OK(disk.write_file(claim, bytes_of("{\"hold")));
  EXPECT_ERROR(take(disk, test_process(2), only_live({1})), ErrorCode::kConflict);
}

void damage_owner_files(Env& env, const char* claim) {
  ASSERT_OK(env.write_file(Path(kTestRun) / claim, bytes_of("{\"hold")));
  ASSERT_OK(env.write_file(Path(kTestRun) / "owner.json", bytes_of("{}")));
}

TEST_F(OwnerTest, AnUnreadableOwnerIsDeadOnceItsFilesAreALeaseOld) {
  ASSERT_OK(take(disk, test_process(1)));
  damage_owner_files(disk, "owner-00000001.json");
  const Result<Owner> refused = take(disk, test_process(2));
  EXPECT_ERROR(refused, ErrorCode::kConflict);
  for (const char* word : {"owner-00000001.json", "try again after 2001-09-09 01:48:40",
                           "remove owner.json"}) {
    EXPECT_NE(message_of(refused).find(word), std::string::npos) << message_of(refused);
  }
  disk.advance(minutes(2) + std::chrono::seconds(1));
  CollectingSink events;
  const Result<Owner> taken = Owner::acquire(
      disk, kTestRun, test_process(2), {.alive = nobody_lives(), .events = &events});
  ASSERT_OK(taken);
  EXPECT_EQ(taken->epoch(), 2);
  ASSERT_EQ(events.records().size(), 2u);
  EXPECT_EQ(events.records()[0].name, "run_file_damaged");
}

TEST_F(OwnerTest, ALiveOwnerWritesItsDamagedFilesAnew) {
  Result<Owner> owner = take(disk, test_process(1));
  damage_owner_files(disk, "owner-00000001.json");
  EXPECT_OK(owner->check());
  ASSERT_OK(owner->renew());
  EXPECT_EQ(read_owner(disk, kTestRun).value(), owner->record());
  EXPECT_ERROR(take(disk, test_process(2), only_live({1})), ErrorCode::kConflict);
}

TEST_F(OwnerTest, NoFlippedBitOfAnOwnerFileIsBelieved) {
  const Bytes bytes = encode_owner(take(disk, test_process(1))->record());
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    Bytes flipped = bytes;
    flipped[bit / 8] ^= std::byte{1} << static_cast<int>(bit % 8);
    SCOPED_TRACE(bit);
    EXPECT_ERROR(decode_owner(flipped, "o"), ErrorCode::kCorrupt);
  }
}

TEST_F(OwnerTest, ARecordOfVersionOneIsRead) {
  const std::string text =
      "{\"holdfast\":\"owner\",\"version\":1,\"host\":\"alpha\",\"boot\":\"b\","
      "\"pid\":5,\"started\":50,\"pid_space\":0,\"job\":\"\",\"restart\":0,\n"
      "\"epoch\":3,\"token\":\"00000000000000ab\",\"since_ns\":7,"
      "\"lease_until_ns\":9,\"released\":false,\n\"fence\":[[1,4]]}\n";
  const Result<OwnerRecord> record = decode_owner(bytes_of(text), "o");
  ASSERT_OK(record);
  EXPECT_EQ(record->epoch, 3);
  EXPECT_EQ(record->renewed, record->since);
  EXPECT_EQ(record->fence, (Fence{{1, 4}}));
}

// One taker is stopped before each of its calls in turn, and another process takes the
// run at that moment.
TEST_F(OwnerTest, OfTwoTakersOfADeadRunOneWinsAtMost) {
  int64_t calls = 1;
  for (int64_t k = 0; k <= calls; ++k) {
    MemoryEnv memory;
    ASSERT_OK(memory.create_folders(kTestRun));
    ASSERT_OK(take(memory, test_process(1)));
    FaultyEnv env(memory);
    std::optional<Result<Owner>> other;
    const auto interfere = [&] {
      other = take(memory, test_process(3), only_live({2, 3}));
    };
    if (k > 0) env.before(Op::kAny, k, interfere);
    const Result<Owner> owner = take(env, test_process(2), only_live({2, 3}));
    if (k == 0) calls = env.calls();
    ASSERT_EQ(other.has_value(), k > 0);
    const bool first = owner.ok() && owner->check().ok();
    const bool second = k > 0 && other->ok() && (*other)->check().ok();
    EXPECT_EQ(int{first} + int{second}, 1) << "stopped before call " << k;
  }
  EXPECT_GT(calls, 10);
}

// While the slow taker sleeps, another owner comes and goes with the same epoch, so
// that the file name of that epoch is free again.
TEST_F(OwnerTest, ATakerThatSleptThroughTwoOwnersLoses) {
  ASSERT_OK(take(disk, test_process(1)));
  FaultyEnv env(disk);
  env.before(Op::kRename, 1, [&] {
    ASSERT_OK(take(disk, test_process(3)));
    ASSERT_OK(take(disk, test_process(4)));
  });
  EXPECT_ERROR(take(env, test_process(2)), ErrorCode::kConflict);
  const auto record = read_owner(disk, kTestRun);
  ASSERT_OK(record);
  EXPECT_EQ((*record)->who.pid, 4);
}

TEST_F(OwnerTest, AfterACrashOrFailureAnywhereTheNextOneCanTake) {
  const auto run = [&](const std::function<void(FaultyEnv&, int64_t)>& harm,
                       bool crash) {
    for (int64_t k = 1, calls = 1; k <= calls; ++k) {
      for (const Unsynced left :
           {Unsynced::kKept, Unsynced::kLost, Unsynced::kReordered}) {
        MemoryEnv memory;
        ASSERT_OK(memory.create_folders(kTestRun));
        ASSERT_OK(take(memory, test_process(1)));
        FaultyEnv env(memory);
        harm(env, k);
        const Result<Owner> owner = take(env, test_process(2));
        calls = std::max(calls, env.calls());
        const auto after = memory.after_crash({left, static_cast<uint64_t>(k)});
        Env& then = crash ? static_cast<Env&>(*after) : memory;
        const Result<Owner> next = take(then, test_process(3));
        ASSERT_OK(next);
        EXPECT_GT(next->epoch(), owner.ok() ? owner->epoch() : 1) << k;
      }
    }
  };
  run([](FaultyEnv& env, int64_t k) { env.crash_at(Op::kAny, k); }, true);
  run([](FaultyEnv& env, int64_t k) { env.fail_at(Op::kAny, k); }, false);
  run([](FaultyEnv& env, int64_t k) { env.fail_after(Op::kAny, k); }, false);
  run([](FaultyEnv& env, int64_t k) { env.fail_at(Op::kAny, k, ErrorCode::kNoSpace); },
      false);
}

TEST_F(OwnerTest, ALostAnswerDoesNotLoseTheClaim) {
  FaultyEnv env(disk);
  env.fail_after(Op::kRename, 1);
  EXPECT_OK(take(env, test_process(1)));
}

TEST_F(OwnerTest, TheRecordRefusesWhatItDoesNotKnow) {
  const Result<Owner> owner = take(disk, test_process(1));
  OwnerRecord record = owner->record();
  record.fence = Fence{{1, 4}, {2, INT64_MAX}};
  const Bytes bytes = encode_owner(record);
  EXPECT_EQ(decode_owner(bytes, "o").value(), record);
  for (size_t size = 0; size + 1 < bytes.size(); ++size) {
    EXPECT_ERROR(decode_owner(ByteView(bytes).first(size), "o"), ErrorCode::kCorrupt);
  }
  std::string newer(text_of(bytes));
  newer.resize(newer.find(",\n\"digest\""));
  newer.replace(newer.find("\"version\":2"), 11, "\"version\":3,\"new\":0");
  put_digest(newer);
  EXPECT_ERROR(decode_owner(bytes_of(newer), "o"), ErrorCode::kUnsupported);
}

TEST(Process, KnowsItself) {
  const auto env = make_posix_env();
  const Result<Identity> self = this_process(*env, "12", 3);
  ASSERT_OK(self);
  EXPECT_EQ(self->pid, getpid());
  EXPECT_FALSE(self->host.empty());
  EXPECT_GT(self->boot.size(), 30u);
  EXPECT_NE(self->pid_space, 0);
  EXPECT_EQ(start_of_process(*env, getpid()).value(), self->started);
}

TEST(Process, ANameWithBracketsDoesNotMislead) {
  MemoryEnv env;
  ASSERT_OK(env.create_folders("/proc/5"));
  ASSERT_OK(env.write_file(
      "/proc/5/stat",
      bytes_of("5 (a) Z 1 (b)) S 1 5 5 0 -1 4 0 0 0 0 1 2 3 4 20 0 1 0 777 9 9\n")));
  EXPECT_EQ(start_of_process(env, 5).value(), 777);
  ASSERT_OK(env.write_file("/proc/5/stat", bytes_of("5 (a) S 1")));
  EXPECT_ERROR(start_of_process(env, 5), ErrorCode::kIo);
}

TEST(Process, AProcessThatProcHidesIsNotDead) {
  MemoryEnv env;
  ASSERT_OK(env.create_folders("/proc"));
  EXPECT_EQ(start_of_process(env, getpid()).value(), std::nullopt);
  ASSERT_OK(env.write_file("/proc/mounts", bytes_of("proc /proc proc rw,hidepid=2 0 0\n")));
  EXPECT_ERROR(start_of_process(env, getpid()), ErrorCode::kUnavailable);
  EXPECT_EQ(start_of_process(env, 1 << 30).value(), std::nullopt);
}

// A real process takes the run and is then killed.
TEST(Process, AKilledOwnerIsTakenOverALiveOneIsNot) {
  const TempFolder folder;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto env = make_posix_env();
    const Result<Identity> self = this_process(*env);
    const bool taken = self.ok() && Owner::acquire(*env, folder.path(), *self).ok();
    const char answer = taken ? 'y' : 'n';
    (void)!write(ready[1], &answer, 1);
    pause();
    _exit(0);
  }
  char answer = 0;
  ASSERT_EQ(read(ready[0], &answer, 1), 1);
  EXPECT_EQ(answer, 'y');
  const auto env = make_posix_env();
  const Identity self = this_process(*env).value();
  const Result<Owner> refused = Owner::acquire(*env, folder.path(), self);
  EXPECT_ERROR(refused, ErrorCode::kConflict);
  EXPECT_NE(message_of(refused).find(fmt::format("process {}", child)),
            std::string::npos);
  ASSERT_EQ(kill(child, SIGKILL), 0);
  // Nobody has waited for the process yet, so it is a zombie. A zombie writes nothing
  // any more.
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  const Result<Owner> taken = Owner::acquire(*env, folder.path(), self);
  ASSERT_OK(taken);
  EXPECT_EQ(taken->epoch(), 2);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  close(ready[0]);
  close(ready[1]);
}

}  // namespace
}  // namespace holdfast
