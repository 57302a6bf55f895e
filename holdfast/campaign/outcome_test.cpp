// Tests the logs of trainings, the outcomes of recorded curves, and the records of
// trials.
#include "holdfast/campaign/outcome.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "holdfast/base/testing.h"
#include "holdfast/campaign/state_distance.h"
#include "holdfast/campaign/trial_record.h"
#include "holdfast/contents/contents_testing.h"
#include "holdfast/env/memory_env.h"

namespace holdfast::outcome_test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A curve: the accuracy after loading, the losses from step 1 on, the last accuracy.
TrainingLog curve(double before, const std::vector<double>& losses, double after) {
  TrainingLog log{{{.step = 0, .metrics = {{"accuracy", before}}}}};
  for (const double loss : losses) {
    log.lines.push_back({.step = std::ssize(log.lines), .metrics = {{"loss", loss}}});
  }
  log.lines.back().metrics["accuracy"] = after;
  return log;
}

TrainingLog golden() { return curve(0.90, {0.4, 0.3, 0.25, 0.2}, 0.95); }

std::string outcome_of(const TrainingLog& log, bool same_state = true,
                       const TrialEnd& end = {}, const Thresholds& limits = {}) {
  return std::string(name_of(judge(end, log, golden(), same_state, limits).outcome));
}

TEST(OutcomeTest, RecordedCurvesHaveTheirOutcomes) {
  EXPECT_EQ(outcome_of(golden()), "masked");
  EXPECT_EQ(outcome_of(golden(), false), "benign");
  EXPECT_EQ(outcome_of(curve(0.90, {0.4, 0.31, 0.25, 0.2}, 0.95)), "benign");
  EXPECT_EQ(outcome_of(curve(0.10, {0.4, 0.3, 0.25, 0.2}, 0.95)), "benign");
  EXPECT_EQ(outcome_of(curve(0.90, {0.9, 0.5, 0.25, 0.21}, 0.94)), "spiked");
  EXPECT_EQ(outcome_of(curve(0.90, {0.9, 0.5, 0.4, 0.23}, 0.94)), "degraded");
  EXPECT_EQ(outcome_of(curve(0.90, {0.4, 0.3, 0.25, 0.2}, 0.90)), "degraded");
  EXPECT_EQ(outcome_of(curve(0.90, {0.4, 0.3, 0.25, 0.2}, 0.9001)), "benign");
  EXPECT_EQ(outcome_of(curve(0.90, {0.4, kNaN, 0.25, 0.2}, 0.95)), "N-EV");
  EXPECT_EQ(outcome_of(curve(0.90, {0.4, -kInfinity, 0.25, 0.2}, 0.95)), "N-EV");
  EXPECT_EQ(outcome_of(curve(0.90, {401, 0.3, 0.25, 0.2}, 0.95)), "N-EV");
  EXPECT_EQ(outcome_of(curve(0.90, {399, 0.3, 0.25, 0.2}, 0.95)), "spiked");
  EXPECT_EQ(outcome_of(curve(0.90, {0.4, 0.3}, 0.95)), "crashed");
}

TEST(OutcomeTest, AGoldenRunHasLossesAboveZero) {
  EXPECT_OK(check_losses(golden()));
  EXPECT_OK(check_losses(curve(0.90, {0.4, kNaN, kInfinity}, 0.95)));
  for (const double loss : {0.0, -0.5}) {
    const auto refused = check_losses(curve(0.90, {0.4, loss}, 0.95));
    EXPECT_ERROR(refused, ErrorCode::kInvalid);
    EXPECT_TRUE(message_of(refused).starts_with(fmt::format("step 2: loss is {};", loss)));
  }
}

TEST(OutcomeTest, ThresholdsAreWhatTheCallerSays) {
  const TrainingLog spiked = curve(0.90, {0.9, 0.5, 0.25, 0.21}, 0.94);
  EXPECT_EQ(outcome_of(spiked, true, {}, {.spiked_loss = 3}), "benign");
  EXPECT_EQ(outcome_of(spiked, true, {}, {.degraded_accuracy = 1}), "degraded");
  EXPECT_EQ(outcome_of(spiked, true, {}, {.degraded_loss = 1.01}), "degraded");
  EXPECT_EQ(outcome_of(spiked, true, {}, {.extreme_loss = 2}), "N-EV");
  EXPECT_EQ(to_string(Thresholds{}),
            "N-EV above 1000 x, degraded from 5 points or above 1.1 x, spiked above 2 "
            "x");
}

