// Tests `holdfast interval` and `holdfast simulate`.
#include <gtest/gtest.h>

#include <cmath>

#include "holdfast/base/json.h"
#include "holdfast/base/testing.h"
#include "holdfast/cli/cli_testing.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/shard/step_name.h"

namespace holdfast {
namespace {

using tests::Ran;

class ScheduleCommandTest : public tests::CommandTest {
 protected:
  Json json(const std::string& line) {
    const Ran ran = run(line + " --json");
    EXPECT_EQ(ran.code, 0) << ran.err;
    return parse_json(ran.out, "out").value();
  }
};

TEST_F(ScheduleCommandTest, IntervalSaysHowOftenAndWhy) {
  const Ran ran = run("interval --stall 200ms --persist 5s --mtbf 8h");
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.out.find("save every 107.2 s (805 times): the best of all even "
                         "intervals; it costs 5.6 min, the least is 5.6 min\n"),
            std::string::npos)
      << ran.out;
  EXPECT_NE(ran.out.find(
                "recommended     805    107.2 s   107.2 s   5.6 min          +0.0 %"),
            std::string::npos)
      << ran.out;
  const Ran fewer = run("interval --stall 200ms --persist 5s --mtbf 8h --slack 0.001");
  EXPECT_NE(fewer.out.find("save every 3.7 min (393 times): the longest even interval "
                           "that costs at most\n0.1 % of the work (86.4 s) more than "
                           "the least; it costs 7.1 min, the least is 5.6 min\n"),
            std::string::npos)
      << fewer.out;
  EXPECT_NE(fewer.out.find(
                "recommended     393    3.7 min   3.7 min   7.1 min         +25.6 %"),
            std::string::npos)
      << fewer.out;
  EXPECT_NE(ran.out.find("costs are the exact expectation for any number of failures"),
            std::string::npos);
  EXPECT_NE(ran.out.find("objective: delay, because nothing stops the job early"),
            std::string::npos);
  EXPECT_NE(ran.out.find("checkfreq"), std::string::npos);
  EXPECT_EQ(ran.out.find("coci"), std::string::npos);  // nothing is known of the loss
  EXPECT_NE(ran.out.find("####"), std::string::npos);
}

TEST_F(ScheduleCommandTest, AJobThatMayBeStoppedIsScheduledByItsCurve) {
  const Json seen = json(
      "interval --stall 5s --length 3h --mtbf 2h --curve power:2.3,3m,0.8,0.02 --stop "
      "90m");
  EXPECT_EQ(seen["job"]["objective"], "explore");
  EXPECT_EQ(seen["uneven"], true);
  EXPECT_GT(seen["gain"].get<double>(), 0.1);
  const auto times = seen["times"].get<std::vector<double>>();
  EXPECT_LT(times[1] - times[0], times.back() - times[times.size() - 2]);
  EXPECT_EQ(seen["policies"].size(), 11u);
}

TEST_F(ScheduleCommandTest, AnUnevenScheduleListsItsTimes) {
  const std::string line =
      "interval --stall 5s --length 3h --mtbf 20h --curve power:2.3,3m,0.8,0.02 "
      "--objective priced";
  const Ran ran = run(line);
  EXPECT_NE(ran.out.find("save after this much work (h:mm:ss):\n  2:08 5:34 "),
            std::string::npos)
      << ran.out;
  const Json seen = json(line);
  const double last = seen["times"].back().get<double>();
  const auto minutes = static_cast<int64_t>(last / 60) % 60;
  EXPECT_NE(ran.out.find(fmt::format(" 2:{:02}:", minutes)), std::string::npos);
  EXPECT_NE(ran.out.find("costs are exact to the first order"), std::string::npos);
}

TEST_F(ScheduleCommandTest, TheLimitOfFirstOrderCostsIsPrinted) {
  const auto out = [&](const std::string& objective, const std::string& mtbf) {
    return run("interval --stall 30s --length 3h --curve exp:1,1h --mtbf " + mtbf +
               " --objective " + objective).out;
  };
  const auto says = [](const std::string& text, const char* words) {
    return text.find(words) != std::string::npos;
  };
  EXPECT_TRUE(says(out("explore", "10m"), "A failure comes every 20 stalls"));
  EXPECT_FALSE(says(out("explore", "30m"), "A failure comes every"));
  for (const char* objective : {"progress", "priced"}) {
    EXPECT_TRUE(says(out(objective, "10m"), "costs are the exact expectation")) << objective;
    EXPECT_TRUE(says(out(objective, "30m"), "exact to the first order")) << objective;
  }
}

// Each row compares the same rule at another failure rate, so more frequent failures
// never want fewer saves, and no schedule costs less than the least cost.
TEST_F(ScheduleCommandTest, OtherFailureRatesAreComparedByTheSameRule) {
  for (const char* line :
       {"interval --stall 200ms --persist 5s --mtbf 8h",
        "interval --stall 10ms --persist 2s --mtbf 30d --length 7d",
        "interval --stall 5s --length 3h --mtbf 2h --curve power:2.3,3m,0.8,0.02 "
        "--stop 90m",
        "interval --stall 5s --length 3h --mtbf 20h --curve exp:2.3,1h --objective "
        "priced"}) {
    const Json seen = json(line);
    double saves = INFINITY;
    ASSERT_EQ(seen["sensitivity"].size(), 5u);
    for (const Json& row : seen["sensitivity"]) {
      EXPECT_GE(row["loss"].get<double>(), -1e-6) << line;
      EXPECT_GE(row["kept"].get<double>(), row["optimum"].get<double>() * (1 - 1e-6));
      EXPECT_LE(row["saves"].get<double>(), saves) << line;
      saves = row["saves"].get<double>();
    }
    EXPECT_EQ(seen["sensitivity"][2]["interval"], seen["interval"]) << line;
    EXPECT_EQ(seen["sensitivity"][2]["kept"], seen["cost"]) << line;
  }
}

TEST_F(ScheduleCommandTest, ManySecondsArePrintedWithoutAnExponent) {
  const Ran ran =
      run("simulate --stall 30 --mtbf 8h --length 9d --persist 20 --runs 50");
  EXPECT_EQ(ran.out.find("e+"), std::string::npos) << ran.out;
  EXPECT_NE(ran.out.find("overhead by the closed form, s: young 37,144,"),
            std::string::npos)
      << ran.out;
}

TEST_F(ScheduleCommandTest, ASecondOfDelayCanCostNothing) {
  const std::string line =
      "interval --stall 5s --length 3h --mtbf 2h --curve exp:1,1h --stop 90m";
  EXPECT_LT(json(line + " --second 0")["cost"].get<double>(),
            json(line)["cost"].get<double>());
}

TEST_F(ScheduleCommandTest, EventsOfEarlierRunsGiveCostsAndFailures) {
  std::string log;
  const auto add = [&](int64_t second, const std::string& event) {
    log += fmt::format("{{\"wall_ns\":{0}000000000,\"mono_ns\":{0}000000000,{1}}}\n",
                       1000 + second, event);
  };
  for (int64_t i = 0; i < 20; ++i) {
    const double stall = i == 0 ? 9 : 0.5;
    if (i == 10) add(i * 600, R"("event":"restored","step":700,"seconds":1.0)");
    add(i * 600 + 1,
        fmt::format(R"("event":"save_captured","step":{},"seconds":{:.1f})", i * 100,
                    stall));
    add(i * 600 + 5, fmt::format(R"("event":"save_durable","step":{},"seconds":{:.1f})",
                                 i * 100, stall + 3));
  }
  write("events.jsonl", log);
  const Json seen = json("interval --events events.jsonl --mtbf 3h");
  EXPECT_NEAR(seen["job"]["stall"].get<double>(), 0.5, 0.5);
  EXPECT_NEAR(seen["job"]["persist"].get<double>(), 3, 1e-9);
  // The prior counts like four failures, and there was one failure in 3.15 h.
  EXPECT_NEAR(seen["job"]["mtbf"].get<double>(), (4 * 10800 + 10805) / 5.0, 150);
}

TEST_F(ScheduleCommandTest, TiersHaveNestedIntervals) {
  const Json seen = json("interval --tier memory,50ms,1s,6h disk,1s,10s,2d")["tiers"];
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen[0]["each"], 1);
  EXPECT_GT(seen[1]["each"].get<int64_t>(), 5);
  EXPECT_NE(run("interval --tier disk,1s,10s,2d").out.find("every n-th save"),
            std::string::npos);
  expect_wrong_call("interval --tier disk",
                    "tier: \"disk\"; expected NAME,STALL,PERSIST,MTBF");
}

