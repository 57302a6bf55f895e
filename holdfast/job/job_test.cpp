#include "holdfast/job/job.h"

#include <gtest/gtest.h>

#include <csignal>
#include <future>
#include <thread>

#include "holdfast/base/testing.h"
#include "holdfast/checkpoint/events.h"
#include "holdfast/device/device_testing.h"
#include "holdfast/env/faulty_env.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/job/agenda.h"
#include "holdfast/job/retries.h"
#include "holdfast/job/warnings.h"
#include "holdfast/transport/local_transport.h"

namespace holdfast {
namespace {

constexpr Duration kSoon = std::chrono::seconds(10);

// Saves are wanted after these steps.
Agenda::Decide wants(std::vector<int64_t> steps) {
  return [steps](int64_t first, int64_t last) -> std::optional<Appointment> {
    for (const int64_t step : steps) {
      if (first <= step && step <= last) {
        return Appointment{.step = step, .due = {.save = true, .why = "wanted"}};
      }
    }
    return std::nullopt;
  };
}

void run_ranks(Env& env, int ranks, const std::function<void(int, Transport&)>& body) {
  LocalNetwork network(env, ranks);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      body(rank, network.endpoint(rank));
      network.kill(rank);  // so that no rank waits for one that has returned
    });
  }
  threads.clear();
}

TEST(Agenda, AllRanksMakeAChangeAfterTheSameStepEvenIfNumbersJump) {
  MemoryEnv env(1);
  std::vector<std::vector<std::pair<int64_t, std::string>>> made(3);
  run_ranks(env, 3, [&](int rank, Transport& transport) {
    int asked = 0;
    Agenda agenda(
        env, &transport,
        [&](int64_t first, int64_t) -> std::optional<Appointment> {
          if (++asked != 2) return std::nullopt;
          return Appointment{.step = first, .due = {.change = true, .why = "tp=2 dp=1"}};
        },
        kSoon);
    for (int64_t step = 0; step < 200; step += 7) {
      const Result<Due> due = agenda.at(step);
      ASSERT_OK(due);
      EXPECT_FALSE(due->save || due->stop);
      if (due->change) made[static_cast<size_t>(rank)].emplace_back(step, due->why);
    }
  });
  ASSERT_EQ(made[0].size(), 1U);
  EXPECT_EQ(made[0][0].second, "tp=2 dp=1");
  for (const auto& one : made) EXPECT_EQ(one, made[0]);
}

TEST(Agenda, AllRanksSaveAtTheSameSteps) {
  MemoryEnv env(1);
  std::vector<std::vector<int64_t>> saved(3);
  run_ranks(env, 3, [&](int rank, Transport& transport) {
    Agenda agenda(env, &transport, wants({3, 4, 90}), kSoon);
    for (int64_t step = 0; step < 100; ++step) {
      const Result<Due> due = agenda.at(step);
      ASSERT_OK(due);
      if (due->save) saved[static_cast<size_t>(rank)].push_back(step);
    }
  });
  for (const auto& steps : saved) EXPECT_EQ(steps, (std::vector<int64_t>{3, 4, 90}));
}

TEST(Agenda, WhatWasAppointedForAStepLeftOutIsDueAtTheNext) {
  MemoryEnv env(1);
  Agenda agenda(env, nullptr, wants({3, 6}), kSoon);
  std::vector<int64_t> saved;
  for (int64_t step = 0; step < 16; step += 4) {
    if (agenda.at(step).value().save) saved.push_back(step);
  }
  EXPECT_EQ(saved, (std::vector<int64_t>{4, 8}));
}

