// Tests of concurrent work: readers and writers on one run, saves that overtake each
// other, and failures in the background.
#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "holdfast/base/future.h"
#include "holdfast/checkpoint/checkpoint_testing.h"
#include "holdfast/checkpoint/step_files.h"
#include "holdfast/env/collecting_sink.h"
#include "holdfast/env/faulty_env.h"

namespace holdfast::tests::concurrency_test {
namespace {

std::vector<Tensor> tensors() {
  return {{.name = "w", .dtype = Dtype::kF32, .shape = {40, 30}},
          {.name = "b", .dtype = Dtype::kBf16, .shape = {7}}};
}

std::vector<Memory> values_at(int64_t step) {
  Dice dice(static_cast<uint64_t>(step));
  return random_values(dice, tensors());
}

SaverOptions in_background() {
  SaverOptions options = test_options();
  options.background = true;
  return options;
}

// A job of one rank with a saver. Before each save it sets its tensors to the values of
// that step.
struct Writer {
  explicit Writer(Env& env, const SaverOptions& options = in_background())
      : saver(Saver::open(env, kRun, nullptr, options).value()) {}

  Result<SaveHandle> save(int64_t step) { return save(step, values_at(step)); }
  Result<SaveHandle> save(int64_t step, const std::vector<Memory>& values) {
    auto job = std::make_unique<Job>(replicated(tensors(), 1));
    job->set(values);
    const LocalState state = job->state(0);
    jobs.push_back(std::move(job));
    return saver->save({.step = step, .state = &state});
  }

  std::vector<std::unique_ptr<Job>> jobs;  // their memory may still be captured
  std::unique_ptr<Saver> saver;
};

// Left out with sanitizers, because they end a process that asks for so much memory.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(Memory, ARingThatCannotBeHadDropsEverySaveAndEndsNothing) {
  MemoryEnv env(1);
  SaverOptions options = in_background();
  options.ring_bytes = int64_t{1} << 50;
  const auto saver = Saver::open(env, kRun, nullptr, options).value();
  Job job(replicated(tensors(), 1));
  const LocalState state = job.state(0);
  EXPECT_ERROR(saver->prepare(state), ErrorCode::kNoSpace);
  for (int64_t step = 1; step < 3; ++step) {
    const SaveHandle handle = saver->save({.step = step, .state = &state}).value();
    EXPECT_ERROR(handle.durable(), ErrorCode::kNoSpace);
  }
}
#endif

// Restores again and again until the writer is done. Each restored state must be that
// of its step.
void read_until(Env& env, const std::atomic<bool>& done) {
  Job job(replicated(tensors(), 1));
  int64_t newest = 0;
  while (!done) {
    const Result<RestoredState> restored = restore_alone(env, job);
    ASSERT_OK(restored);
    EXPECT_TRUE(job.has(values_at(restored->step))) << "step " << restored->step;
    EXPECT_GE(restored->step, newest);
    newest = restored->step;
  }
}

class ReadersAndWriter : public ::testing::TestWithParam<bool> {};

TEST_P(ReadersAndWriter, ReadersFindAWholeStepAtAnyTimeOfSavesAndRetention) {
  MemoryEnv env(1);
  SaverOptions options = in_background();
  if (GetParam()) options.keep = Keep{.last = 1};
  Writer writer(env, options);
  ASSERT_OK(writer.save(1).value().durable());
  std::atomic<bool> done = false;
  std::vector<std::jthread> readers;
  for (int i = 0; i < 2; ++i) readers.emplace_back([&] { read_until(env, done); });
  for (int64_t step = 2; step <= 40; ++step) {
    EXPECT_OK(writer.save(step).value().durable());
  }
  done = true;
  readers.clear();
  EXPECT_OK(writer.saver->close());
}

INSTANTIATE_TEST_SUITE_P(Keep, ReadersAndWriter, ::testing::Bool());

// Returns the number of the read that first reads a shard, among all reads in the log.
int64_t first_shard_read(const FaultyEnv& env) {
  int64_t reads = 0;
  for (const Call& call : env.log()) {
    reads += call.op == Op::kRead;
    if (call.op == Op::kRead && call.path.extension() == ".safetensors") return reads;
  }
  return -1;
}

TEST(AReader, KeepsTheStepThatRetentionRemovesWhileItIsRead) {
  MemoryEnv disk(1);
  SaverOptions options = test_options();
  options.keep = Keep{.last = 1};
  options.incremental = true;
  Writer writer(disk, options);
  ASSERT_OK(writer.save(1).value().durable());
  std::vector<Memory> values = values_at(1);  // `w` is linked, so there are two files
  values[1] = values_at(2)[1];
  ASSERT_OK(writer.save(2, values).value().durable());
  ASSERT_EQ(open_step(disk, kRun / "step-00000002")->files.size(), 2u);
  Job job(replicated(tensors(), 1));
  FaultyEnv counted(disk);
  ASSERT_OK(restore_alone(counted, job));

  FaultyEnv env(disk);
  env.before(Op::kRead, first_shard_read(counted), [&] {
    ASSERT_OK(writer.save(3).value().durable());
    ASSERT_FALSE(disk.info(kRun / "step-00000002").ok());
  });
  const Result<RestoredState> restored = restore_alone(env, job);
  ASSERT_OK(restored);
  EXPECT_EQ(restored->step, 2);
  EXPECT_TRUE(job.has(values));
  EXPECT_TRUE(restored->skipped.empty());
  EXPECT_FALSE(disk.info(kRun / "step-00000002").ok());  // retention has removed it
}

TEST(TwoWriters, OneThatIsTakenOverCommitsNothingMore) {
  MemoryEnv env(1);
  Writer first(env, test_options(1));
  ASSERT_OK(first.save(1).value().durable());
  Writer second(env, test_options(2));  // takes over, because the first counts as dead
  ASSERT_OK(second.save(2).value().durable());
  EXPECT_ERROR(first.save(3).value().durable(), ErrorCode::kConflict);
  EXPECT_ERROR(first.save(4), ErrorCode::kConflict);
  ASSERT_OK(second.save(5).value().durable());
  Job job(replicated(tensors(), 1));
  const Result<RestoredState> restored = restore_alone(env, job);
  ASSERT_OK(restored);
  EXPECT_EQ(restored->step, 5);
  EXPECT_TRUE(job.has(values_at(5)));
}

// A writer whose next save stops in the middle of its commit until the test lets it go
// on.
class Overtaking : public ::testing::Test {
 protected:
  void open(Backpressure backpressure, int in_flight) {
    SaverOptions options = in_background();
    options.backpressure = backpressure;
    options.in_flight = in_flight;
    writer.emplace(env, options);
    env.before(Op::kSyncFolder, 1, [this] {
      reached.set_value();
      free.get_future().wait();
    });
  }
  SaveHandle save(int64_t step) { return writer->save(step).value(); }
  int64_t newest() {
    Job job(replicated(tensors(), 1));
    const Result<RestoredState> restored = restore_alone(disk, job);
    EXPECT_OK(restored);
    if (!restored.ok()) return -1;
    EXPECT_TRUE(job.has(values_at(restored->step)));
    return restored->step;
  }

