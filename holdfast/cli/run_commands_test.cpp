// Tests the verbs that read runs, on a real disk.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>

#include "holdfast/base/json.h"
#include "holdfast/checkpoint/checkpoint_testing.h"
#include "holdfast/checkpoint/step_files.h"
#include "holdfast/cli/cli_testing.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/store/run.h"

namespace holdfast::tests {
namespace {

constexpr int64_t kMiB = 1 << 20;

std::vector<Tensor> tensors() {
  return {{.name = "big", .dtype = Dtype::kF32, .shape = {600, 1000}},
          {.name = "small", .dtype = Dtype::kU8, .shape = {100}}};
}

class RunCommandsTest : public ::testing::Test {
 protected:
  Ran run(const std::string& line) { return run_line(*env_, line); }
  Json json(const std::string& line) {
    const Ran ran = run(line + " --json");
    EXPECT_LE(ran.code, 3) << ran.err;
    return parse_json(ran.out, "out").value();
  }

  void save(int64_t step, std::optional<double> loss = 1, Object objects = {}) {
    std::map<std::string, double> metrics;
    if (loss) metrics["loss"] = *loss;
    Dice dice(static_cast<uint64_t>(step));
    job_.set(random_values(dice, tensors()));
    const LocalState state = job_.state(0);
    SaverOptions options = test_options();
    options.ring_bytes = 8 * kMiB;  // all of it: nobody drains it meanwhile
    const auto saver = Saver::open(*env_, run_path_, nullptr, options);
    ASSERT_OK(saver);
    const auto handle = (*saver)->save({.step = step,
                                        .state = &state,
                                        .objects = {.of_all = std::move(objects)},
                                        .metrics = std::move(metrics)});
    ASSERT_OK(handle);
    ASSERT_OK(handle->durable());
    ASSERT_OK((*saver)->close());
  }

  std::string folder(int64_t step) const {
    return run_path_ + "/" + StepName{.step = step}.text();
  }

  void flip(const std::string& path, int64_t offset) {
    const auto file = env_->open(path, {.mode = OpenMode::kUpdate}).value();
    Bytes one(1);
    ASSERT_OK(file->read_at(offset, one));
    one[0] ^= std::byte{4};
    ASSERT_OK(file->write_at(offset, one));
  }

  // The offset of the tensor in the shard.
  int64_t offset_of(int64_t step, const std::string& name) {
    const Json seen = json("show " + folder(step) + " --layout");
    for (const Json& tensor : seen["tensors"]) {
      if (tensor["name"] == name) return tensor["pieces"][0]["offset"].get<int64_t>();
    }
    ADD_FAILURE() << name;
    return 0;
  }