TEST(Agenda, AStopThatAnyRankAsksForEndsAllAtOneStep) {
  MemoryEnv env(1);
  std::vector<int64_t> stopped(3, -1);
  run_ranks(env, 3, [&](int rank, Transport& transport) {
    Agenda agenda(env, &transport, wants({}), kSoon);
    for (int64_t step = 0; stopped[static_cast<size_t>(rank)] < 0; ++step) {
      if (rank == 2 && step == 5) ASSERT_OK(agenda.ask_to_stop("signal 15"));
      const Result<Due> due = agenda.at(step);
      ASSERT_OK(due);
      if (!due->stop) continue;
      EXPECT_EQ(due->why, "signal 15");
      EXPECT_TRUE(due->save);
      stopped[static_cast<size_t>(rank)] = step;
    }
  });
  EXPECT_EQ(stopped[0], stopped[1]);
  EXPECT_EQ(stopped[0], stopped[2]);
}

TEST(Agenda, AloneAStopIsHeardAtAStepThatComesAgain) {
  MemoryEnv env(1);
  Agenda agenda(env, nullptr, wants({}), kSoon);
  EXPECT_FALSE(agenda.at(7).value().save);
  ASSERT_OK(agenda.ask_to_stop("signal 15"));
  EXPECT_TRUE(agenda.at(7).value().stop);
}

TEST(Warnings, SayThatReplicasAreNotComparedAnyMore) {
  MemoryEnv env(1);
  Warnings warnings(env);
  emit(warnings, env, ReplicaChecksEnded{.false_alarms = 3});
  EXPECT_EQ(
      warnings.take(),
      std::vector<std::string>{
          "replicas seemed to differ 3 times and were equal: the program writes to "
          "tensors while a save is made, so replicas are not compared any more"});
}

TEST(Warnings, SayThatADeviceCannotComputeSeals) {
  MemoryEnv env(1);
  Warnings warnings(env);
  emit(warnings, env, DeviceSealsMissing{.device = 1, .reason = "no compiler"});
  EXPECT_EQ(warnings.take(),
            std::vector<std::string>{
                "device 1 cannot compute seals: no compiler; they are computed from copies "
                "in host memory, so damage to a copy before that is not found"});
}

TEST(Warnings, NameTheLastDurableStepAtOnceAndThenEveryMinute) {
  MemoryEnv env(1);
  Warnings warnings(env);
  const auto fail = [&](int64_t step) {
    emit(warnings, env, SaveFailed{.step = step, .code = "no_space", .reason = "full"});
  };
  fail(3);
  EXPECT_EQ(warnings.take(),
            std::vector<std::string>{"step 3 was not saved: full; training goes on, "
                                     "and this process has saved none"});
  emit(warnings, env, SaveDurable{.step = 4, .folder = "step-4"});
  for (int64_t step = 5; step < 65; ++step) {
    fail(step);
    const std::vector<std::string> said = warnings.take();
    EXPECT_EQ(said.size(), step == 5 || step == 60 ? 1u : 0u) << step;
    for (const std::string& one : said) {
      EXPECT_NE(one.find("the last durable step is 4"), std::string::npos) << one;
    }
    env.advance(std::chrono::seconds(1));
  }
  for (int minute = 0; minute < 3; ++minute) {  // nothing is tried any more
    env.advance(std::chrono::minutes(1));
    EXPECT_EQ(warnings.take().size(), 1u);
  }
  emit(warnings, env, SaveDurable{.step = 70, .folder = "step-70"});
  env.advance(std::chrono::minutes(5));
  EXPECT_TRUE(warnings.take().empty());
}

TEST(Retries, ComeAtOnceAndThenAfterPausesThatGrowToAMinute) {
  Retries retries;
  Instant now{};
  EXPECT_FALSE(retries.failing() || retries.is_due(now));
  for (const int pause : {0, 1, 2, 4, 8, 16, 32, 60, 60}) {
    retries.failed(now);
    EXPECT_TRUE(retries.failing());
    if (pause > 0) {
      EXPECT_FALSE(retries.is_due(now + std::chrono::seconds(pause - 1)));
    }
    now += std::chrono::seconds(pause);
    EXPECT_TRUE(retries.is_due(now));
    EXPECT_FALSE(retries.is_due(now));
  }
  retries.succeeded();
  EXPECT_FALSE(retries.failing());
}

