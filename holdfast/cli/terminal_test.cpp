// Tests how commands look on a terminal: their width, -q and -v, suggestions for mistyped
// words, shell completion, and the version of --json.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>

#include "holdfast/base/json.h"
#include "holdfast/base/report_json.h"
#include "holdfast/checkpoint/checkpoint_testing.h"
#include "holdfast/cli/cli_testing.h"
#include "holdfast/cli/suggest.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/contents/contents_testing.h"
#include "holdfast/formats/format.h"

namespace holdfast::tests {
namespace {

size_t longest_line(const std::string& text) {
  size_t most = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) most = std::max(most, line.size());
  return most;
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != text.npos;
}

Object text_object(const char* key, Object value) {
  return Object(Object::Dict{{{Object(key), std::move(value)}}});
}

class TerminalTest : public ::testing::Test {
 protected:
  Ran run(const std::string& line, Terminal terminal = {}) {
    return run_line(*env_, line, terminal);
  }
  Json json(const std::string& line) {
    return parse_json(run(line + " --json").out, line).value();
  }

  void save(int64_t step, std::map<std::string, double> metrics = {},
            Object objects = {}) {
    const LocalState state = job_.state(0);
    const auto saver = Saver::open(*env_, run_path_, nullptr, test_options());
    ASSERT_OK(saver);
    const auto handle = (*saver)->save({.step = step,
                                        .state = &state,
                                        .objects = {.of_all = std::move(objects)},
                                        .metrics = std::move(metrics)});
    ASSERT_OK(handle);
    ASSERT_OK(handle->durable());
    ASSERT_OK((*saver)->close());
  }

  // A file of `count` tensors of one number.
  std::string write_numbers(const char* name, int count, float number) {
    std::vector<Tensor> tensors;
    std::vector<Memory> memories;
    const auto bytes = std::as_bytes(std::span(&number, 1));
    for (int i = 0; i < count; ++i) {
      tensors.push_back(
          {.name = fmt::format("t{:03}", i), .dtype = Dtype::kF32, .shape = {1}});
      memories.emplace_back(bytes.begin(), bytes.end());
    }
    const std::string path = root_ + "/" + name;
    EXPECT_OK(write_file(*env_, path, contents_with(tensors, memories)));
    return path;
  }

  TempFolder temp_;
  std::unique_ptr<Env> env_ = make_posix_env();
  const std::string root_ = temp_.path().native();
  const std::string run_path_ = root_ + "/a-run-with-a-long-name-in-a-deep-folder/gpt";
  Job job_{replicated({{.name = "w", .dtype = Dtype::kU8, .shape = {100}}}, 1)};

  void SetUp() override { ASSERT_OK(env_->create_folders(run_path_)); }
};

TEST_F(TerminalTest, LsFitsTheTerminal) {
  save(100, {{"loss", 1.23456789}, {"accuracy", 0.123456}, {"perplexity", 1234.5}});
  save(200, {{"loss", 0.5}});
  ASSERT_OK(env_->remove_file(run_path_ + "/step-00000200/rank-0000.safetensors"));
  const Ran narrow = run("ls " + run_path_, {.width = 80});
  EXPECT_EQ(narrow.code, 0) << narrow.err;
  EXPECT_LE(longest_line(narrow.out), 80u) << narrow.out;
  for (const char* part :
       {"step-00000100", "accuracy", "newest", "damaged", "age", ": run "}) {
    EXPECT_TRUE(contains(narrow.out, part)) << part << "\n" << narrow.out;
  }
  EXPECT_FALSE(contains(narrow.out, "saved")) << narrow.out;
  EXPECT_TRUE(contains(narrow.out, "...")) << narrow.out;
}

TEST_F(TerminalTest, LsIsWholeOnAWideTerminalWithVerboseAndInAPipe) {
  const std::map<std::string, double> metrics = {{"accuracy", 0.123456},
                                                 {"perplexity", 1234.5}};
  save(100, metrics);
  const std::string whole = run("ls " + run_path_).out;
  EXPECT_GT(longest_line(whole), 80u);
  for (const char* part : {"saved", "ranks", "accuracy=0.123456 perplexity=1234.5"}) {
    EXPECT_TRUE(contains(whole, part)) << part << "\n" << whole;
  }
  const auto table = [](const std::string& text) {  // the ages change
    return text.substr(0, text.find("folder"));
  };
  EXPECT_EQ(table(run("ls " + run_path_, {.width = 300}).out), table(whole));
  EXPECT_EQ(table(run("ls -v " + run_path_, {.width = 40}).out), table(whole));
}

TEST_F(TerminalTest, ShowFoldsLongBytesUnlessVerbose) {
  const Bytes bytes(5000, std::byte{0xab});
  const std::string digits(100, 'c');
  save(100, {}, text_object("state", Object(bytes)));
  save(200, {}, text_object("digest", Object(digits)));
  const Ran folded = run("show --objects " + run_path_ + "@100");
  EXPECT_TRUE(contains(folded.out, R"({"$bytes":"abababababababababababababababab..., )"
                                   R"(5,000 bytes"})"))
      << folded.out;
  EXPECT_GT(longest_line(run("show -v --objects " + run_path_ + "@100").out), 10000u);
  const Ran named = run("show " + run_path_ + "@100");
  EXPECT_LT(longest_line(named.out), 200u) << named.out;
  EXPECT_TRUE(contains(named.out, "(--objects prints all of it)")) << named.out;
  EXPECT_TRUE(contains(run("show --objects " + run_path_ + "@200").out,
                       std::string(32, 'c') + "..., 100 digits\""));
  EXPECT_EQ(json("show " + run_path_ + "@100")["objects"]["state"]["$bytes"]
                .get<std::string>()
                .size(),
            10000u);
}