TEST_F(ScheduleCommandTest, SimulateComparesSchedulesOnTheSameFailures) {
  const std::string line =
      "simulate --length 3h --stall 5s --restart 1m --mtbf 2h --runs 2000 "
      "--schedules young,optimal,50m --curve exp:2.3,1h";
  const Json seen = json(line);
  ASSERT_EQ(seen["schedules"].size(), 3u);
  const Json& young = seen["schedules"][0];
  EXPECT_NEAR(young["time"]["mean"].get<double>(), young["expected_time"].get<double>(),
              1.5 * young["time"]["ci95"].get<double>());
  const Json& rare = seen["schedules"][2]["time_against_first"];
  EXPECT_GT(rare["mean"].get<double>(), 5 * rare["ci95"].get<double>());
  const Ran text = run(line);
  EXPECT_NE(text.out.find("against young"), std::string::npos);
  EXPECT_EQ(run(line).out, text.out);
}

TEST_F(ScheduleCommandTest, TracesAndManyWorkersAreSimulated) {
  write("trace.txt", "# failures\n600\n4000\n9000\n");
  const Json traced = json(
      "simulate --length 2h --stall 5s --mtbf 2h --failures trace:trace.txt --runs 1");
  EXPECT_EQ(traced["schedules"][0]["failures"], 2.0);
  const Json many = json(
      "simulate --length 2h --stall 1s --mtbf 10000h --workers 100000 --runs 50 "
      "--failures weibull:0.7,30d");
  EXPECT_GT(many["schedules"][0]["failures"].get<double>(), 10);
  const Json shrinking = json(
      "simulate --length 2h --stall 5s --mtbf 24h --allocate 32 --runs 50 "
      "--curve exp:1,2h exp:0.3,2h exp:0.1,2h");
  EXPECT_GT(shrinking["schedules"][0]["worker_seconds"]["mean"].get<double>(),
            shrinking["schedules"][0]["time"]["mean"].get<double>());
}