// Two ranks that hold halves of a tensor whose every element is the step.
struct TwoRanks : ::testing::Test {
  static constexpr int64_t kRows = 6;

  JobOptions options(Cadence every) {
    JobOptions options{.schedule = {.every = every}, .signals = false};
    options.saver.ring_bytes = 1 << 20;
    options.saver.block_bytes = 64 << 10;
    options.saver.space_reserve = 0;
    options.saver.guard = Guard::kSample;
    options.saver.identity = Identity{.host = "alpha",
                                      .boot = fmt::format("boot-{}", ++boots),
                                      .pid = 100,
                                      .started = 7};
    return options;
  }

  static std::vector<LocalPiece> pieces_of(int rank, int ranks, Bytes& memory) {
    const int64_t lo = kRows * rank / ranks, hi = kRows * (rank + 1) / ranks;
    memory.resize(static_cast<size_t>(hi - lo) * 8);
    const Box box{{lo, hi}};
    return {make_piece({.name = "w", .dtype = Dtype::kI64, .shape = {kRows}}, box,
                       memory, Map::dense(box, 8))};
  }

  static void set(Bytes& memory, int64_t step) {
    for (size_t at = 0; at < memory.size(); at += 8) {
      store_little_endian(static_cast<uint64_t>(step), ByteSpan(memory).subspan(at));
    }
  }

  // Resumes from the newest checkpoint and trains `steps` steps on `ranks` ranks.
  // Returns the step at which it began.
  int64_t train(int ranks, int64_t steps, const JobOptions& options) {
    int64_t start = 0;
    run_ranks(env, ranks, [&](int rank, Transport& transport) {
      Bytes memory;
      const std::vector<LocalPiece> pieces = pieces_of(rank, ranks, memory);
      const auto job = Job::open(env, "run", &transport, options);
      ASSERT_OK(job);
      int64_t step = 0;
      const Result<RestoredState> restored = (*job)->resume(pieces);
      if (restored.ok()) {
        Bytes want = memory;
        set(want, restored->step);
        EXPECT_EQ(memory, want);
        step = restored->step + 1;
      } else {
        EXPECT_EQ(restored.error().code(), ErrorCode::kNotFound);
        ASSERT_OK((*job)->attach(pieces));
      }
      if (rank == 0) start = step;
      for (const int64_t end = step + steps; step < end; ++step) {
        (*job)->settle();
        set(memory, step);
        const Result<Due> due = (*job)->due(step);
        ASSERT_OK(due);
        if (due->save) ASSERT_OK((*job)->save({.step = step, .pieces = pieces}));
      }
      EXPECT_OK((*job)->close());
    });
    return start;
  }

  MemoryEnv env{1};
  int boots = 0;
};

TEST_F(TwoRanks, StreamsAreToldToWhatReadsAndWritesDevices) {
  FakeCuda cuda(First::kOurs);
  cuda.free_memory = 1 << 20;
  const auto device = Device::open(cuda, 0).value();
  const CudaStream training = cuda.new_stream();
  const ByteSpan tensor = cuda.new_tensor(kRows * 8);
  std::vector<LocalPiece> pieces{
      whole_piece({.name = "w", .dtype = Dtype::kI64, .shape = {kRows}}, tensor)};
  pieces[0].device = device.get();
  const auto all_are = [&](int value) {
    return std::ranges::all_of(
        tensor, [&](std::byte byte) { return byte == std::byte(value); });
  };
  {
    const auto job = Job::open(env, "run", nullptr, options(EverySteps{1})).value();
    ASSERT_OK(job->attach(pieces, training));
    cuda.set(training, tensor, std::byte{2});
    for (int step = 1; step < 3; ++step) {
      ASSERT_OK(job->save({.step = step, .pieces = pieces, .stream = training}));
    }
    job->settle({}, training);
    ASSERT_OK(job->close());
  }
  EXPECT_EQ(cuda.waits_of(nullptr), 0);
  cuda.set(training, tensor, std::byte{7});
  const auto job = Job::open(env, "run", nullptr, options(EverySteps{1})).value();
  ASSERT_OK(job->resume(pieces, {.stream = training}));
  cuda.run_all();
  EXPECT_TRUE(all_are(2));
  EXPECT_OK(job->close());
}

