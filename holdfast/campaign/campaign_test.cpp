// Tests campaigns with a real program: a small training in Python that needs nothing but
// Python itself.
#include "holdfast/campaign/campaign.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <fstream>
#include <limits>
#include <set>
#include <thread>

#include "holdfast/base/testing.h"
#include "holdfast/campaign/analysis.h"
#include "holdfast/contents/contents_testing.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/formats/format.h"
#include "holdfast/store/process.h"

namespace holdfast::campaign_test {
namespace {

// Moves weights towards 0.5 by gradient descent with momentum. The words after the files
// change what it does. With "serve" it serves trials.
constexpr const char* kTrain = R"(
import json, math, os, struct, sys, time

def load(path):
    data = open(path, "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    tensors = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            tensors[name] = list(struct.unpack(
                f"<{(end - begin) // 4}f", data[8 + size + begin:8 + size + end]))
    return tensors

def save(path, tensors):
    header, data = {}, b""
    for name, values in tensors.items():
        more = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": [len(values)],
                        "data_offsets": [len(data), len(data) + len(more)]}
        data += more
    text = json.dumps(header).encode()
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + data)

def single(number):
    try:
        return struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)

leaked = 0.0

def trial(checkpoint, log, state, how):
    global leaked
    tensors = load(checkpoint)
    weights, momentum = tensors["model.weight"], tensors["momentum_buffer"]
    if "hang" in how and max(map(abs, weights)) > 1e6:
        time.sleep(1000)
    if "refuse" in how and max(map(abs, weights)) > 1e6:
        raise ValueError("the checkpoint is damaged")
    if "path" in how and max(map(abs, weights)) > 1e6:
        raise ValueError("cannot read " + checkpoint)
    if "die" in how and max(map(abs, weights)) > 1e6:
        os.kill(os.getpid(), 9)
    if "random" in how:
        weights[0] = single(weights[0] + int.from_bytes(os.urandom(2), "big") * 1e-6)
    with open(log, "w") as out:
        for step in range(1, 9):
            gradient = [w - 0.5 + leaked for w in weights]
            loss = sum(g * g for g in gradient) / len(weights) - ("negative" in how)
            momentum = [single(0.5 * m + g) for m, g in zip(momentum, gradient)]
            weights = [single(w - 0.2 * m) for w, m in zip(weights, momentum)]
            accuracy = sum(abs(g) < 0.3 for g in gradient) / len(weights)
            out.write(json.dumps({"step": step, "loss": loss, "accuracy": accuracy}) + "\n")
    if "leak" in how and loss > 1e6:
        leaked = 1e-3
    if state:
        if "other state" in how:
            weights[1] = single(int.from_bytes(os.urandom(2), "big"))
        save(state, {"model.weight": weights, "momentum_buffer": momentum})

def serve(how):
    import socket
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ["HOLDFAST_CAMPAIGN"])
    connection.sendall(b'{"rank": 0, "ranks": 1}\n')
    for line in connection.makefile():
        ask = json.loads(line)
        try:
            trial(ask["checkpoint"], ask["log"], ask["state"], how)
            answer = {"done": ask["trial"]}
        except Exception as error:
            answer = {"failed": ask["trial"], "why": str(error)}
        connection.sendall((json.dumps(answer) + "\n").encode())

how = sys.argv[1]
if "serve" in how:
    serve(how)
else:
    trial(sys.argv[2], sys.argv[3], sys.argv[4] if len(sys.argv) > 4 else None, how)
)";

class CampaignTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (find_python().empty()) GTEST_SKIP() << "no python3 here";
    std::ofstream(root_ / "train.py") << kTrain;
    write_base("base.safetensors", 0.25f);
  }

  // The interpreter itself: python3 may be a script that looks for it each time.
  static const std::string& find_python() {
    static const std::string found = [] {
      std::string path;
      FILE* pipe =
          ::popen("python3 -c 'import sys; print(sys.executable, end=\"\")'", "r");
      for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) path += char(c);
      return ::pclose(pipe) == 0 ? path : "";
    }();
    return found;
  }

  void write_base(const std::string& name, float first) {
    std::vector<float> weights, other(16, 0.0f);
    for (int i = 0; i < 16; ++i) weights.push_back(first + 0.03f * float(i));
    const auto memory = [](const std::vector<float>& values) {
      const auto bytes = std::as_bytes(std::span(values));
      return tests::Memory(bytes.begin(), bytes.end());
    };
    const std::vector<Tensor> tensors{
        {.name = "model.weight", .dtype = Dtype::kF32, .shape = {16}},
        {.name = "momentum_buffer", .dtype = Dtype::kF32, .shape = {16}},
        {.name = "unused", .dtype = Dtype::kF32, .shape = {16}}};
    ASSERT_OK(write_file(
        *env_, root_ / name,
        tests::contents_with(tensors, {memory(weights), memory(other), memory(weights)})));
  }

  CampaignOptions options(const std::string& how = "plain", bool state = false) {
    CampaignOptions asked{.base = root_ / "base.safetensors", .folder = root_ / "out"};
    asked.trials = 4;
    // Python starts in half the time without its packages.
    asked.command = {find_python(), "-IS", root_ / "train.py", how, "{checkpoint}", "{log}"};
    if (state) asked.command.push_back("{state}");
    asked.state = state;
    return asked;
  }

  CampaignOptions served(const std::string& how = "plain") {
    CampaignOptions asked = options("serve " + how);
    asked.command.resize(4);
    asked.serve = true;
    return asked;
  }

  std::vector<TrialRecord> records(const char* folder = "out") {
    auto read = read_records(*env_, root_ / folder / kTrialsFile);
    EXPECT_OK(read);
    if (!read.ok()) return {};
    std::ranges::sort(*read, {}, &TrialRecord::trial);
    return std::move(*read);
  }

  // The records without times.
  std::vector<std::string> lines(const char* folder = "out") {
    std::vector<std::string> all;
    for (TrialRecord& record : records(folder)) {
      record.seconds = 0;
      all.push_back(encode_record(record));
    }
    return all;
  }

  void expect_refused(const CampaignOptions& asked, ErrorCode code,
                      const std::string& part) {
    const auto result = run_campaign(*env_, asked);
    EXPECT_ERROR(result, code);
    EXPECT_NE(message_of(result).find(part), std::string::npos) << message_of(result);
    EXPECT_EQ(message_of(result).find('\n'), std::string::npos);
    EXPECT_FALSE(env_->info(root_ / "out").ok()) << "nothing is left";
  }

  TempFolder temp_;
  const Path root_ = temp_.path();
  std::unique_ptr<Env> env_ = make_posix_env();
};

TEST_F(CampaignTest, TrialsAreRecordedWithTheirFlipsAndOutcomes) {
  CampaignOptions asked = options("plain", true);
  asked.request.sites.tensors = {"model.*"};
  asked.request.sites.bits = {.field = BitChoice::Field::kTopExponent};
  GoldenReport golden;
  int64_t progress = 0;
  const auto result = run_campaign(
      *env_, asked,
      {.golden = [&](const GoldenReport& report) { golden = report; },
       .progress = [&](int64_t done, int64_t) { progress = done; }});
  ASSERT_OK(result);
  EXPECT_EQ(result->done, 4);
  EXPECT_FALSE(result->stopped);
  EXPECT_EQ(golden.runs, 2);
  EXPECT_EQ(golden.steps, 8);
  EXPECT_GE(golden.deadline, 10);
  EXPECT_EQ(progress, 4);
  ASSERT_EQ(records().size(), 4u);
  for (const TrialRecord& record : records()) {
    EXPECT_EQ(record.outcome, Outcome::kNev) << record.why;
    ASSERT_EQ(record.flips.size(), 1u);
    EXPECT_EQ(record.flips[0].flip.tensor, "model.weight");
    EXPECT_EQ(set_bits(record.flips[0].flip.mask()), (std::vector{30}));
    EXPECT_EQ(record.flips[0].layer, "model");
    EXPECT_EQ(record.steps, 8);
    EXPECT_EQ(record.distance->size(), 2u);
    EXPECT_GT(record.distance->at("model.weight"), 1e6);
  }
  const auto names = env_->list(root_ / "out").value();
  EXPECT_EQ(names, (std::vector<std::string>{"campaign.json", "golden-state", "trials.jsonl"}));
}