TEST_F(TerminalTest, DiffSumsUpAndDoesNotListThousands) {
  const std::string a = write_numbers("a.pt", 1000, 1);
  const std::string b = write_numbers("b.pt", 1003, 2);
  const Ran ran = run("diff " + a + " " + b);
  EXPECT_EQ(ran.code, 1) << ran.err;
  EXPECT_EQ(std::ranges::count(ran.out, '\n'), 1 + 20 + 1 + 1) << ran.out;
  EXPECT_TRUE(contains(ran.out, "\nand 983 more (-v lists all)\n")) << ran.out;
  EXPECT_TRUE(ran.out.ends_with(
      "\n0 of 1,003 tensors are equal, 1,000 differ, 3 are only in the second; the "
      "objects are equal; 4.00 kB compared\n"))
      << ran.out;
  const Ran all = run("diff -v " + a + " " + b);
  EXPECT_EQ(std::ranges::count(all.out, '\n'), 1 + 1003 + 1);
  EXPECT_TRUE(contains(all.err, "holdfast: diff took ")) << all.err;
  EXPECT_TRUE(run("diff " + a + " " + a)
                  .out.starts_with("1,000 of 1,000 tensors are equal, and so are the "
                                   "objects; "));
}

TEST_F(TerminalTest, QuietPrintsOnlyErrors) {
  save(100);
  save(200);
  const std::string model = root_ + "/m.pt";
  for (const std::string& line :
       {"ls " + run_path_, "show " + run_path_, "verify " + run_path_,
        "convert " + run_path_ + " " + model, "diff " + run_path_ + " " + model,
        "pin " + run_path_ + " 200", "unpin " + run_path_ + " 200",
        "gc --keep-last 1 " + run_path_, std::string("interval --stall 1s --mtbf 8h"),
        std::string("plan --model gpt2 --from tp=1 --to tp=2")}) {
    for (const char* flag : {" -q", " --quiet"}) {
      const Ran ran = run(line + flag, {.progress = true});
      if (contains(line, "convert") && contains(flag, "--")) continue;  // it exists now
      EXPECT_EQ(ran.code, 0) << line << ran.err;
      EXPECT_EQ(ran.out + ran.err, "") << line;
    }
  }
  EXPECT_EQ(run("-q ls " + run_path_).out, "");
  EXPECT_EQ(run("-q ls nowhere").err,
            "holdfast: nowhere: No such file or directory\n");
  EXPECT_EQ(json("-q ls " + run_path_)["runs"].size(), 1u);
  EXPECT_EQ(run("ls -q -v").code, 2);
}

TEST_F(TerminalTest, QuietVerifyPrintsOnlyWhatIsDamaged) {
  save(100);
  save(200);
  const std::string shard = run_path_ + "/step-00000200/rank-0000.safetensors";
  ASSERT_OK(env_->remove_file(shard));
  const Ran ran = run("verify -q " + run_path_);
  EXPECT_EQ(ran.code, 3);
  EXPECT_TRUE(contains(ran.out, "step-00000200: DAMAGED")) << ran.out;
  EXPECT_FALSE(contains(ran.out, "step-00000100")) << ran.out;
}

TEST_F(TerminalTest, EveryJsonHasItsVersion) {
  save(100);
  const std::string model = root_ + "/m.pt";
  for (const std::string& line :
       {"ls " + run_path_, "show " + run_path_, "verify " + run_path_,
        "convert " + run_path_ + " " + model, "diff " + run_path_ + " " + model,
        "pin " + run_path_ + " 100", "unpin " + run_path_ + " 100",
        "gc --keep-last 1 " + run_path_, std::string("interval --stall 1s --mtbf 8h"),
        std::string("interval --tier disk,1s,10s,2d"),
        std::string("simulate --stall 1s --mtbf 8h --runs 10"),
        std::string("plan --model gpt2 --from tp=1 --to tp=2"),
        std::string("completion bash"), std::string("fly"), std::string("ls nowhere"),
        std::string("show nowhere")}) {
    const std::string out = run(line + " --json").out;
    const Result<Json> seen = parse_json(out, line);
    ASSERT_OK(seen);
    EXPECT_EQ((*seen)["version"], kReportVersion) << line;
    EXPECT_TRUE(out.starts_with("{\n  \"version\": ")) << line;
  }
}