  MemoryEnv disk{1};
  FaultyEnv env{disk};
  std::promise<void> reached, free;
  std::optional<Writer> writer;
};

TEST_F(Overtaking, SkipLeavesOutTheSaveThatHasNoRoom) {
  open(Backpressure::kSkip, 1);
  const SaveHandle first = save(1);
  reached.get_future().wait();
  const SaveHandle second = save(2);
  EXPECT_TRUE(second.is_done());
  EXPECT_ERROR(second.durable(), ErrorCode::kConflict);
  EXPECT_FALSE(first.is_done());
  free.set_value();
  EXPECT_OK(first.durable());
  EXPECT_OK(save(3).durable());
  EXPECT_OK(writer->saver->close());
  EXPECT_EQ(newest(), 3);
}

TEST_F(Overtaking, WaitReturnsOnlyWhenThereIsRoom) {
  open(Backpressure::kWait, 1);
  const SaveHandle first = save(1);
  reached.get_future().wait();
  const std::jthread releaser([this] { free.set_value(); });
  const SaveHandle second = save(2);
  EXPECT_TRUE(first.is_done());
  EXPECT_OK(first.durable());
  EXPECT_OK(second.durable());
  EXPECT_EQ(newest(), 2);
}

TEST_F(Overtaking, SavesMayBeUnderWayTogetherAndAreCommittedInOrder) {
  open(Backpressure::kWait, 3);
  const SaveHandle first = save(1);
  reached.get_future().wait();
  const SaveHandle second = save(2), third = save(3);
  EXPECT_OK(second.captured());
  EXPECT_OK(third.captured());
  EXPECT_FALSE(first.is_done() || second.is_done() || third.is_done());
  free.set_value();
  EXPECT_OK(third.durable());
  EXPECT_TRUE(first.is_done() && second.is_done());
  EXPECT_EQ(newest(), 3);
}

// Makes three saves. Returns true if the second, which waited to be written, was
// dropped for the third. Returns false if the second became durable before the third
// asked for room.
bool drops_the_one_that_waits() {
  MemoryEnv disk(1);
  FaultyEnv env(disk);
  std::promise<void> reached, free;
  SaverOptions options = in_background();
  options.backpressure = Backpressure::kNewest;
  Writer writer(env, options);
  env.before(Op::kSyncFolder, 1, [&] {
    reached.set_value();
    free.get_future().wait();
  });
  const SaveHandle first = writer.save(1).value();
  reached.get_future().wait();
  const SaveHandle second = writer.save(2).value();
  const std::jthread releaser([&] {
    for (int i = 0; i < 1000; ++i) std::this_thread::yield();
    free.set_value();
  });
  const SaveHandle third = writer.save(3).value();
  EXPECT_OK(first.durable());
  EXPECT_OK(third.durable());
  EXPECT_OK(writer.saver->close());  // a dropped save is no failure
  if (second.durable().ok()) return false;
  EXPECT_ERROR(second.durable(), ErrorCode::kConflict);
  return true;
}

TEST(Newest, DropsWhatWaitsToBeWrittenForTheNewest) {
  for (int round = 0; round < 100; ++round) {
    if (drops_the_one_that_waits()) return;
  }
  FAIL() << "never dropped";
}

TEST(Failures, ThoseThatMayPassAreNeverRaisedByASave) {
  MemoryEnv disk(1);
  FaultyEnv env(disk);
  Writer writer(env);
  ASSERT_OK(writer.save(1).value().durable());
  for (int64_t step = 2; step < 20; ++step) {
    env.fail_at(Op::kCreateFolder, 1, ErrorCode::kIo);
    EXPECT_ERROR(writer.save(step).value().durable(), ErrorCode::kIo);
    EXPECT_FALSE(writer.saver->has_to_raise());
    disk.advance(std::chrono::hours(1));
  }
  EXPECT_OK(writer.save(20).value().durable());
  EXPECT_OK(writer.saver->close());
}

TEST(Failures, ThoseThatLastLongerThanFailAfterAreRaisedAndThenItTriesAgain) {
  MemoryEnv disk(1);
  FaultyEnv env(disk);
  SaverOptions options = in_background();
  options.fail_after = std::chrono::minutes(30);
  Writer writer(env, options);
  for (int64_t step : {1, 2, 3, 4}) {
    env.fail_at(Op::kCreateFolder, 1, ErrorCode::kNoSpace);
    EXPECT_ERROR(writer.save(step).value().durable(), ErrorCode::kNoSpace);
    EXPECT_FALSE(writer.saver->has_to_raise());
  }
  disk.advance(std::chrono::minutes(30));
  EXPECT_TRUE(writer.saver->has_to_raise());
  const Result<SaveHandle> raised = writer.save(5);
  EXPECT_ERROR(raised, ErrorCode::kNoSpace);
  EXPECT_NE(message_of(raised).find("before step 5"), std::string::npos);
  EXPECT_OK(writer.save(6).value().durable());
  EXPECT_OK(writer.saver->close());
}

TEST(Failures, OneThatPassedIsForgotten) {
  MemoryEnv disk(1);
  FaultyEnv env(disk);
  Writer writer(env);
  for (int64_t step = 1; step <= 8; ++step) {
    if (step % 4 != 0) env.fail_at(Op::kCreateFolder, 1, ErrorCode::kNoSpace);
    const Result<SaveHandle> handle = writer.save(step);
    ASSERT_OK(handle);
    EXPECT_EQ(handle->durable().ok(), step % 4 == 0);
  }
}

TEST(Failures, OneThatCannotPassIsRaisedByTheNextSave) {
  MemoryEnv env(1);
  Writer writer(env);
  EXPECT_ERROR(writer.save(-1).value().durable(), ErrorCode::kInvalid);
  EXPECT_TRUE(writer.saver->has_to_raise());
  EXPECT_ERROR(writer.save(1), ErrorCode::kInvalid);
  EXPECT_OK(writer.save(2).value().durable());
}

TEST(Failures, CloseSaysWhatTheLastSaveFailedWith) {
  MemoryEnv disk(1);
  FaultyEnv env(disk);
  Writer writer(env);
  env.fail_at(Op::kCreateFolder, 1, ErrorCode::kNoSpace);
  ASSERT_OK(writer.save(1));
  EXPECT_ERROR(writer.saver->close(), ErrorCode::kNoSpace);
  EXPECT_OK(writer.saver->close());
  EXPECT_ERROR(writer.save(2), ErrorCode::kInvalid);
}

TEST(Failures, ACloseThatRanOutOfTimeMayBeCalledAgain) {
  MemoryEnv disk(1);
  FaultyEnv env(disk);
  Writer writer(env);
  std::promise<void> free;
  env.before(Op::kSyncFolder, 1, [&] { free.get_future().wait(); });
  const SaveHandle handle = writer.save(1).value();
  EXPECT_ERROR(writer.saver->close(env.now()), ErrorCode::kTimeout);
  EXPECT_FALSE(handle.is_done());
  free.set_value();
  EXPECT_OK(writer.saver->close());
  EXPECT_TRUE(handle.is_done());
}

TEST(Failures, OptionsThatMakeNoSenseAreRefused) {
  MemoryEnv env(1);
  const auto open = [&](auto change) {
    SaverOptions options = test_options();
    change(options);
    return Saver::open(env, kRun, nullptr, options);
  };
  EXPECT_ERROR(open([](auto& o) { o.in_flight = 0; }), ErrorCode::kInvalid);
  EXPECT_ERROR(open([](auto& o) { o.ring_bytes = -1; }), ErrorCode::kInvalid);
  EXPECT_ERROR(open([](auto& o) { o.ring_bytes = INT64_MAX; }), ErrorCode::kInvalid);
  EXPECT_ERROR(open([](auto& o) { o.block_bytes = 1000; }), ErrorCode::kInvalid);
  EXPECT_ERROR(open([](auto& o) { o.full_every = 0; }), ErrorCode::kInvalid);
}

// Saves whose objects are made only while the tensors are already being copied.
struct LateObjects : ::testing::Test {
  SaveHandle save(int64_t step, std::function<Result<SaveObjects>()> make) {
    const LocalState state = job.state(0);
    return saver->save({.step = step, .state = &state, .make_objects = std::move(make)})
        .value();
  }
  bool is_captured() const {
    return std::ranges::any_of(events.records(), [](const EventRecord& record) {
      return record.name == "save_captured";
    });
  }
  SaverOptions options() {
    SaverOptions options = in_background();
    options.events = &events;
    return options;
  }