TEST_F(CampaignTest, AFlipThatNobodyReadsIsMaskedAndALowBitIsBenign) {
  CampaignOptions asked = served();
  asked.state = true;
  asked.trials = 2;
  asked.request.sites.tensors = {"unused"};
  ASSERT_OK(run_campaign(*env_, asked));
  for (const TrialRecord& record : records()) {
    EXPECT_EQ(record.outcome, Outcome::kMasked) << record.why;
    EXPECT_EQ(record.distance->at("model.weight"), 0);
  }
  asked.folder = root_ / "low";
  asked.request.sites.tensors = {"model.weight"};
  asked.request.sites.bits = {.field = BitChoice::Field::kRanges, .ranges = {{2, 4}}};
  ASSERT_OK(run_campaign(*env_, asked));
  for (const TrialRecord& record : records("low")) {
    EXPECT_EQ(record.outcome, Outcome::kBenign) << record.why;
  }
}

TEST_F(CampaignTest, FailuresOfTheProgramAreOutcomes) {
  for (const auto& [how, outcome] :
       {std::pair{"hang", Outcome::kTimedOut}, std::pair{"refuse", Outcome::kRefused},
        std::pair{"die", Outcome::kCrashed}}) {
    CampaignOptions asked = options(how);
    asked.folder = root_ / how;
    asked.trials = 1;
    if (outcome == Outcome::kTimedOut) asked.deadline = 3;
    asked.request.sites.tensors = {"model.*"};
    asked.request.sites.bits = {.field = BitChoice::Field::kTopExponent};
    ASSERT_OK(run_campaign(*env_, asked));
    const auto recorded = records(how);
    ASSERT_EQ(recorded.size(), 1u);
    EXPECT_EQ(recorded[0].outcome, outcome) << how << ": " << recorded[0].why;
  }
  const auto pairs = analyse_pairs(*env_, root_ / "hang", root_ / "die");
  ASSERT_OK(pairs);
  EXPECT_EQ(pairs->timed_out_once, 1);
  EXPECT_EQ(pairs->deadline_a, 3);
  EXPECT_GE(pairs->deadline_b, 10);
}

TEST_F(CampaignTest, ACampaignHasTheSitesOfItsPlans) {
  CampaignOptions asked = options();
  asked.trials = 1;
  asked.request.sites.tensors = {"model.*"};
  asked.request.fault = {.kind = Fault::Kind::kBurst, .length = 4};
  ASSERT_OK(run_campaign(*env_, asked));
  const auto analysis = analyse_campaign(*env_, root_ / "out");
  ASSERT_OK(analysis);
  EXPECT_EQ(analysis->file.sites, 16 * 29);  // a burst of 4 bits has 29 places in 32
}

TEST_F(CampaignTest, WhatIsRecordedIsNotRepeatedAndTheRestIsTheSame) {
  CampaignOptions asked = options();
  ASSERT_OK(run_campaign(*env_, asked));
  asked.folder = root_ / "parts";
  asked.trials = 2;
  ASSERT_OK(run_campaign(*env_, asked));
  const std::string before = env_->read_text(root_ / "parts" / kTrialsFile).value();
  asked.trials = 4;
  const auto result = run_campaign(*env_, asked);
  ASSERT_OK(result);
  EXPECT_EQ(result->done, 2);
  EXPECT_EQ(result->golden.recorded, 2);
  EXPECT_EQ(result->golden.runs, 1);
  EXPECT_TRUE(env_->read_text(root_ / "parts" / kTrialsFile)->starts_with(before));
  EXPECT_EQ(lines("parts"), lines("out"));
}