TEST(SuggestTest, TheNearestWordIsFound) {
  const std::vector<std::string> verbs{"ls", "show", "verify", "convert", "simulate"};
  EXPECT_EQ(nearest_word("verfy", verbs), "verify");
  EXPECT_EQ(nearest_word("sl", verbs), "ls");
  EXPECT_EQ(nearest_word("shwo", verbs), "show");
  EXPECT_EQ(nearest_word("sim", verbs), "simulate");
  EXPECT_EQ(nearest_word("simlutae", verbs), "simulate");
  EXPECT_EQ(nearest_word("fly", verbs), std::nullopt);
  EXPECT_EQ(nearest_word("s", verbs), std::nullopt);
  EXPECT_EQ(nearest_word(std::string(100000, 'v'), verbs), std::nullopt);
}

TEST_F(TerminalTest, MistypedWordsAreAnsweredWithTheRightOnes) {
  const auto expect = [&](const std::string& line, const std::string& sentence) {
    const Ran ran = run(line);
    EXPECT_EQ(ran.code, 2) << line;
    EXPECT_EQ(ran.err, "holdfast: " + sentence + "\n") << line;
  };
  expect("verfy runs/gpt", "verfy: is not a verb; did you mean verify?");
  expect("-v shwo", "shwo: is not a verb; did you mean show?");
  expect("ls --jsno", "ls: --jsno: is not an option; did you mean --json?");
  expect("show --tensor", "show: --tensor: is not an option; did you mean --tensors?");
  expect("gc runs --keeplast=3",
         "gc: --keeplast: is not an option; did you mean --keep-last?");
  expect("pin run 3 --frobnicate",
         "pin: --frobnicate: is not an option; expected -q, --quiet, -v, "
         "--verbose, --json, -h, --help");
  EXPECT_TRUE(contains(run("--frobnicate").err, "no verb; expected ls, "));
}

// What bash completes for the words of a line; the last word may be empty.
std::string completed(const std::string& script,
                      const std::vector<std::string>& words) {
  std::string line = "source " + script + "; COMP_WORDS=(";
  for (const std::string& word : words) line += " '" + word + "'";
  line += fmt::format("); COMP_CWORD={}; _holdfast; echo \"${{COMPREPLY[*]}}\"",
                      words.size() - 1);
  FILE* pipe = popen(fmt::format("bash -c '{}'",
                                 [&] {
                                   std::string safe;
                                   for (const char c : line)
                                     safe += c == '\'' ? "'\\''" : std::string(1, c);
                                   return safe;
                                 }())
                         .c_str(),
                     "r");
  std::string out;
  for (std::array<char, 256> some; fgets(some.data(), some.size(), pipe) != nullptr;) {
    out += some.data();
  }
  EXPECT_EQ(pclose(pipe), 0) << line;
  return out;
}

TEST_F(TerminalTest, BashCompletesVerbsOptionsAndValues) {
  const std::string script = root_ + "/holdfast.bash";
  const Ran ran = run("completion bash");
  ASSERT_EQ(ran.code, 0) << ran.err;
  ASSERT_OK(env_->write_file(script, std::as_bytes(std::span(ran.out))));
  EXPECT_EQ(completed(script, {"holdfast", "ver"}), "verify\n");
  EXPECT_EQ(completed(script, {"holdfast", "-q", "si"}), "simulate\n");
  EXPECT_EQ(completed(script, {"holdfast", "gc", "runs/gpt", "--keep-"}),
            "--keep-last --keep-every --keep-best\n");
  EXPECT_EQ(completed(script, {"holdfast", "show", "--verb"}), "--verbose\n");
  EXPECT_EQ(completed(script, {"holdfast", "plan", "--training", "mixed"}),
            "mixed-adam mixed-sgd\n");
  EXPECT_EQ(completed(script, {"holdfast", "completion", ""}), "bash zsh fish\n");
  // Files are completed by bash itself if nothing is offered.
  EXPECT_EQ(completed(script, {"holdfast", "show", ""}), "\n");
  EXPECT_EQ(completed(script, {"holdfast", "plan", "--from", ""}), "\n");
  EXPECT_TRUE(contains(ran.out, "complete -o bashdefault -o default"));
}

TEST_F(TerminalTest, EveryVerbAndOptionIsInEveryScript) {
  for (const std::string shell : {"bash", "zsh", "fish"}) {
    const std::string script = run("completion " + shell).out;
    for (const char* word : {"ls", "unpin", "simulate", "completion", "keep-best",
                             "training", "quiet", "mixed-adam"}) {
      EXPECT_TRUE(contains(script, word)) << shell << ": " << word;
    }
  }
  EXPECT_EQ(run("completion tcsh").err,
            "holdfast: shell \"tcsh\": is not known; expected bash, zsh or fish\n");
}

}  // namespace
}  // namespace holdfast::tests