TEST(OutcomeTest, AMetricThatIsNeverFiniteInTheGoldenRunTellsNothing) {
  TrainingLog normal = golden();
  normal.lines[1].metrics["scale"] = kInfinity;
  TrainingLog other = normal;
  other.lines[2].metrics["loss"] = 0.31;
  EXPECT_EQ(judge({}, other, normal, true, {}).outcome, Outcome::kBenign);
}

TEST(OutcomeTest, FailuresComeBeforeWhatWasLogged) {
  using Kind = TrialEnd::Kind;
  const TrainingLog bad = curve(0.90, {kNaN}, 0.95);
  const TrialEnd killed{.kind = Kind::kFailed, .how = "signal 11"};
  EXPECT_EQ(outcome_of(bad, true, killed), "crashed");
  EXPECT_EQ(outcome_of(bad, true, {.kind = Kind::kTimedOut}), "timed out");
}

TEST(OutcomeTest, ARefusalIsAnExitCodeOrAWordBeforeTheFirstLine) {
  using Kind = TrialEnd::Kind;
  const auto outcome = [&](int code, const char* said, const TrainingLog& log = {}) {
    return outcome_of(log, true, {.kind = Kind::kFailed, .code = code, .said = said});
  };
  EXPECT_EQ(outcome(3, ""), "refused");
  EXPECT_EQ(outcome(3, "", golden()), "refused");
  for (const char* said :
       {"holdfast.errors.CorruptError: base.pt: record 3", "zipfile.BadZipFile: Bad CRC-32",
        "tensorflow DataLossError: Checksum does not match", "file is damaged",
        "RuntimeError: PytorchStreamReader failed reading zip archive",
        "zlib.error: Error -3 while decompressing data: incorrect data check"}) {
    EXPECT_EQ(outcome(1, said), "refused") << said;
    EXPECT_EQ(outcome(1, said, golden()), "crashed") << said;
  }
  EXPECT_EQ(outcome(1, "ValueError: step must be positive"), "crashed");
  EXPECT_EQ(outcome(0, ""), "crashed");
}

TEST(OutcomeTest, TheReasonIsTheLastLineThatWasSaid) {
  const TrialEnd end{.kind = TrialEnd::Kind::kFailed,
                     .code = 1,
                     .how = "exit code 1",
                     .said = "Traceback:\n  line\nValueError: too large\n\n"};
  EXPECT_EQ(judge(end, {}, golden(), true, {}).why,
            "exit code 1: ValueError: too large");
}

TEST(OutcomeTest, NamesAreReadBack) {
  for (const Outcome outcome : kAllOutcomes) {
    EXPECT_EQ(parse_outcome(name_of(outcome)).value(), outcome);
  }
  EXPECT_ERROR(parse_outcome("fine"), ErrorCode::kInvalid);
  EXPECT_TRUE(is_harm(Outcome::kDegraded));
  EXPECT_FALSE(is_harm(Outcome::kSpiked));
}

TEST(TrainingLogTest, LinesOfPythonAreRead) {
  const auto log = parse_log(
      "{\"step\": 0, \"accuracy\": 0.5}\n\n"
      "{\"step\": 1, \"loss\": NaN, \"note\": \"a \\\"NaN\\\" here\", \"ok\": true}\r\n"
      "{\"step\": 2, \"loss\": -Infinity, \"other\": Infinity, \"null\": null}\n"
      "{\"step\": 3, \"loss\": \"inf\"}\n",
      "log", false);
  ASSERT_OK(log);
  ASSERT_EQ(log->lines.size(), 4u);
  EXPECT_EQ(log->after_loading("accuracy"), 0.5);
  EXPECT_FALSE(log->after_loading("loss")) << "that is of step 1";
  EXPECT_TRUE(std::isnan(*log->lines[1].metric("loss")));
  EXPECT_FALSE(log->lines[1].metric("note"));
  EXPECT_FALSE(log->lines[1].metric("ok"));
  EXPECT_EQ(log->lines[2].metric("loss"), -kInfinity);
  EXPECT_EQ(log->lines[2].metric("other"), kInfinity);
  EXPECT_TRUE(std::isnan(*log->lines[2].metric("null")));
  EXPECT_EQ(log->last("loss"), kInfinity);
  EXPECT_EQ(log->last_step(), 3);
}