TEST_F(CampaignTest, AKilledCampaignIsContinued) {
  CampaignOptions asked = options();
  ASSERT_OK(run_campaign(*env_, asked));
  asked.folder = root_ / "killed";
  const pid_t child = ::fork();
  if (child == 0) {
    const auto env = make_posix_env();
    (void)run_campaign(*env, asked);
    ::_exit(0);
  }
  const Path file = root_ / "killed" / kTrialsFile;
  for (int i = 0; i < 4000; ++i) {
    const auto text = env_->read_text(file);
    if (text.ok() && std::ranges::count(*text, '\n') >= 1) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  // As if the kill had come in the middle of a line.
  std::ofstream(file, std::ios::app) << "{\"trial\": 99, \"se";
  ASSERT_OK(run_campaign(*env_, asked));
  EXPECT_EQ(lines("killed"), lines("out"));
}

TEST_F(CampaignTest, ACampaignThatIsAskedToStopKeepsWhatItHas) {
  for (CampaignOptions asked : {options(), served()}) {
    asked.folder = root_ / (asked.serve ? "served" : "fresh");
    int trials = 0;
    const auto stopped = run_campaign(
        *env_, asked,
        {.progress = [&](int64_t, int64_t) { ++trials; },
         .stopped = [&] { return trials >= 3; }});
    ASSERT_OK(stopped);
    EXPECT_TRUE(stopped->stopped);
    EXPECT_GT(stopped->done, 0);
    EXPECT_LT(stopped->done, 4);
    const auto rest = run_campaign(*env_, asked);
    ASSERT_OK(rest);
    EXPECT_EQ(stopped->done + rest->done, 4);
  }
  EXPECT_EQ(lines("fresh"), lines("served"));
}

TEST_F(CampaignTest, AStopInsideAServedTrialKeepsTheTrialsThatTheGoldenRunConfirms) {
  const CampaignOptions asked = served();
  int trials = 0, looks = 0;
  int64_t waits = 0;
  // The first look is before the third trial, the second one is inside of it.
  const auto result =
      run_campaign(*env_, asked,
                   {.progress = [&](int64_t, int64_t) { ++trials; },
                    .stopped = [&] { return trials >= 2 && ++looks >= 2; },
                    .waits = [&](int64_t unchecked) { waits = unchecked; }});
  ASSERT_OK(result);
  EXPECT_TRUE(result->stopped);
  EXPECT_EQ(result->done, 3);
  EXPECT_EQ(waits, 2);
  EXPECT_EQ(records().size(), 3u);
}

// The process has ended, so nobody knows whether something had leaked.
TEST_F(CampaignTest, ASecondStopInsideAServedTrialLeavesUncheckedTrialsToDo) {
  CampaignOptions fresh = options("leak"), warm = served("leak");
  fresh.folder = root_ / "fresh";
  warm.folder = root_ / "warm";
  for (CampaignOptions* asked : {&fresh, &warm}) {
    asked->request.sites.tensors = {"model.*"};
    asked->request.sites.bits = {.field = BitChoice::Field::kRanges, .ranges = {{29, 30}}};
  }
  int trials = 0, looks = 0;
  const auto inside = [&] { return trials >= 2 && ++looks >= 2; };
  const auto result =
      run_campaign(*env_, warm,
                   {.progress = [&](int64_t, int64_t) { ++trials; },
                    .stopped = inside,
                    .stopped_again = inside});
  ASSERT_OK(result);
  EXPECT_TRUE(result->stopped);
  EXPECT_EQ(result->done, 0);
  EXPECT_TRUE(records("warm").empty());
  ASSERT_OK(run_campaign(*env_, warm));
  ASSERT_OK(run_campaign(*env_, fresh));
  EXPECT_EQ(lines("warm"), lines("fresh"));
}

TEST_F(CampaignTest, ASecondStopEndsTheGoldenRunThatChecks) {
  CampaignOptions asked = served();
  int trials = 0;
  const auto enough = [&] { return trials >= 2; };
  const auto result = run_campaign(*env_, asked,
                                   {.progress = [&](int64_t, int64_t) { ++trials; },
                                    .stopped = enough,
                                    .stopped_again = enough});
  ASSERT_OK(result);
  EXPECT_TRUE(result->stopped);
  EXPECT_EQ(result->done, 0);
  EXPECT_TRUE(records().empty());
}

TEST_F(CampaignTest, TheFolderOfACampaignIsNoReasonForARefusal) {
  for (CampaignOptions asked : {options("path"), served("path")}) {
    asked.folder = root_ / (asked.serve ? "damaged" : "corrupted");
    asked.trials = 1;
    asked.request.sites.tensors = {"model.*"};
    asked.request.sites.bits = {.field = BitChoice::Field::kTopExponent};
    ASSERT_OK(run_campaign(*env_, asked));
    const auto seen = records(asked.folder.filename().c_str());
    ASSERT_EQ(seen.size(), 1u);
    EXPECT_EQ(seen[0].outcome, Outcome::kCrashed) << seen[0].why;
    EXPECT_NE(seen[0].why.find("cannot read {checkpoint}"), std::string::npos)
        << seen[0].why;
  }
}

TEST_F(CampaignTest, LossesOfZeroAndBelowAreRefused) {
  expect_refused(options("negative"), ErrorCode::kInvalid,
                 "the golden run: step 1: loss is -0.");
}

TEST_F(CampaignTest, WhatAKilledCallHasLeftIsRemoved) {
  const Path out = root_ / "out";
  CampaignOptions asked = options("plain", true);
  asked.trials = 1;
  const auto leave = [&] {
    ASSERT_OK(env_->create_folders(out / "work.0123456789abcdef"));
    for (const char* name :
         {"running", "running.0123456789abcdef.tmp", "campaign.json.0123456789abcdef.tmp",
          "work.0123456789abcdef/log.jsonl"}) {
      ASSERT_OK(env_->write_file(out / name, bytes_of("1 2")));
    }
  };
  leave();
  ASSERT_OK(env_->write_file(out / "golden-state", bytes_of("x")));
  const std::vector<std::string> wanted{"campaign.json", "golden-state", "trials.jsonl"};
  ASSERT_OK(run_campaign(*env_, asked));
  EXPECT_EQ(env_->list(out).value(), wanted);
  leave();
  ASSERT_OK(run_campaign(*env_, asked));
  EXPECT_EQ(env_->list(out).value(), wanted);
}

// A program whose campaign was killed may still write into the old work folder.
TEST_F(CampaignTest, EveryCallHasAWorkFolderOfItsOwn) {
  CampaignOptions asked = served();
  asked.trials = 1;
  std::set<std::string> seen;
  for (int call = 0; call < 2; ++call) {
    ASSERT_OK(run_campaign(*env_, asked, {.golden = [&](const GoldenReport&) {
                             const auto names = env_->list(root_ / "out").value();
                             for (const std::string& name : names) {
                               if (name.starts_with("work")) seen.insert(name);
                             }
                           }}));
  }
  EXPECT_EQ(seen.size(), 2u);
}

TEST_F(CampaignTest, ServedTrialsAreEqualToThoseInNewProcesses) {
  CampaignOptions fresh = options("plain"), warm = served("plain");
  fresh.folder = root_ / "fresh";
  warm.folder = root_ / "warm";
  fresh.trials = warm.trials = 5;
  warm.golden_every = 3;
  ASSERT_OK(run_campaign(*env_, fresh));
  const auto result = run_campaign(*env_, warm);
  ASSERT_OK(result);
  EXPECT_EQ(result->repeated, 0);
  EXPECT_EQ(lines("warm"), lines("fresh"));
}

// After a trial with a huge loss this program computes something else.
TEST_F(CampaignTest, TrialsAfterALeakAreRepeatedInNewProcesses) {
  CampaignOptions fresh = options("leak"), warm = served("leak");
  fresh.folder = root_ / "fresh";
  warm.folder = root_ / "warm";
  fresh.trials = warm.trials = 5;
  for (CampaignOptions* asked : {&fresh, &warm}) {
    asked->request.sites.tensors = {"model.*"};
    asked->request.sites.bits = {.field = BitChoice::Field::kRanges, .ranges = {{29, 30}}};
  }
  warm.golden_every = 3;
  ASSERT_OK(run_campaign(*env_, fresh));
  const auto result = run_campaign(*env_, warm);
  ASSERT_OK(result);
  EXPECT_GT(result->repeated, 0);
  EXPECT_EQ(lines("warm"), lines("fresh"));
}

TEST_F(CampaignTest, AServedTrialThatKillsItsProcessIsRepeatedAlone) {
  CampaignOptions fresh = options("die"), warm = served("die");
  fresh.folder = root_ / "fresh";
  warm.folder = root_ / "warm";
  for (CampaignOptions* asked : {&fresh, &warm}) {
    asked->request.sites.tensors = {"model.*"};
    asked->request.sites.bits = {.field = BitChoice::Field::kRanges, .ranges = {{29, 30}}};
  }
  ASSERT_OK(run_campaign(*env_, fresh));
  ASSERT_OK(run_campaign(*env_, warm));
  const auto outcomes = [&](const char* folder) {
    std::vector<std::string> all;
    for (const TrialRecord& record : records(folder)) {
      all.emplace_back(name_of(record.outcome));
    }
    return all;
  };
  EXPECT_EQ(outcomes("warm"), outcomes("fresh"));
  EXPECT_GT(std::ranges::count(outcomes("warm"), "crashed"), 0);
}

TEST_F(CampaignTest, GoldenRunsThatDifferAreNamedAndNothingIsLeft) {
  expect_refused(options("random"), ErrorCode::kUnavailable,
                 "the golden runs differ: step 1: loss is ");
  expect_refused(options("other state", true), ErrorCode::kUnavailable,
                 "the golden runs differ: state: model.weight differs, in 1 elements");
}

TEST_F(CampaignTest, WrongCallsAreRefusedAndNothingIsTouched) {
  CampaignOptions asked = options();
  asked.command.erase(asked.command.begin() + 4);
  expect_refused(asked, ErrorCode::kInvalid, "does not name {checkpoint}");
  asked = options();
  asked.command.pop_back();
  expect_refused(asked, ErrorCode::kInvalid, "does not name {log}");
  asked = options();
  asked.state = true;
  expect_refused(asked, ErrorCode::kInvalid, "does not name {state}");
  asked = options();
  asked.command[0] = "no-such-program";
  expect_refused(asked, ErrorCode::kNotFound, "no-such-program: cannot be started");
  asked = options();
  asked.command.clear();
  expect_refused(asked, ErrorCode::kInvalid, "no command");
  asked = options();
  asked.request.sites.tensors = {"conv9"};
  expect_refused(asked, ErrorCode::kNotFound, "conv9: no tensor has such a name");
  asked = options();
  asked.trials = 0;
  expect_refused(asked, ErrorCode::kInvalid, "0 trials");
  asked = options();
  asked.thresholds.spiked_loss = 0.5;
  expect_refused(asked, ErrorCode::kInvalid, "thresholds");
  asked = options();
  asked.thresholds.extreme_loss = std::numeric_limits<double>::infinity();
  expect_refused(asked, ErrorCode::kInvalid, "thresholds: N-EV above inf x");
  asked = options();
  asked.base = root_ / "none.pt";
  expect_refused(asked, ErrorCode::kNotFound, "none.pt");
  asked = options();
  asked.fixing = Fixing::kSealed;
  expect_refused(asked, ErrorCode::kInvalid, "has no seals");
  asked = options();
  asked.command[2] = root_ / "no.py";
  expect_refused(asked, ErrorCode::kUnavailable, "the golden run failed: exit code 2");
  asked = served();
  asked.command[2] = root_ / "no.py";
  expect_refused(asked, ErrorCode::kUnavailable,
                 "the golden run failed: the process ended with exit code 2");
}

TEST_F(CampaignTest, APlanOfAnotherFileIsRefused) {
  write_base("other.safetensors", 0.75f);
  const auto other = open_file(*env_, root_ / "other.safetensors");
  ASSERT_OK(other);
  CampaignOptions asked = options();
  asked.plans = {make_plan(*other, {.seed = 1}).value()};
  asked.trials = 1;
  asked.plans[0].flips[0].before[0] ^= std::byte{1};
  asked.plans[0].flips[0].after[0] ^= std::byte{1};
  expect_refused(asked, ErrorCode::kConflict, "as in the plan");
  asked.trials = 2;
  expect_refused(asked, ErrorCode::kInvalid, "2 trials with 1 plans");
}

TEST_F(CampaignTest, GivenPlansAreCarriedOut) {
  const auto base = open_file(*env_, root_ / "base.safetensors");
  ASSERT_OK(base);
  CampaignOptions asked = served();
  for (int64_t i = 0; i < 3; ++i) {
    asked.plans.push_back(make_plan(*base, {.seed = 9, .trial = 2 - i}).value());
  }
  asked.trials = 3;
  ASSERT_OK(run_campaign(*env_, asked));
  const auto seen = records();
  ASSERT_EQ(seen.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(seen[i].flips[0].flip.element, asked.plans[i].flips[0].element);
    EXPECT_EQ(seen[i].flips[0].flip.after, asked.plans[i].flips[0].after);
  }
}

TEST_F(CampaignTest, AFolderOfSomethingElseIsRefusedAndStaysAsItIs) {
  CampaignOptions asked = served();
  asked.trials = 1;
  ASSERT_OK(env_->create_folder(root_ / "mine"));
  ASSERT_OK(env_->write_file(root_ / "mine" / "thesis.txt", bytes_of("x")));
  asked.folder = root_ / "mine";
  const auto refused = run_campaign(*env_, asked);
  EXPECT_ERROR(refused, ErrorCode::kConflict);
  EXPECT_NE(message_of(refused).find("holds thesis.txt and is no campaign"),
            std::string::npos);
  EXPECT_EQ(env_->list(root_ / "mine").value(),
            (std::vector<std::string>{"thesis.txt"}));
  asked.folder = root_ / "out";
  ASSERT_OK(run_campaign(*env_, asked));
  const std::string before = env_->read_text(root_ / "out" / kTrialsFile).value();
  CampaignOptions other = asked;
  other.request.seed = 5;
  EXPECT_NE(message_of(run_campaign(*env_, other)).find("seed \"0\", not \"5\""),
            std::string::npos);
  other = asked;
  other.thresholds.degraded_loss = 1.5;
  EXPECT_ERROR(run_campaign(*env_, other), ErrorCode::kConflict);
  other = asked;
  other.deadline = 1000;
  EXPECT_NE(message_of(run_campaign(*env_, other)).find("with a deadline of"),
            std::string::npos);
  other = asked;
  other.command[3] = "hang";
  EXPECT_NE(message_of(run_campaign(*env_, other)).find("another command"),
            std::string::npos);
  write_base("other.safetensors", 0.75f);
  other = asked;
  other.base = root_ / "other.safetensors";
  EXPECT_NE(message_of(run_campaign(*env_, other)).find("another base"),
            std::string::npos);
  EXPECT_EQ(env_->read_text(root_ / "out" / kTrialsFile).value(), before);
}

TEST_F(CampaignTest, TheAnalysisCountsAndPredicts) {
  CampaignOptions asked = served();
  asked.trials = 24;
  asked.request.sites.tensors = {"model.*"};
  ASSERT_OK(run_campaign(*env_, asked));
  const auto analysis = analyse_campaign(*env_, root_ / "out");
  ASSERT_OK(analysis);
  EXPECT_EQ(analysis->trials, 24);
  int64_t outcomes = 0, nev = 0, in_groups = 0;
  for (const auto& [outcome, rate] : analysis->outcomes) outcomes += rate.count;
  EXPECT_EQ(outcomes, 24);
  for (const TrialGroup& group : analysis->by_bit) {
    in_groups += group.nev.total;
    if (group.name != "F32 bit 30") continue;
    nev = group.nev.count;
    EXPECT_EQ(group.nev.count, group.nev.total);
  }
  EXPECT_EQ(in_groups, 24);
  EXPECT_EQ(nev, analysis->outcomes[size_t(Outcome::kNev)].rate.count);
  ASSERT_TRUE(analysis->file.predicted);
  EXPECT_NEAR(*analysis->file.predicted, 1.0 / 32, 1e-12);
  EXPECT_EQ(analysis->file.sites, 16 * 32);
  ASSERT_EQ(analysis->by_role.size(), 1u);
  EXPECT_EQ(analysis->by_role[0].name, "parameter");
}

TEST_F(CampaignTest, PairsOfTheSamePlansAreComparedAndOthersRefused) {
  CampaignOptions asked = served();
  asked.state = true;
  asked.trials = 6;
  asked.request.sites.tensors = {"model.*"};
  ASSERT_OK(run_campaign(*env_, asked));
  asked.folder = root_ / "again";
  ASSERT_OK(run_campaign(*env_, asked));
  asked.folder = root_ / "other";
  asked.request.seed = 1;
  ASSERT_OK(run_campaign(*env_, asked));
  const auto pairs = analyse_pairs(*env_, root_ / "out", root_ / "again");
  ASSERT_OK(pairs);
  EXPECT_EQ(pairs->harm.total(), 6);
  EXPECT_EQ(pairs->equal, 6);
  EXPECT_EQ(pairs->difference, 0);
  EXPECT_EQ(pairs->p, 1);
  ASSERT_EQ(pairs->distances.size(), 2u);
  EXPECT_EQ(pairs->distances[0].log_ratio.median, 0);
  EXPECT_ERROR(analyse_pairs(*env_, root_ / "out", root_ / "other"),
               ErrorCode::kConflict);
  asked.thresholds.spiked_loss = 3;
  asked.trials = 1;
  asked.folder = root_ / "lenient";
  ASSERT_OK(run_campaign(*env_, asked));
  EXPECT_NE(message_of(analyse_pairs(*env_, root_ / "other", root_ / "lenient"))
                .find("have the thresholds"),
            std::string::npos);
  const std::vector<Path> twice{root_ / "out", root_ / "again"};
  EXPECT_NE(message_of(analyse_strata(*env_, twice)).find("are the same stratum"),
            std::string::npos);
  write_base("other.safetensors", 0.75f);
  asked.base = root_ / "other.safetensors";
  asked.thresholds = {};
  asked.folder = root_ / "elsewhere";
  ASSERT_OK(run_campaign(*env_, asked));
  const std::vector<Path> bases{root_ / "out", root_ / "elsewhere"};
  EXPECT_NE(message_of(analyse_strata(*env_, bases)).find("have different bases"),
            std::string::npos);
  const std::vector<Path> both{root_ / "out", root_ / "other"};
  const auto strata = analyse_strata(*env_, both);
  ASSERT_OK(strata);
  EXPECT_EQ(strata->trials, 12);
  EXPECT_ERROR(analyse_campaign(*env_, root_ / "none"), ErrorCode::kNotFound);
}

TEST_F(CampaignTest, TwoProcessesDoNotShareAFolder) {
  CampaignOptions asked = served();
  asked.trials = 1;
  ASSERT_OK(run_campaign(*env_, asked));
  const auto self = this_process(*env_);
  ASSERT_OK(self);
  const auto run_with_mark = [&](int64_t pid, const std::string& boot,
                                 const std::string& host) {
    const std::string mark =
        fmt::format("{} {} {} {}\n", pid, self->started, boot, host);
    EXPECT_OK(env_->write_file(root_ / "out" / "running", bytes_of(mark)));
    return message_of(run_campaign(*env_, asked));
  };
  EXPECT_NE(run_with_mark(self->pid, self->boot, self->host).find("works in it"),
            std::string::npos);
  EXPECT_NE(run_with_mark(1, self->boot, "elsewhere").find("process 1 on elsewhere"),
            std::string::npos);
  EXPECT_EQ(run_with_mark(999999, self->boot, self->host), "");
  EXPECT_EQ(run_with_mark(self->pid, "another-boot", self->host), "");
  // A mark that was not written as a whole.
  ASSERT_OK(env_->write_file(root_ / "out" / "running", bytes_of("12 3")));
  EXPECT_OK(run_campaign(*env_, asked));
}

}  // namespace
}  // namespace holdfast::campaign_test
