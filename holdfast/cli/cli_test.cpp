#include "holdfast/cli/cli.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "holdfast/base/json.h"
#include "holdfast/cli/cli_testing.h"
#include "holdfast/env/memory_env.h"

namespace holdfast {
namespace {

using tests::Ran;

using CliTest = tests::CommandTest;

constexpr const char* kPlan =
    "plan --model tenplex-6.7b --from tp=4,pp=2,dp=1 --to tp=4,pp=4,dp=1 --hosts 4x4";

TEST_F(CliTest, PlanShowsWhatIsMovedBesideTheLeastPossible) {
  const Ran ran = run(kPlan);
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.err, "");
  EXPECT_NE(ran.out.find("tenplex-6.7b: 93.16 GB of state"), std::string::npos);
  EXPECT_NE(ran.out.find("moved                         70.57 GB"), std::string::npos)
      << ran.out;
}

TEST_F(CliTest, TheWordsOfOtherProgramsLeadToTheVerb) {
  for (const auto& [word, verb] : std::map<std::string, std::string>{
           {"list", "ls"}, {"info", "show"}, {"check", "verify"}, {"compare", "diff"}}) {
    const Ran ran = run(word + " runs/gpt");
    EXPECT_EQ(ran.code, 2);
    EXPECT_EQ(ran.err, fmt::format("holdfast: {}: is not a verb; did you mean {}?\n",
                                   word, verb));
  }
}

TEST_F(CliTest, HelpIsAVerbToo) {
  EXPECT_EQ(run("help").out, run("--help").out);
  EXPECT_EQ(run("help show").out, run("show --help").out);
  EXPECT_EQ(run("help show").code, 0);
  EXPECT_EQ(run("help nonsense").code, 2);
  EXPECT_NE(run("show help").err.find("No such file"), std::string::npos);
}

TEST_F(CliTest, AMessageWithAVeryLongNameIsShortened) {
  const Ran ran = run("show " + std::string(100'000, 'x'));
  EXPECT_NE(ran.code, 0);
  EXPECT_LT(ran.err.size(), 4'100u);
  EXPECT_NE(ran.err.find("xxx...xxx"), std::string::npos);
}

TEST_F(CliTest, PlanSaysWhatItAssumesAndWhatTheHostRuleCosts) {
  const Ran plain = run(kPlan);
  EXPECT_NE(plain.out.find("times assume that each device sends 10.00 GB a second\n"),
            std::string::npos)
      << plain.out;
  const Ran free = run(std::string(kPlan) + " --place");
  EXPECT_NE(free.out.find("keeping tensor-parallel groups on hosts costs nothing\n"),
            std::string::npos)
      << free.out;
  // Groups of 4 must leave the hosts on which half of each group of 8 is.
  const std::string shrink =
      "plan --model tenplex-6.7b --from tp=8,pp=2,dp=1 --to tp=4,pp=2,dp=1 --hosts 4x4 "
      "--place";
  const Ran costly = run(shrink);
  EXPECT_NE(costly.out.find("keeping tensor-parallel groups on hosts costs 23."),
            std::string::npos)
      << costly.out;
  const Json json = parse_json(run(shrink + " --json").out, "out").value();
  EXPECT_EQ(json["assumed"]["memory_bandwidth"], 10'000'000'000);
  EXPECT_EQ(json["placement"]["host_rule_cost"],
            json["placement"]["kept_bound"].get<int64_t>() -
                json["placement"]["kept"].get<int64_t>());
}

TEST_F(CliTest, JsonHasTheExactFigures) {
  const Ran ran = run(std::string(kPlan) + " --place --json");
  ASSERT_EQ(ran.code, 0);
  const Json json = parse_json(ran.out, "out").value();
  EXPECT_EQ(json["figures"]["moved"], json["figures"]["moved_bound"]);
  EXPECT_EQ(json["figures"]["crossing"], json["figures"]["crossing_bound"]);
  EXPECT_EQ(json["figures"]["needed"].get<int64_t>(),
            json["figures"]["moved"].get<int64_t>() +
                json["figures"]["in_place"].get<int64_t>() +
                json["figures"]["copied"].get<int64_t>());
  EXPECT_EQ(json["placement"]["exact"], true);
  EXPECT_EQ(json["hosts"], "4x4");
}

TEST_F(CliTest, ExportedLayoutsGiveTheSamePlan) {
  const std::string call =
      "plan --model gpt2 --from tp=2,pp=1,dp=2 --to tp=4,pp=2,dp=1 --hosts 2x4 --json";
  const Ran direct = run(call + " --export layouts");
  ASSERT_EQ(direct.code, 0) << direct.err;
  const Ran files = run("plan --from layouts/from.json --to layouts/to.json --json");
  ASSERT_EQ(files.code, 0) << files.err;
  const Json a = parse_json(direct.out, "a").value(),
             b = parse_json(files.out, "b").value();
  EXPECT_EQ(a["figures"], b["figures"]);
  EXPECT_EQ(a["links"], b["links"]);
}

TEST_F(CliTest, AHuggingFaceConfigIsAModel) {
  ASSERT_TRUE(env_.create_folder("llama").ok());
  write("llama/config.json",
        R"({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128,
            "vocab_size": 1000})");
  for (const char* path : {"llama/config.json", "llama"}) {
    const Ran ran = run(std::string("plan --from tp=1 --to tp=2 --model ") + path);
    EXPECT_EQ(ran.code, 0) << ran.err;
  }
}

TEST_F(CliTest, EveryWrongCallIsOneSentenceAndExitCode2) {
  expect_wrong_call("plan --model gpt2 --from tp=1 --to tp=0",
                    "to: parallel: tp=0; expected an integer from 1 to 1048576");
  expect_wrong_call("plan --model gpt2 --from tp=1 --to tp=2,world=3",
                    "to: parallel: world=3, but tp x pp x dp = 2 x 1 x 1 = 2");
  expect_wrong_call(
      "plan --model gpt2 --from tp=1 --to td=2",
      "to: parallel: unknown key \"td\"; expected tp, pp, dp, ep, etp, zero, "
      "vpp, shard, qkv, split, layers, stages or world");
  expect_wrong_call("plan --model gpt2 --from dp=8 --to dp=9 --hosts 2x4",
                    "to: parallel: tp=1,pp=1,dp=9 needs 9 devices, there are 8");
  expect_wrong_call("plan --model gpt2 --from dp=8 --to dp=9 --hosts 2by4",
                    "hosts \"2by4\": cannot be read; expected HOSTSxDEVICES such as "
                    "4x8, at most 1048576 devices");
  expect_wrong_call("plan --from nowhere.json --to nowhere.json",
                    "nowhere.json: No such file or directory");
  expect_wrong_call("plan --from tp=1", "--to is required");
  expect_wrong_call(
      "fly",
      "fly: is not a verb; expected ls, show, verify, diff, export, convert, "
      "gc, pin, unpin, plan, reshard, interval, simulate, launch, resize, rehearse, bench, "
      "inject, campaign, seal, repair, index, mount, completion");
  expect_wrong_call(
      "",
      "no verb; expected ls, show, verify, diff, export, convert, gc, pin, unpin, "
      "plan, reshard, interval, simulate, launch, resize, rehearse, bench, inject, "
      "campaign, seal, repair, index, mount, completion");
  write("deep.json", std::string(1'000'000, '['));
  expect_wrong_call("plan --from deep.json --to deep.json",
                    "deep.json: more than 64 levels deep");
  write("torn.json", "{\"holdfast\": ");
  EXPECT_EQ(run("plan --from torn.json --to torn.json").code, 2);
}

TEST_F(CliTest, ItTellsItsVersion) {
  const Ran ran = run("--version");
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.out, "holdfast " HOLDFAST_VERSION "\n");
  EXPECT_EQ(ran.err, "");
}

TEST_F(CliTest, EveryDefectOfALayoutFileIsOneSentenceAndExitCode2) {
  const std::string head = R"({"holdfast": "collection", "version": 1,
    "hosts": [{"name": "a"}], "holders": [{"name": "d", "kind": "memory", "host": "a"}],
    "tensors": [{"name": "w", "dtype": "F32", "shape": [4]}], "slices": [)";
  const auto slice = [](const char* box, int offset) {
    return fmt::format(R"({{"tensor": "w", "box": [{}],
                       "copies": [{{"holder": "d", "offset": {}}}]}})",
                       box, offset);
  };
  write("whole.json", head + slice("[0, 4]", 0) + "]}");
  ASSERT_EQ(run("plan --from whole.json --to whole.json").code, 0);
  const auto expect_defect = [&](const std::string& text, const std::string& sentence) {
    write("bad.json", text);
    expect_wrong_call("plan --from bad.json --to whole.json", "bad.json: " + sentence);
  };
  expect_defect(head + slice("[0, 3]", 0) + "," + slice("[2, 4]", 64) + "]}",
                "w on d: boxes [0:3] and [2:4] overlap");
  expect_defect(head + slice("[0, 2]", 0) + "]}", "w: box [2:4] has no holder left");
  expect_defect(head + slice("[-1, 2]", 0) + "]}",
                "slices[0].box[0]: -1; expected 0 to 9223372036854775807");
  expect_defect(head + slice("[0, 2]", 0) + "," + slice("[2, 4]", 4) + "]}",
                "d: w and w share bytes 4 to 8; expected bytes of their own");
  expect_defect(head + slice("[0, 4]", 0) + "], \"speed\": 3}",
                "unknown key \"speed\"");
}