TEST(TrainingLogTest, WhatIsNoLineIsRefusedByItsNumber) {
  const auto message = [](const char* text, bool torn = false) {
    return message_of(parse_log(text, "log", torn));
  };
  EXPECT_TRUE(message("{\"step\": 1}\nhello\n").starts_with("log: line 2")) << message("x");
  EXPECT_TRUE(message("{\"loss\": 1}\n").starts_with("log: line 1"));
  EXPECT_TRUE(message("[1]\n").starts_with("log: line 1"));
  EXPECT_EQ(message("{\"step\": 1, \"accuracy\": 93.5}\n"),
            "log: line 1: accuracy is 93.5; expected a fraction from 0 to 1");
  EXPECT_NE(message("{\"step\": 1}\n{\"st"), "");
  EXPECT_EQ(message("{\"step\": 1}\n{\"st", true), "");
  EXPECT_NE(message("{\"st\n{\"step\": 1}\n", true), "");
}

TEST(TrainingLogTest, TheFirstDifferenceIsNamed) {
  TrainingLog other = golden();
  EXPECT_EQ(first_difference(golden(), other), std::nullopt);
  other.lines[3].metrics["loss"] = std::nextafter(0.25, 1);
  EXPECT_EQ(first_difference(golden(), other),
            "step 3: loss is 0.25 against 0.25000000000000006");
  other = golden();
  other.lines[4].metrics.erase("accuracy");
  EXPECT_EQ(first_difference(golden(), other),
            "step 4: accuracy is 0.95 against missing");
  other = golden();
  other.lines.pop_back();
  EXPECT_EQ(first_difference(golden(), other), "5 lines against 4 lines");
  TrainingLog nan = golden();
  nan.lines[1].metrics["loss"] = kNaN;
  other = golden();
  other.lines[1].metrics["loss"] = -kNaN;
  EXPECT_EQ(first_difference(nan, other), std::nullopt);
  nan.lines[1].metrics["loss"] = 0.0;
  other.lines[1].metrics["loss"] = -0.0;
  EXPECT_NE(first_difference(nan, other), std::nullopt);
}

TEST(StateDistanceTest, DistancesAreRelativeNorms) {
  const std::vector<Tensor> tensors{{.name = "a", .dtype = Dtype::kF32, .shape = {2}},
                                    {.name = "zero", .dtype = Dtype::kF32, .shape = {1}},
                                    {.name = "i", .dtype = Dtype::kI64, .shape = {}}};
  const auto memory = [](auto... numbers) {
    const std::array values{numbers...};
    const auto bytes = std::as_bytes(std::span(values));
    return tests::Memory(bytes.begin(), bytes.end());
  };
  const Contents wanted =
      tests::contents_with(tensors, {memory(3.0f, 4.0f), memory(0.0f), memory(10L)});
  const Contents seen =
      tests::contents_with(tensors, {memory(3.0f, 4.5f), memory(0.0f), memory(15L)});
  const auto same = distance_between(wanted, wanted);
  ASSERT_OK(same);
  EXPECT_TRUE(same->equal);
  EXPECT_EQ(same->relative.at("a"), 0);
  const auto distance = distance_between(wanted, seen);
  ASSERT_OK(distance);
  EXPECT_FALSE(distance->equal);
  EXPECT_DOUBLE_EQ(distance->relative.at("a"), 0.1);
  EXPECT_EQ(distance->relative.at("zero"), 0);
  EXPECT_DOUBLE_EQ(distance->relative.at("i"), 0.5);
  const auto nan = distance_between(
      wanted, tests::contents_with(tensors, {memory(float(kNaN), 4.0f), memory(1.0f),
                                             memory(10L)}));
  ASSERT_OK(nan);
  EXPECT_TRUE(std::isnan(nan->relative.at("a")));
  EXPECT_EQ(nan->relative.at("zero"), kInfinity);
  EXPECT_ERROR(distance_between(wanted, tests::contents_with({tensors[0]}, {memory(3.0f, 4.0f)})),
               ErrorCode::kInvalid);
}

TrialRecord full_record() {
  TrialRecord record{.trial = 7, .seed = 3, .outcome = Outcome::kTimedOut};
  RecordedFlip flip{.role = Role::kSlot, .layer = "model.conv1"};
  flip.flip = {.tensor = "opt \"q\"\n", .element = 5, .dtype = Dtype::kBf16};
  flip.flip.after[1] = std::byte{0x40};
  record.flips = {flip};
  record.bytes = {{"a.pt", 70, std::byte{0x50}, std::byte{0x58}}};
  record.steps = 12;
  record.final_loss = kInfinity;
  record.first_accuracy = 0.25;
  record.seconds = 1.5;
  record.why = "did not end";
  record.distance = {{"w", 0.5}, {"v", kInfinity}};
  return record;
}