// Three stages: the border between the first two carries more. There is room for one.
TEST_F(ScheduleCommandTest, IntervalSaysWhichBordersToLogByTheEventsOfTheRanks) {
  const auto tell = [&](int rank, const std::string& borders) {
    write("/run/" + event_log_name(rank),
          R"({"event":"messages_kept","wall_ns":1,"mono_ns":1,"own_seconds":0.25,)"
          R"("borders":")" + borders + "\"}\n");
  };
  ASSERT_OK(env_.create_folders("/run/events"));
  tell(0, "0>1 3000");
  tell(1, "1>0 3000 1>2 1000");
  tell(2, "2>1 1000");
  const std::string line = "interval /run --log-budget 20KB --log-steps 10";
  const Json seen = json(line);
  EXPECT_EQ(seen["borders"][0]["logged"], false);
  EXPECT_EQ(seen["borders"][1]["logged"], true);
  EXPECT_EQ(seen["bytes"], 20'000);
  EXPECT_LT(seen["seconds"], seen["seconds_none"]);
  EXPECT_GT(seen["seconds"], seen["seconds_all"]);
  const Ran ran = run(line);
  EXPECT_NE(ran.out.find("20.00 kB of 20.00 kB for 10 steps"), std::string::npos)
      << ran.out << ran.err;
  tell(1, "1>0 -3");
  EXPECT_EQ(run(line).code, 2);
  EXPECT_EQ(run("interval --log-budget 20KB").code, 2);
}

TEST_F(ScheduleCommandTest, WorkersAreDividedAgainAsOftenAsAsked) {
  const Json seen = json(
      "interval --length 2h --stall 5s --allocate 32 --reallocate 30m "
      "--curve exp:1,2h exp:0.1,2h");
  const Json& workers = seen["job"]["workers"];
  ASSERT_GE(workers.size(), 2u);
  for (size_t i = 0; i < workers.size(); ++i) {
    EXPECT_EQ(std::fmod(workers[i]["start"].get<double>(), 1800), 0);
    EXPECT_LE(workers[i]["count"].get<double>(), 31);
  }
}

// At the phase 0.5 the failures of every 30 s come after 15 s, 45 s and 75 s of work.
TEST_F(ScheduleCommandTest, FailuresComeAtTheGivenPhaseOfTheirPeriod) {
  const Json seen = json(
      "simulate --length 100 --stall 0 --mtbf 30 --runs 1 --failures every:30,0.5 "
      "--schedules 20s");
  EXPECT_EQ(seen["schedules"][0]["failures"], 3.0);
  EXPECT_EQ(seen["schedules"][0]["redone"], 15.0 + 5.0 + 15.0);
}

TEST_F(ScheduleCommandTest, TheProgressUntilAStopIsMeasured) {
  const Json seen = json(
      "simulate --length 1h --stall 5s --mtbf 1h --runs 100 --curve exp:1,20m "
      "--stop-at 15m");
  const Json& first = seen["schedules"][0];
  EXPECT_GT(first["progress_until_stop"]["mean"].get<double>(), 0);
  EXPECT_LT(first["progress_until_stop"]["mean"], first["progress"]["mean"]);
}