// Every file in attacks/ was made to break a reader of layouts: the sum of its sizes is
// too large, it overlaps in too many ways, or it is cut off. Each must be refused.
TEST_F(CliTest, NoAttackDoesMoreThanBeRefused) {
  int seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator(HOLDFAST_ATTACKS)) {
    std::ifstream file(entry.path());
    write("attack.json", std::string(std::istreambuf_iterator<char>(file), {}));
    const Ran ran = run("plan --from attack.json --to attack.json --json");
    EXPECT_EQ(ran.code, 2) << entry.path() << ran.out;
    EXPECT_EQ(std::ranges::count(ran.err, '\n'), 1) << entry.path();
    ++seen;
  }
  EXPECT_GE(seen, 8);
}

TEST_F(CliTest, ABuiltInNameIsNotShadowedByAFolder) {
  ASSERT_TRUE(env_.create_folder("gpt2").ok());
  EXPECT_EQ(run("plan --model gpt2 --from tp=1 --to tp=2").code, 0);
}

TEST_F(CliTest, HugeRequestsAreRefusedBeforeTheMemoryIs) {
  EXPECT_EQ(run("plan --model gpt2 --from dp=1048576 --to dp=1").code, 2);
  const Ran ran = run("plan --model gpt2 --from dp=1 --to dp=2 --hosts 65536x1");
  EXPECT_EQ(ran.code, 0) << ran.err;
}

TEST_F(CliTest, HelpHasAnExampleAndSucceeds) {
  const Ran ran = run("plan --help");
  EXPECT_EQ(ran.code, 0);
  EXPECT_NE(ran.out.find("holdfast plan --model gpt-6.7b"), std::string::npos);
}

}  // namespace
}  // namespace holdfast
