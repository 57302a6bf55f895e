#include "holdfast/env/event.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <thread>

#include "holdfast/base/json.h"
#include "holdfast/base/testing.h"
#include "holdfast/env/collecting_sink.h"
#include "holdfast/env/event_log.h"
#include "holdfast/env/faulty_env.h"
#include "holdfast/env/memory_env.h"

namespace holdfast {
namespace {

struct SaveDone {
  static constexpr std::string_view kName = "save_done";
  int64_t step = 0;
  double seconds = 0;
  bool durable = false;
  std::string folder;

  static void fields(auto& self, auto&& field) {
    field("step", self.step);
    field("seconds", self.seconds);
    field("durable", self.durable);
    field("folder", self.folder);
  }
  friend bool operator==(const SaveDone&, const SaveDone&) = default;
};

struct Tick {
  static constexpr std::string_view kName = "tick";
  int64_t n = 0;
  static void fields(auto& self, auto&& field) { field("n", self.n); }
};

const SaveDone kSave{
    .step = 400, .seconds = 1.5, .durable = true, .folder = "a \"b\"\n"};

class EventTest : public ::testing::Test {
 protected:
  // The n of every tick in the file.
  std::vector<int64_t> ticks() {
    std::vector<int64_t> seen;
    const EventLog log = read_events(env_, "e.jsonl").value();
    for (const EventRecord& record : log.events) {
      seen.push_back(event_as<Tick>(record).value().n);
    }
    skipped_ = log.skipped;
    return seen;
  }
  void append_raw(std::string_view text) {
    const auto file = env_.open("e.jsonl", {.mode = OpenMode::kAppend}).value();
    ASSERT_OK(file->append(bytes_of(text)));
  }