// The job is killed 3 s after the second save, and again in the middle of the stall of
// the third save.
TEST_F(ScheduleCommandTest, ARunIsReplayedFromWhereItSavedAndWhenItFailed) {
  write("saves.txt", "# seconds of work\n20\n40\n60\n");
  write("failures.txt", "45\n75.5\n1e9\n");
  const Json seen = json(
      "simulate --length 100 --stall 1 --persist 2 --restart 10 --mtbf 30 --runs 1 "
      "--failures trace:failures.txt --schedules at:saves.txt,20s");
  const Json& replayed = seen["schedules"][0];
  EXPECT_EQ(replayed["failures"], 2.0);
  EXPECT_EQ(replayed["redone"], 3.0 + 20.0);
  EXPECT_EQ(replayed["stalled"], 2 + 0.5 + 1);
  EXPECT_EQ(replayed["time"]["mean"], 23 + 3.5 + 2 * 10);
  EXPECT_EQ(seen["schedules"][1]["redone"], 23.0);
}

TEST_F(ScheduleCommandTest, WrongCallsAreOneClearSentence) {
  expect_wrong_call("interval",
                    "--stall: it is not known how long a save stops the job; expected "
                    "--stall, --events or a run directory");
  expect_wrong_call(
      "interval runs/gpt --stall 5",
      "runs/gpt: is not a run directory; expected one with holdfast.json");
  expect_wrong_call("interval --stall=-5",
                    "--stall: \"-5\"; expected a time such as 90s, 10m, 8h or 2d");
  expect_wrong_call("interval --stall nan",
                    "--stall: \"nan\"; expected a time such as 90s, 10m, 8h or 2d");
  expect_wrong_call("interval --stall 5 --length 0",
                    "length: 0 s; expected more than 0 and at most 10^12");
  expect_wrong_call("interval --stall 5 --mtbf 0",
                    "mtbf: 0 s; expected more than 0, or never");
  expect_wrong_call("interval --stall 5 --objective fast",
                    "objective: \"fast\"; expected delay, progress, explore or priced");
  expect_wrong_call("interval --stall 5 --objective progress",
                    "objective progress: has no curve; expected --curve");
  expect_wrong_call("interval --stall 5 --objective delay --stop 2h --curve exp:1,1h",
                    "objective delay: does not support --stop, --rungs and --deadline; "
                    "expected explore");
  expect_wrong_call("interval --stall 5 --curve exp:1,-1h",
                    "curve: \"-1h\"; expected a time such as 90s, 10m, 8h or 2d");
  expect_wrong_call("interval --stall 5 --curve exp:nan,1h",
                    "curve: \"nan\"; expected a number");
  expect_wrong_call("interval --stall 5 --slack 2",
                    "--slack: 2; expected a share of 0 to 1");
  expect_wrong_call("simulate --stall 5 --runs 0", "runs: 0; expected 1 to 100000000");
  expect_wrong_call("simulate --stall 5 --failures weibull:-1",
                    "weibull: shape -1; expected 0.1 to 20");
  expect_wrong_call("simulate --stall 5 --workers 4 --allocate 8 --curve exp:1,1h",
                    "--allocate and --workers: both are given; expected one of them");
  expect_wrong_call("simulate --stall 5 --failures every:30,2",
                    "failures: at a phase of 2; expected a share of 0 to 1");
  EXPECT_EQ(run("simulate --stall 5 --failures every:30,0.5,1").code, 2);
  write("back.txt", "20\n10\n");
  expect_wrong_call("simulate --stall 5 --schedules at:back.txt",
                    "back.txt: a save at 10 s after 20 s; expected rising times");
  EXPECT_EQ(run("simulate --stall 5 --schedules at:none.txt").code, 2);
  const Ran missing = run("simulate --stall 5 --failures trace:none.txt");
  EXPECT_EQ(missing.code, 2) << missing.err;
  EXPECT_EQ(run("interval --stall 5 --workers 0").code, 2);
  expect_wrong_call("simulate --stall 5 --schedules best",
                    "--schedules: \"best\"; expected an interval, at:FILE or a policy "
                    "(optimal, even, young, daly-first, daly, daly-exact, checkfreq, "
                    "coci, coci-normalised, coci-parallel, equal-progress)");
}

}  // namespace
}  // namespace holdfast