TEST_F(TwoRanks, SaveEveryFewStepsAndGoOnWithAnotherNumberOfRanks) {
  EXPECT_EQ(train(2, 10, options(EverySteps{4})), 0);
  EXPECT_EQ(train(3, 3, options(EverySteps{4})), 8);  // saved after step 7
  EXPECT_EQ(train(1, 3, options(EverySteps{4})), 8);  // nothing was due in between
  EXPECT_EQ(train(2, 5, options(EverySteps{2})), 8);
  EXPECT_EQ(train(2, 1, options(EverySteps{2})), 12);
}

TEST_F(TwoRanks, AStepThatHasToBeDurableIsSavedBesideACadenceInSteps) {
  JobOptions wanted = options(EverySteps{1000});
  wanted.schedule.durable_steps = {5};
  EXPECT_EQ(train(2, 20, wanted), 0);
  // Steps take no time here, so the save for it is due at once.
  EXPECT_GT(train(2, 1, wanted), 0);
}

TEST_F(TwoRanks, ANewTrainingIsRefusedOnAllRanksIfTheRunHasSteps) {
  std::vector<std::string> told(2);
  const JobOptions never = options(Never{});
  const auto begin = [&](int rank, Transport& transport) {
    const auto job = Job::open(env, "run", &transport, never);
    ASSERT_OK(job);
    const Result<void> fresh = (*job)->check_new("resume()");
    told[static_cast<size_t>(rank)] = fresh.ok() ? "" : fresh.error().message();
    ASSERT_OK((*job)->close());
  };
  run_ranks(env, 2, begin);
  EXPECT_EQ(told, std::vector<std::string>(2));
  train(2, 4, options(EverySteps{2}));
  run_ranks(env, 2, begin);
  EXPECT_EQ(told, std::vector<std::string>(
                      2, "run: step-00000003 is there already; expected resume()"));
}

TEST_F(TwoRanks, GatherReturnsWhatEveryRankPassedByRank) {
  const JobOptions never = options(Never{});
  run_ranks(env, 3, [&](int rank, Transport& transport) {
    const auto job = Job::open(env, "run", &transport, never);
    ASSERT_OK(job);
    const std::string own(static_cast<size_t>(rank), 'x');
    const auto all = (*job)->gather(bytes_of(own));
    ASSERT_OK(all);
    ASSERT_EQ(all->size(), 3u);
    for (size_t r = 0; r < 3; ++r) EXPECT_EQ(text_of((*all)[r]), std::string(r, 'x'));
    EXPECT_OK((*job)->close());
  });
}

TEST_F(TwoRanks, SavesThatFailAreTriedAgainAfterPausesAndEndNothing) {
  FaultyEnv faulty(env);
  const auto job = Job::open(faulty, "run", nullptr, options(EverySteps{1})).value();
  Bytes memory;
  const std::vector<LocalPiece> pieces = pieces_of(0, 1, memory);
  int tries = 0;
  for (int64_t step = 0; step < 300; ++step) {
    faulty.fail_at(Op::kCreateFolder, 1, ErrorCode::kNoSpace);
    const Due due = job->due(step).value();
    if (due.save) {
      ++tries;
      const SaveHandle handle = job->save({.step = step, .pieces = pieces}).value();
      job->settle();
      EXPECT_ERROR(handle.durable(), ErrorCode::kNoSpace);
    }
    env.advance(std::chrono::seconds(1));
  }
  EXPECT_GE(tries, 8);
  EXPECT_LE(tries, 16);
  EXPECT_ERROR(job->close(), ErrorCode::kNoSpace);
}