  MemoryEnv env_;
  int64_t skipped_ = 0;
};

TEST_F(EventTest, SinksGetTheNameTheTimesAndTheFields) {
  CollectingSink sink;
  emit(sink, env_, kSave);
  ASSERT_EQ(sink.records().size(), 1u);
  const EventRecord record = sink.records()[0];
  EXPECT_EQ(record.name, "save_done");
  EXPECT_EQ(record.wall, env_.wall_now());
  EXPECT_EQ(record.monotonic, env_.now());
  EXPECT_EQ(std::get<int64_t>(*record.find("step")), 400);
  EXPECT_EQ(record.find("none"), nullptr);
  EXPECT_EQ(*event_as<SaveDone>(record), kSave);
}

TEST_F(EventTest, ReadingAsAnotherEventIsRefusedWithTheField) {
  EventRecord record{.name = "save_done", .wall = {}, .monotonic = {}, .fields = {}};
  EXPECT_EQ(message_of(event_as<Tick>(record)),
            "event \"save_done\"; expected \"tick\"");
  EXPECT_EQ(message_of(event_as<SaveDone>(record)),
            "event \"save_done\": field \"step\" is missing");
  record.name = "tick";
  record.fields = {{"n", 0.5}};
  EXPECT_EQ(message_of(event_as<Tick>(record)),
            "event \"tick\": field \"n\" is another type");
  record.fields = {{"new", true}, {"n", int64_t{3}}};
  EXPECT_EQ(event_as<Tick>(record)->n, 3);
}

TEST_F(EventTest, AnEventIsOneLineOfJson) {
  const EventRecord record{.name = "x",
                           .wall = WallTime(Duration(5)),
                           .monotonic = Instant(Duration(7)),
                           .fields = {{"b", std::string("l1\nl2")}, {"a", 2.0}}};
  EXPECT_EQ(event_to_json(record),
            R"({"event":"x","wall_ns":5,"mono_ns":7,"b":"l1\nl2","a":2.0})");
}

TEST_F(EventTest, ValuesOfEveryKindReadBackExactly) {
  const std::vector<EventValue> values{int64_t{0},
                                       std::numeric_limits<int64_t>::max(),
                                       std::numeric_limits<int64_t>::min(),
                                       0.1,
                                       -0.0,
                                       3.0,
                                       5e-324,
                                       std::numeric_limits<double>::max(),
                                       HUGE_VAL,
                                       -HUGE_VAL,
                                       true,
                                       false,
                                       std::string(),
                                       std::string("inf"),
                                       std::string("\x1f\xc3\xa4")};
  for (const EventValue& value : values) {
    const EventRecord record{
        .name = "x", .wall = {}, .monotonic = {}, .fields = {{"v", value}}};
    EXPECT_EQ(*event_from_json(event_to_json(record), "x"), record)
        << event_to_json(record);
  }
}

TEST_F(EventTest, NotANumberReadsBackAsThat) {
  const EventRecord record{
      .name = "x", .wall = {}, .monotonic = {}, .fields = {{"v", std::nan("")}}};
  const EventRecord again = *event_from_json(event_to_json(record), "x");
  EXPECT_TRUE(std::isnan(std::get<double>(*again.find("v"))));
}

TEST_F(EventTest, TextThatIsNotUtf8IsMended) {
  const EventRecord record{.name = "x",
                           .wall = {},
                           .monotonic = {},
                           .fields = {{"v", std::string("a\xff")}}};
  const EventRecord again = *event_from_json(event_to_json(record), "x");
  EXPECT_EQ(std::get<std::string>(*again.find("v")), "a\xef\xbf\xbd");
}

TEST_F(EventTest, LinesThatAreNoEventsAreRefused) {
  for (const char* line :
       {"", "1", "{}", R"({"event":"x"})", R"({"event":"x","wall_ns":1,"mono_ns":"2"})",
        R"({"event":"x","wall_ns":1,"mono_ns":2,"v":null})",
        R"({"event":"x","wall_ns":1,"mono_ns":2,"v":[1]})",
        R"({"event":"x","wall_ns":1,"mono_ns":2,"~v":"big"})",
        R"({"event":"x","wall_ns":1,"mono_ns":2,"~event":"nan"})",
        R"({"event":"x","wall_ns":1,"mono_ns":2,"~~v":"nan"})",
        R"({"event":"x","wall_ns":1,"mono_ns":2,"v":1,"~v":"nan"})",
        R"({"event":"x","wall_ns":1,"mono_ns":2,"v":9223372036854775808})"}) {
    EXPECT_ERROR(event_from_json(line, "x"), ErrorCode::kInvalid);
  }
}

TEST_F(EventTest, TheFileHoldsEventsInOrderOverSeveralOpenings) {
  for (int64_t start : {0, 2}) {
    const auto sink = JsonLinesSink::open(env_, "e.jsonl").value();
    emit(*sink, env_, Tick{start});
    emit(*sink, env_, Tick{start + 1});
  }
  EXPECT_EQ(ticks(), (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(skipped_, 0);
}

TEST_F(EventTest, ATornLastLineIsIgnoredWhereverItIsTorn) {
  const auto sink = JsonLinesSink::open(env_, "e.jsonl").value();
  emit(*sink, env_, Tick{1});
  const int64_t whole = env_.info("e.jsonl")->size;
  emit(*sink, env_, Tick{2});
  const int64_t both = env_.info("e.jsonl")->size;
  const auto file = env_.open("e.jsonl", {.mode = OpenMode::kUpdate}).value();
  for (int64_t size = both - 2; size >= whole; --size) {
    ASSERT_OK(file->truncate(size));
    EXPECT_EQ(ticks(), std::vector<int64_t>{1});
    EXPECT_EQ(skipped_, size > whole ? 1 : 0);
  }
}

TEST_F(EventTest, AWriterAfterATornLineLosesNoEventOfItsOwn) {
  append_raw(R"({"event":"tick","wall)");
  const auto sink = JsonLinesSink::open(env_, "e.jsonl").value();
  emit(*sink, env_, Tick{5});
  emit(*sink, env_, Tick{6});
  EXPECT_EQ(ticks(), (std::vector<int64_t>{5, 6}));
  EXPECT_EQ(skipped_, 1);
}

TEST_F(EventTest, GarbageInTheMiddleIsSkippedAndCounted) {
  const auto sink = JsonLinesSink::open(env_, "e.jsonl").value();
  emit(*sink, env_, Tick{1});
  append_raw(std::string(512, '\0') + "\n\n[1]\n");
  emit(*sink, env_, Tick{2});
  EXPECT_EQ(ticks(), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(skipped_, 2);
}

TEST_F(EventTest, TheEventAfterAWriteThatFailedIsWhole) {
  FaultyEnv faulty(env_);
  const auto sink = JsonLinesSink::open(faulty, "e.jsonl").value();
  emit(*sink, env_, Tick{1});
  faulty.shorten_at(Op::kWrite, 1, 10);
  faulty.fail_at(Op::kWrite, 2, ErrorCode::kNoSpace);
  emit(*sink, env_, Tick{2});
  emit(*sink, env_, Tick{3});
  EXPECT_EQ(ticks(), (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(skipped_, 1);
}

TEST_F(EventTest, AFolderThatFailsToSyncFailsTheOpeningUnlessItNeverCan) {
  FaultyEnv faulty(env_);
  faulty.fail_at(Op::kSyncFolder, 1, ErrorCode::kIo);
  EXPECT_ERROR(JsonLinesSink::open(faulty, "e.jsonl"), ErrorCode::kIo);
  faulty.fail_at(Op::kSyncFolder, 1, ErrorCode::kUnsupported);
  EXPECT_OK(JsonLinesSink::open(faulty, "e.jsonl"));
}

TEST_F(EventTest, ThreadsDoNotMixTheirLines) {
  const auto sink = JsonLinesSink::open(env_, "e.jsonl").value();
  {
    std::vector<std::jthread> threads;
    for (int64_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int64_t i = 0; i < 100; ++i) emit(*sink, env_, Tick{100 * t + i});
      });
    }
  }
  std::vector<int64_t> seen = ticks();
  std::sort(seen.begin(), seen.end());
  ASSERT_EQ(seen.size(), 400u);
  for (int64_t i = 0; i < 400; ++i) EXPECT_EQ(seen[static_cast<size_t>(i)], i);
}

TEST_F(EventTest, AFileBeyondTheLimitIsRefused) {
  emit(*JsonLinesSink::open(env_, "e.jsonl").value(), env_, Tick{1});
  const int64_t size = env_.info("e.jsonl")->size;
  EXPECT_OK(read_events(env_, "e.jsonl", size));
  EXPECT_ERROR(read_events(env_, "e.jsonl", size - 1), ErrorCode::kInvalid);
}

TEST_F(EventTest, AFileThatIsNotThereIsNotFound) {
  EXPECT_ERROR(read_events(env_, "none"), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace holdfast