  TempFolder temp_;
  std::unique_ptr<Env> env_ = make_posix_env();
  const std::string root_ = temp_.path().native();
  const std::string run_path_ = root_ + "/gpt";
  Job job_{replicated(tensors(), 1)};
};

TEST_F(RunCommandsTest, LsShowsStepsNewestFirstAndWhichOneIsTaken) {
  save(300);
  save(100, 0.5);  // went back: the newest is not the greatest
  const Ran ran = run("ls " + run_path_);
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_LT(ran.out.find("step-00000100"), ran.out.find("step-00000300")) << ran.out;
  EXPECT_NE(ran.out.find("loss=0.5"), ran.out.npos) << ran.out;
  EXPECT_NE(ran.out.find("it has ended and closed the run"), ran.out.npos) << ran.out;
  EXPECT_EQ(ran.out.find('\033'), ran.out.npos);
  const Json run_json = json("ls " + run_path_)["runs"][0];
  EXPECT_EQ(run_json["newest"], "step-00000100");
  EXPECT_EQ(run_json["steps"][0]["newest"], true);
  EXPECT_EQ(run_json["steps"][1]["step"], 300);
  EXPECT_EQ(run_json["steps"][1]["whole"], true);
  EXPECT_EQ(run_json["steps"][0]["metrics"]["loss"], 0.5);
  EXPECT_EQ(run_json["steps"][0]["ranks"], 1);
  EXPECT_GT(run_json["steps"][0]["bytes"].get<int64_t>(), 2'400'100);
  EXPECT_EQ(run_json["owner"]["live"], false);
}

TEST_F(RunCommandsTest, LsPassesOverWhatIsNotWholeAndSaysWhy) {
  save(100);
  save(200);
  save(300);
  ASSERT_OK(env_->remove_file(folder(300) + "/rank-0000.safetensors"));
  flip(folder(200) + "/manifest.json", 40);
  ASSERT_OK(env_->create_folder(run_path_ + "/step-00000400.00000000000000aa.tmp"));
  const Json seen = json("ls " + run_path_)["runs"][0];
  EXPECT_EQ(seen["newest"], "step-00000100");
  EXPECT_EQ(seen["steps"][0]["whole"], false);
  EXPECT_NE(seen["steps"][0]["why"].get<std::string>().find("is missing"),
            std::string::npos);
  EXPECT_EQ(seen["skipped"][0]["folder"], "step-00000200");
  EXPECT_EQ(seen["attempts"][0], "step-00000400.00000000000000aa.tmp");
  const Ran ran = run("ls " + run_path_);
  EXPECT_NE(ran.out.find("skipped: step-00000200: "), ran.out.npos) << ran.out;
  EXPECT_NE(ran.out.find("left by a crash"), ran.out.npos) << ran.out;
}

TEST_F(RunCommandsTest, LsOfAFolderShowsAllRunsInIt) {
  save(100);
  ASSERT_OK(Run::create_or_open(*env_, root_ + "/bert"));
  const Json seen = json("ls " + root_);
  ASSERT_EQ(seen["runs"].size(), 2u);
  EXPECT_EQ(seen["runs"][0]["path"], root_ + "/bert");
  EXPECT_EQ(seen["runs"][0]["newest"], nullptr);
  EXPECT_EQ(seen["runs"][1]["newest"], "step-00000100");
}

TEST_F(RunCommandsTest, OnlyATerminalGetsColour) {
  save(100);
  const Ran ran = run_line(*env_, "ls " + run_path_, {.colour = true});
  EXPECT_NE(ran.out.find("\033[32mnewest\033[0m"), ran.out.npos) << ran.out;
}

TEST_F(RunCommandsTest, ShowHasManifestTensorsSealsAndObjects) {
  save(100, 0.25, Object(Object::Dict{{{Object("lr"), Object(0.5)}}}));
  const Json seen = json("show " + run_path_ + " --layout");
  EXPECT_EQ(seen["kind"], "step");
  EXPECT_EQ(seen["path"], folder(100));
  EXPECT_EQ(seen["manifest"]["step"], 100);
  EXPECT_EQ(seen["objects"]["lr"], 0.5);
  ASSERT_EQ(seen["tensors"].size(), 2u);
  for (const Json& tensor : seen["tensors"]) {
    EXPECT_EQ(tensor["seal"].get<std::string>().size(), 32u);
    EXPECT_EQ(tensor["pieces"][0]["file"], "rank-0000.safetensors");
  }
  const Ran ran = run("show " + run_path_ + "@100 --tensors --layout");
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.out.find("[600, 1000]"), ran.out.npos) << ran.out;
  EXPECT_NE(ran.out.find(R"(objects  {"lr":0.5})"), ran.out.npos) << ran.out;
  const Ran all = run("show " + run_path_ + "@100 --objects");
  EXPECT_NE(all.out.find(R"(objects: {"lr":0.5})"), all.out.npos) << all.out;
}

TEST_F(RunCommandsTest, LsListsTheStepThatIsAskedFor) {
  save(100);
  save(200);
  const Json seen = json("ls " + run_path_ + "@100");
  ASSERT_EQ(seen["runs"][0]["steps"].size(), 1u);
  EXPECT_EQ(seen["runs"][0]["steps"][0]["step"], 100);
}

TEST_F(RunCommandsTest, AStepOfARunIsChosenByNumberOrName) {
  save(100);
  save(200);
  save(100);
  EXPECT_EQ(json("show " + run_path_ + "@200")["path"], folder(200));
  EXPECT_EQ(json("show " + run_path_ + "@100")["path"], folder(100) + ".g2");
  EXPECT_EQ(json("show " + run_path_ + "@step-00000100")["path"], folder(100));
  EXPECT_EQ(run("show " + run_path_ + "@150").code, 4);
  EXPECT_EQ(run("show " + run_path_ + "@best").code, 2);
}

TEST_F(RunCommandsTest, VerifyReadsAllStepsAndFindsThemWhole) {
  save(100);
  save(200);
  const Ran ran = run("verify " + run_path_);
  EXPECT_EQ(ran.code, 0) << ran.out;
  const Json seen = json("verify " + run_path_);
  EXPECT_EQ(seen["whole"], true);
  ASSERT_EQ(seen["verified"].size(), 2u);
  EXPECT_EQ(seen["verified"][0]["path"], folder(200));
  EXPECT_GT(seen["verified"][0]["bytes_read"].get<int64_t>(), 2'400'100);
}

TEST_F(RunCommandsTest, OneFlippedBitIsLocatedToFileTensorChunkAndBytes) {
  save(100);
  save(200);
  const int64_t begin = offset_of(200, "big");
  flip(folder(200) + "/rank-0000.safetensors", begin + kMiB + 12345);
  const Ran ran = run("verify " + run_path_);
  EXPECT_EQ(ran.code, 3);
  EXPECT_EQ(ran.err, "");
  const auto chunks = open_step(*env_, folder(200)).value().files[0].chunks;
  const auto chunk = std::ranges::find(chunks, begin + kMiB, &Chunk::offset);
  ASSERT_NE(chunk, chunks.end());
  const auto number = chunk - chunks.begin();
  EXPECT_NE(ran.out.find(fmt::format(
                "  rank-0000.safetensors, chunk {}, bytes {} to {}, in big: has crc ",
                number, begin + kMiB, begin + 2 * kMiB)),
            ran.out.npos)
      << ran.out;
  EXPECT_NE(ran.out.find(folder(100) + ": whole"), ran.out.npos) << ran.out;

  const Json seen = json("verify " + run_path_);
  EXPECT_EQ(seen["whole"], false);
  const Json damage = seen["verified"][0]["damage"];
  ASSERT_EQ(damage.size(), 1u);
  EXPECT_EQ(damage[0]["file"], "rank-0000.safetensors");
  EXPECT_EQ(damage[0]["tensors"], Json::array({"big"}));
  EXPECT_EQ(damage[0]["chunk"], number);
  EXPECT_EQ(damage[0]["offset"], begin + kMiB);
  EXPECT_EQ(damage[0]["bytes"], kMiB);
  // A fast check does not find the damage, but convert reads the bytes and finds it.
  EXPECT_EQ(run("verify --fast " + run_path_).code, 0);
  EXPECT_EQ(run("convert " + run_path_ + "@200 " + root_ + "/m.pt").code, 3);
  EXPECT_EQ(env_->info(root_ + "/m.pt").error().code(), ErrorCode::kNotFound);
}

TEST_F(RunCommandsTest, DamageIsToldThoughAnotherPathFails) {
  save(100);
  const std::string both = "verify " + root_ + "/nowhere " + run_path_;
  EXPECT_EQ(run(both).code, 4);
  flip(folder(100) + "/rank-0000.safetensors", offset_of(100, "big") + 5);
  for (const std::string& line : {both, "verify " + run_path_ + " " + root_ + "/no"}) {
    const Ran ran = run(line);
    EXPECT_EQ(ran.code, 3) << ran.err;
    EXPECT_NE(ran.out.find("DAMAGED"), ran.out.npos) << ran.out;
    EXPECT_NE(ran.err.find("No such file"), ran.err.npos) << ran.err;
  }
  const Json seen = json(both);
  EXPECT_EQ(seen["whole"], false);
  EXPECT_EQ(seen["verified"].size(), 1u);
  EXPECT_EQ(seen["errors"][0]["path"], root_ + "/nowhere");
  EXPECT_EQ(seen["errors"][0]["code"], "not_found");
}

TEST_F(RunCommandsTest, LsShowsWhatItCanThoughAnotherPathFails) {
  save(100);
  const std::string both = "ls " + root_ + "/nowhere " + run_path_;
  const Ran ran = run(both);
  EXPECT_EQ(ran.code, 4);
  EXPECT_NE(ran.out.find("step-00000100"), ran.out.npos) << ran.out;
  EXPECT_NE(ran.err.find("No such file"), ran.err.npos) << ran.err;
  const Json seen = parse_json(run(both + " --json").out, "out").value();
  EXPECT_EQ(seen["runs"].size(), 1u);
  EXPECT_EQ(seen["errors"][0]["path"], root_ + "/nowhere");
}

TEST_F(RunCommandsTest, ARunWithObjectsEqualsTheFileItIsConvertedTo) {
  save(100, 1, Object(Object::Dict{{{Object("lr"), Object(0.5)}}}));
  const std::string file = root_ + "/m.pt";
  ASSERT_EQ(run("convert " + run_path_ + " " + file).code, 0);
  const Ran ran = run("diff " + run_path_ + " " + file);
  EXPECT_EQ(ran.code, 0) << ran.out;
  EXPECT_EQ(run("diff " + file + " " + run_path_).code, 0);
}

TEST_F(RunCommandsTest, DamageOfSmallFilesIsNamedToo) {
  save(100);
  flip(folder(100) + "/rank-0000.index.json", 10);
  const Json seen = json("verify " + folder(100) + " --fast");
  EXPECT_EQ(seen["verified"][0]["damage"][0]["file"], "rank-0000.index.json");
  flip(folder(100) + "/manifest.json", 10);
  const Ran ran = run("verify " + run_path_);
  EXPECT_EQ(ran.code, 3);
  EXPECT_NE(ran.out.find("manifest.json"), ran.out.npos) << ran.out;
  EXPECT_EQ(run("show " + run_path_).code, 3);
}

TEST_F(RunCommandsTest, GcKeepsWhatAnyRuleKeepsAndSaysWhatGoes) {
  save(100, 0.1);
  save(150, 0.9);
  save(200, 0.8);
  save(250, 0.7);
  save(300, 0.6);
  ASSERT_EQ(run("pin " + run_path_ + " 150").code, 0);
  const std::string rules =
      "gc " + run_path_ + " --keep-last 1 --keep-every 200 --keep-best 1 --metric loss";
  const Json plan = json(rules + " --dry-run");
  ASSERT_EQ(plan["removed"].size(), 1u);
  EXPECT_EQ(plan["removed"][0]["folder"], "step-00000250");
  EXPECT_TRUE(env_->info(folder(250)).ok());

  const Json done = json(rules);
  EXPECT_EQ(done["removed"], plan["removed"]);
  EXPECT_EQ(done["kept"], plan["kept"]);
  EXPECT_FALSE(env_->info(folder(250)).ok());
  for (const int step : {100, 150, 200, 300}) EXPECT_OK(env_->info(folder(step)));
  EXPECT_EQ(json("ls " + run_path_)["runs"][0]["steps"][2]["pinned"], true);

  ASSERT_EQ(run("unpin " + run_path_ + " step-00000150").code, 0);
  EXPECT_EQ(json(rules)["removed"][0]["folder"], "step-00000150");
  EXPECT_EQ(json(rules)["removed"].size(), 0u);
  EXPECT_EQ(json("gc " + run_path_ + " --keep-best 1 --metric loss --max")["kept"],
            Json::array({"step-00000300", "step-00000200"}));
  save(400);  // the run goes on
}

TEST_F(RunCommandsTest, GcByAMetricThatNoStepHasRemovesNothing) {
  save(100, std::nullopt);
  save(200, std::nullopt);
  const std::string rule = "gc " + run_path_ + " --keep-best 1 --metric Loss";
  const Ran bare = run(rule);
  EXPECT_EQ(bare.code, 2);
  EXPECT_EQ(bare.err,
            "holdfast: metric \"Loss\": no step has a metric; expected steps with this "
            "metric\n");
  save(300, 0.5);
  const std::string left = run_path_ + "/step-00000400.00000000000000aa.tmp";
  ASSERT_OK(env_->create_folder(left));
  for (const std::string& line : {rule, rule + " --dry-run", rule + " --json"}) {
    const Ran ran = run(line);
    EXPECT_EQ(ran.code, 2) << line;
    EXPECT_EQ(ran.err,
              "holdfast: metric \"Loss\": no step has it; expected one of: loss\n");
    EXPECT_EQ(ran.out.empty(), !line.ends_with("--json")) << line;
  }
  EXPECT_OK(env_->info(left));
  EXPECT_EQ(json("ls " + run_path_)["runs"][0]["steps"].size(), 3u);
}

TEST_F(RunCommandsTest, GcCountsAByteWhenItsLastNameGoes) {
  Dice dice(1);
  job_.set(random_values(dice, tensors()));
  const LocalState state = job_.state(0);
  SaverOptions options = test_options();
  options.ring_bytes = 8 * kMiB;
  options.incremental = true;
  const auto saver = Saver::open(*env_, run_path_, nullptr, options);
  ASSERT_OK(saver);
  for (const int64_t step :
       {100, 200, 300}) {  // the first one has all, the others link
    ASSERT_OK((*saver)->save({.step = step, .state = &state})->durable());
  }
  ASSERT_OK((*saver)->close());
  const auto bytes = [](const Json& report) {
    int64_t sum = 0;
    for (const Json& step : report["removed"]) sum += step["bytes"].get<int64_t>();
    return sum;
  };
  const int64_t shard = env_->info(folder(100) + "/rank-0000.safetensors")->size;
  ASSERT_GT(shard, 2 * kMiB);
  const std::string rule = "gc " + run_path_ + " --keep-last 1";
  EXPECT_LT(bytes(json(rule + " --dry-run")), kMiB);  // step 300 has the shard, too
  EXPECT_LT(bytes(json(rule)), kMiB);
  save(400);
  EXPECT_GE(bytes(json(rule + " --dry-run")), shard);
  EXPECT_GE(bytes(json(rule)), shard);
}

TEST_F(RunCommandsTest, GcSweepsWhatACrashLeft) {
  save(100);
  const std::string left = run_path_ + "/step-00000400.00000000000000aa.tmp";
  ASSERT_OK(env_->create_folder(left));
  EXPECT_EQ(json("gc --keep-last 1 " + run_path_)["swept"].size(), 1u);
  EXPECT_FALSE(env_->info(left).ok());
}

TEST_F(RunCommandsTest, GcRefusesARunOfALiveJobByItsName) {
  save(100);
  save(200);
  SaverOptions options = test_options();
  options.identity.reset();  // this process, which lives
  const auto saver = Saver::open(*env_, run_path_, nullptr, options);
  ASSERT_OK(saver);
  const Ran ran = run("gc --keep-last 1 " + run_path_);
  EXPECT_EQ(ran.code, 1);
  EXPECT_NE(ran.err.find("in use by"), ran.err.npos) << ran.err;
  EXPECT_NE(ran.err.find(std::to_string(getpid())), ran.err.npos) << ran.err;
  EXPECT_TRUE(env_->info(folder(100)).ok());
  EXPECT_EQ(json("ls " + run_path_)["runs"][0]["owner"]["live"], true);
  ASSERT_OK(env_->create_folder(run_path_ + "/step-00000400.00000000000000aa.tmp"));
  const std::string dry = "gc --keep-last 1 --dry-run " + run_path_;
  const Ran planned = run(dry);
  EXPECT_EQ(planned.code, 0);
  EXPECT_NE(planned.out.find("gc would be refused: in use by "), planned.out.npos);
  EXPECT_EQ(planned.out.find("left by a crash"), planned.out.npos) << planned.out;
  EXPECT_EQ(json(dry)["swept"].size(), 0u);
}

struct Call {
  const char* line;  // R stands for the run, T for the folder above it
  int code;
  const char* sentence;  // a part of it
};

TEST_F(RunCommandsTest, EveryBadCallIsOneSentenceWithItsExitCode) {
  save(100);
  ASSERT_OK(env_->write_file(root_ + "/noise.bin", bytes_of("noise")));
  ASSERT_OK(env_->create_folder(root_ + "/empty"));
  const Call calls[] = {
      {"ls T/nowhere", 4, "No such file"},
      {"ls T/empty", 4, "no run directory, and none in it"},
      {"ls T/noise.bin", 2, "noise.bin: not a folder; expected one"},
      {"show", 2, "PATH is required"},
      {"show T/nowhere", 4, "No such file"},
      {"show T/noise.bin", 1, "its format is not known"},
      {"show R@7", 4, "no step 7; expected one of its steps: 100"},
      {"ls R@7", 4, "no step 7; expected one of its steps: 100"},
      {"ls T/nowhere@7", 4, "No such file"},
      {"show R@x", 2, "expected a number such as 400"},
      {"verify", 2, "PATH is required"},
      {"verify T/noise.bin", 1, "its format is not known"},
      {"diff R", 2, "B is required"},
      {"diff R T/nowhere", 4, "No such file"},
      {"diff R R R", 2, "was not expected"},
      {"gc R", 2, "no rule; expected --keep-last"},
      {"gc R --keep-last 0", 2, "--keep-last: 0; expected 1 or more"},
      {"gc R --keep-last many", 2, "--keep-last"},
      {"gc R --keep-best 1", 2, "--keep-best and --metric go together"},
      {"gc R --keep-last 1 --metric loss", 2, "go together"},
      {"gc R --keep-last 1 --max", 2, "--max goes with --keep-best"},
      {"gc T/empty --keep-last 1", 4, "no run directory"},
      {"pin R 7", 4, "no step 7"},
      {"pin R", 2, "STEP is required"},
      {"pin T/empty 7", 4, "no run directory"},
      {"convert R", 2, "TO is required"},
      {"convert R T/out.xyz", 2, "the name does not tell the format"},
      {"convert R T/out --format zip", 2, "format \"zip\": is not known"},
      {"convert T/nowhere T/out.pt", 4, "No such file"},
      {"convert R T/noise.bin", 1, "exists"},
      {"convert R T/nowhere/out.pt", 4, "there is no folder"},
  };
  for (const Call& call : calls) {
    std::string line;
    for (const std::string_view text = call.line; const char c : text) {
      const bool word = c == 'R' || c == 'T';
      line += !word ? std::string(1, c) : c == 'R' ? run_path_ : root_;
    }
    const Ran ran = run(line);
    EXPECT_EQ(ran.code, call.code) << call.line << ": " << ran.err;
    EXPECT_NE(ran.err.find(call.sentence), ran.err.npos)
        << call.line << ": " << ran.err;
    EXPECT_EQ(std::ranges::count(ran.err, '\n'), 1) << call.line << ": " << ran.err;
    EXPECT_EQ(ran.out, "") << call.line;
  }
  EXPECT_EQ(run("verify " + run_path_).code, 0);
  EXPECT_EQ(env_->list(root_).value().size(), 3u);  // nothing was left behind
}

TEST_F(RunCommandsTest, EveryVerbHelpsWithAnExample) {
  for (const std::string verb :
       {"ls", "show", "verify", "diff", "convert", "gc", "pin", "unpin", "plan"}) {
    const Ran ran = run(verb + " --help");
    EXPECT_EQ(ran.code, 0) << verb;
    EXPECT_NE(ran.out.find("Example"), ran.out.npos) << verb;
    EXPECT_NE(ran.out.find("holdfast " + verb), ran.out.npos) << verb;
    EXPECT_NE(ran.out.find("--json"), ran.out.npos) << verb;
  }
}

// The run has seen two saves after its first one, and no failure in 700 s.
TEST_F(RunCommandsTest, IntervalLearnsFromTheEventsOfARun) {
  save(100);
  EXPECT_EQ(run("interval " + run_path_).err.find("holdfast: " + run_path_), 0u);
  std::string log;
  const auto add = [&](int64_t second, const std::string& event) {
    log += fmt::format("{{\"wall_ns\":{0}000000000,\"mono_ns\":{0}000000000,{1}}}\n",
                       1000 + second, event);
  };
  add(0, R"("event":"job_opened")");
  for (int64_t i = 0; i < 3; ++i) {
    add(100 + i * 300,
        fmt::format(R"("event":"save_captured","step":{},"seconds":0.25)", i));
    add(102 + i * 300,
        fmt::format(R"("event":"save_durable","step":{},"seconds":2.25)", i));
  }
  ASSERT_OK(env_->create_folders(run_path_ + "/events"));
  ASSERT_OK(env_->write_file(run_path_ + "/events/rank-0000.jsonl",
                             std::as_bytes(std::span(log))));
  const Json seen = json("interval " + run_path_);
  EXPECT_EQ(seen["job"]["stall"], 0.25);
  EXPECT_EQ(seen["job"]["persist"], 2.0);
  EXPECT_EQ(seen["job"]["mtbf_is_prior"], true);
  const Ran simulated = run("simulate " + run_path_ + " --runs 10");
  EXPECT_EQ(simulated.code, 0) << simulated.err;
  EXPECT_NE(simulated.out.find("young"), std::string::npos) << simulated.out;
  const Ran text = run("interval " + run_path_);
  EXPECT_NE(
      text.out.find("(a prior, corrected by 0 failures in 11.7 min that the events "
                    "show)"),
      std::string::npos)
      << text.out;
}

}  // namespace
}  // namespace holdfast::tests