  MemoryEnv env{1};
  Job job{replicated(tensors(), 1)};
  CollectingSink events;
  std::unique_ptr<Saver> saver = Saver::open(env, kRun, nullptr, options()).value();
};

TEST_F(LateObjects, TensorsAreCapturedWhileTheyAreMade) {
  const SaveHandle handle = save(1, [&]() -> Result<SaveObjects> {
    while (!is_captured()) std::this_thread::yield();
    return SaveObjects{.of_all = Object(Object::Value(int64_t{7})),
                       .of_rank = Object(Object::Value(0.5))};
  });
  ASSERT_OK(handle.durable());
  ASSERT_OK(saver->close());
  Job back(replicated(tensors(), 1));
  const RestoredState restored = restore_alone(env, back).value();
  EXPECT_EQ(restored.objects, Object(Object::Value(int64_t{7})));
  EXPECT_EQ(restored.rank_objects, Object(Object::Value(0.5)));
}

TEST_F(LateObjects, ASaveThatGetsAnErrorInsteadIsDropped) {
  const SaveHandle handle =
      save(1, [] { return Result<SaveObjects>(unavailable("there are none")); });
  EXPECT_ERROR(handle.durable(), ErrorCode::kUnavailable);
  const SaveHandle next = save(2, [] { return Result<SaveObjects>(SaveObjects{}); });
  EXPECT_OK(next.durable());
  EXPECT_OK(saver->close());
}

// The first save hangs in its commit, so the second one waits for room on rank 0. Without
// the word of rank 0, rank 1 would wait for 30 minutes.
TEST(Backpressure, AnInterruptedWaitForRoomFailsTheSaveOnAllRanks) {
  MemoryEnv disk(1);
  FaultyEnv env(disk);
  Future<bool> commit_may_go_on;
  Job job(replicated(tensors(), 2));
  run_ranks(disk, 2, [&](int rank, Transport& transport) {
    SaverOptions options = in_background();
    options.in_flight = 1;
    options.interrupted = [&] { return true; };
    const auto saver = Saver::open(env, kRun, &transport, options).value();
    const LocalState state = job.state(rank);
    if (rank == 0) env.before(Op::kRename, 1, [&] { commit_may_go_on.wait(); });
    ASSERT_OK(transport.barrier(kNoDeadline));
    const auto save = [&](int64_t step) {
      return saver->save({.step = step, .state = &state});
    };
    const SaveHandle first = save(1).value();
    EXPECT_ERROR(save(2), ErrorCode::kUnavailable);
    commit_may_go_on.keep(true);
    EXPECT_OK(first.durable());
    ASSERT_OK(transport.barrier(kNoDeadline));
    EXPECT_OK(save(3).value().durable());
    EXPECT_OK(saver->close());
  });
}

}  // namespace
}  // namespace holdfast::tests::concurrency_test