TEST(TrialRecordTest, ALineIsReadBack) {
  const std::string line = encode_record(full_record());
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto read = decode_record(line, "here");
  ASSERT_OK(read);
  EXPECT_EQ(encode_record(*read), line);
  EXPECT_EQ(read->flips, full_record().flips);
  EXPECT_EQ(read->bytes, full_record().bytes);
  EXPECT_EQ(read->final_loss, kInfinity);
  EXPECT_FALSE(read->final_accuracy);
  EXPECT_EQ(read->distance, full_record().distance);
}

TEST(TrialRecordTest, ALineSaysBeforeAndAfterAsAPlanDoesAndEarlierOnesAreRead) {
  std::string line = encode_record(full_record());
  EXPECT_NE(line.find("\"before\":\"0000\",\"after\":\"4000\""), std::string::npos);
  EXPECT_NE(line.find("\"before\":\"50\",\"after\":\"58\""), std::string::npos);
  for (const auto& [name, earlier] : {std::pair{"\"before\"", "\"old\""},
                                      std::pair{"\"after\"", "\"new\""}}) {
    for (size_t at = 0; (at = line.find(name)) != line.npos;) {
      line.replace(at, std::string(name).size(), earlier);
    }
  }
  const auto read = decode_record(line, "here");
  ASSERT_OK(read);
  EXPECT_EQ(read->flips, full_record().flips);
  EXPECT_EQ(read->bytes, full_record().bytes);
}

// From tests/fixtures/runs/before_folding.tar.xz.
TEST(TrialRecordTest, ALineOfEarlierCodeIsWrittenAgainByteByByte) {
  const std::string line =
      R"({"trial":0,"seed":3,"flips":[{"tensor":"model.line","role":"parameter","role_guessed":true,"layer":"model","element":0,"dtype":"F32","bits":[28],"mask":"10000000","before":"3e800000","after":"2e800000"}],"outcome":"degraded","steps":12,"final_loss":0.682036628879375,"final_accuracy":null,"first_accuracy":null,"seconds":0.001316263,"why":"loss ends at 0.682, golden 0.5753","distance":{"model.line":0.06053435633563039}})";
  EXPECT_EQ(encode_record(*decode_record(line, "older")), line);
}

TEST(TrialRecordTest, WhatIsNoRecordIsRefusedWithItsPlace) {
  const std::string line = encode_record(full_record());
  for (const char* part : {"\"trial\"", "\"outcome\"", "timed out", "slot", "BF16"}) {
    std::string broken = line;
    broken.replace(broken.find(part) + 1, 2, "XX");
    const auto read = decode_record(broken, "f: line 4");
    EXPECT_ERROR(read, ErrorCode::kInvalid);
    EXPECT_TRUE(message_of(read).starts_with("f: line 4")) << message_of(read);
  }
  for (const char* text : {"", "[]", "{}", "null", "{\"trial\": 1"}) {
    EXPECT_ERROR(decode_record(text, "f"), ErrorCode::kInvalid);
  }
}

TEST(TrialRecordTest, AnIncompleteLastLineIsRemoved) {
  MemoryEnv env;
  ASSERT_OK(TrialFile::open(env, "t")->add({full_record(), full_record()}));
  std::string text = env.read_text("t").value();
  ASSERT_OK(env.write_file("t", bytes_of(text + "{\"trial\": 9, \"fl")));
  EXPECT_EQ(read_records(env, "t")->size(), 2u);
  auto file = TrialFile::open(env, "t");
  ASSERT_OK(file);
  EXPECT_EQ(file->records().size(), 2u);
  ASSERT_OK(file->add({full_record()}));
  EXPECT_EQ(env.read_text("t").value(), text + encode_record(full_record()) + "\n");
}

TEST(TrialRecordTest, AddedRecordsSurviveALossOfPower) {
  MemoryEnv env;
  auto file = TrialFile::open(env, "t");
  ASSERT_OK(file);
  ASSERT_OK(file->add({full_record()}));
  const auto later = env.after_crash({});
  EXPECT_EQ(read_records(*later, "t")->size(), 1u);
}

}  // namespace
}  // namespace holdfast::outcome_test