TEST_F(TwoRanks, WhatCannotPassIsRaisedAtTheNextStep) {
  const auto job = Job::open(env, "run", nullptr, options(EverySteps{1000})).value();
  Bytes memory;
  const std::vector<LocalPiece> pieces = pieces_of(0, 1, memory);
  EXPECT_ERROR(job->save({.step = -1, .pieces = pieces})->durable(),
               ErrorCode::kInvalid);
  ASSERT_TRUE(job->due(1)->save);
  EXPECT_ERROR(job->save({.step = 1, .pieces = pieces}), ErrorCode::kInvalid);
}

TEST_F(TwoRanks, ASignalThatComesWhileTheLastSaveIsCommittedDoesNotEndIt) {
  FaultyEnv faulty(env);
  // With the default action, close() would let the late signal end the process.
  static int calls = 0;
  const auto before = std::signal(SIGTERM, [](int /*signal*/) { ++calls; });
  JobOptions listening = options(EverySteps{1});
  listening.signals = true;
  const auto job = Job::open(faulty, "run", nullptr, listening);
  ASSERT_OK(job);
  Bytes memory;
  const std::vector<LocalPiece> pieces = pieces_of(0, 1, memory);
  std::promise<void> reached, closing;
  faulty.before(Op::kSyncFolder, 1, [&] {
    reached.set_value();
    closing.get_future().wait();
  });
  const Result<SaveHandle> last = (*job)->save({.step = 0, .pieces = pieces});
  ASSERT_OK(last);
  reached.get_future().wait();
  // The rest of the commit comes when close() has settled the save.
  faulty.before(Op::kRename, 1, [] { std::raise(SIGTERM); });
  closing.set_value();
  EXPECT_OK((*job)->close());
  EXPECT_OK(last->durable());
  EXPECT_EQ(calls, 1);
  std::signal(SIGTERM, before);
}

// A signal that comes after the last step must still end the process.
TEST_F(TwoRanks, ASignalThatComesAfterTheLastStepEndsTheProcessWhenAllIsDurable) {
  JobOptions listening = options(EverySteps{1});
  listening.signals = true;
  Bytes memory;
  const LocalPieces pieces = pieces_of(0, 1, memory);
  const auto end = [&] {
    const auto job = Job::open(env, "run", nullptr, listening).value();
    const SaveHandle last = job->save({.step = 0, .pieces = pieces}).value();
    std::raise(SIGTERM);
    if (!job->close().ok()) std::_Exit(1);
    std::_Exit(last.durable().ok() ? 2 : 3);
  };
  EXPECT_EXIT(end(), ::testing::KilledBySignal(SIGTERM), "");
}

TEST_F(TwoRanks, TheSaveAtAStopWaitsForRoomWhereOthersAreSkipped) {
  FaultyEnv faulty(env);
  JobOptions skipping = options(EverySteps{1});
  skipping.signals = true;
  skipping.saver.backpressure = Backpressure::kSkip;
  skipping.saver.in_flight = 1;
  const auto job = Job::open(faulty, "run", nullptr, skipping);
  ASSERT_OK(job);
  Bytes memory;
  const std::vector<LocalPiece> pieces = pieces_of(0, 1, memory);
  std::promise<void> reached, saving;
  faulty.before(Op::kSyncFolder, 1, [&] {
    reached.set_value();
    saving.get_future().wait();
  });
  ASSERT_TRUE((*job)->due(0)->save);
  ASSERT_OK((*job)->save({.step = 0, .pieces = pieces}));
  (*job)->settle();
  reached.get_future().wait();
  ASSERT_TRUE((*job)->due(1)->save);
  EXPECT_ERROR((*job)->save({.step = 1, .pieces = pieces})->durable(),
               ErrorCode::kConflict);
  std::raise(SIGTERM);
  ASSERT_TRUE((*job)->due(2)->stop);
  saving.set_value();
  const Result<SaveHandle> last = (*job)->save({.step = 2, .pieces = pieces});
  ASSERT_OK(last);
  EXPECT_OK((*job)->wait_stopped(*last));
  EXPECT_OK((*job)->close());
}

}  // namespace
}  // namespace holdfast
