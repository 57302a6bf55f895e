// Tests the verbs that read and write files of known formats.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "holdfast/base/json.h"
#include "holdfast/cli/cli_testing.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/contents/contents_testing.h"
#include "holdfast/formats/format.h"

namespace holdfast::tests {
namespace {

template <typename T>
Memory memory_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

Contents floats(const std::vector<float>& values, Object objects = {}) {
  Contents made =
      contents_with({{.name = "w",
                      .dtype = Dtype::kF32,
                      .shape = {2, static_cast<int64_t>(values.size()) / 2}}},
                    {memory_of(values)});
  made.objects = std::move(objects);
  return made;
}

// {"model": {"fc": w, "tied": w}, "lr": 0.1, "betas": (0.9, 0.999), 3: [True, None]}
Contents nested() {
  Contents made =
      random_contents({{.name = "model.fc",
                        .dtype = Dtype::kBf16,
                        .shape = {3, 5},
                        .aliases = {"model.tied"}},
                       {.name = "model.count", .dtype = Dtype::kI64, .shape = {}}});
  const auto leaf = [](const char* name) { return Object(Object::TensorName{name}); };
  const Object model(Object::Dict{{{Object("fc"), leaf("model.fc")},
                                   {Object("tied"), leaf("model.tied")},
                                   {Object("count"), leaf("model.count")}}});
  made.objects = Object(Object::Dict{
      {{Object("model"), model},
       {Object("lr"), Object(0.1)},
       {Object("betas"), Object(Object::Tuple{{Object(0.9), Object(0.999)}})},
       {Object(int64_t{3}), Object(Object::List{{Object(true), Object()}})}}});
  return made;
}

class FileCommandsTest : public ::testing::Test {
 protected:
  Ran run(const std::string& line) { return run_line(env_, line); }
  Json json(const std::string& line) {
    return parse_json(run(line + " --json").out, "out").value();
  }
  void write(const std::string& path, const Contents& contents) {
    ASSERT_OK(write_file(env_, path, contents));
  }
  MemoryEnv env_;
};

TEST_F(FileCommandsTest, ConvertGoesRoundAllFormatsWithoutLosingABit) {
  const Contents made = nested();
  write("a.pt", made);
  ASSERT_EQ(run("convert a.pt b.safetensors").code, 0);
  ASSERT_EQ(run("convert b.safetensors folder/").code, 0);
  ASSERT_EQ(run("convert folder c --format torch").code, 0);
  for (const char* path : {"a.pt", "b.safetensors", "folder", "c"}) {
    const Result<Contents> seen = open_file(env_, path);
    ASSERT_OK(seen);
    expect_same_tensors(*seen, made);
    EXPECT_TRUE(seen->objects == made.objects) << path;
    EXPECT_EQ(run(std::string("diff a.pt ") + path).code, 0) << path;
    EXPECT_EQ(run(std::string("verify ") + path).code, 0) << path;
  }
  EXPECT_EQ(json("show c")["objects"]["$dict"][2][1]["$tuple"][1], 0.999);
}

TEST_F(FileCommandsTest, ConvertSaysWhatItDidAndWhatItLeftOut) {
  Contents made = floats({1, 2});
  made.metadata = {{"license", "none"}};
  write("a.safetensors", made);
  const Json done = json("convert a.safetensors b.pt");
  EXPECT_EQ(done["kind"], "safetensors");
  EXPECT_EQ(done["format"], "torch");
  EXPECT_EQ(done["bytes"], 8);
  EXPECT_EQ(done["left_out"].back(), "metadata license");
}

TEST_F(FileCommandsTest, DiffCountsAndMeasures) {
  write("a.pt", floats({1, 2, 3, 4, 5, 6}));
  write("b.safetensors", floats({1, 2, 3, 4.5, 5, -6}));
  const Ran ran = run("diff a.pt b.safetensors");
  EXPECT_EQ(ran.code, 1);
  EXPECT_EQ(ran.err, "");
  EXPECT_NE(ran.out.find("2 of 6 elements"), ran.out.npos) << ran.out;
  const Json tensor = json("diff a.pt b.safetensors")["tensors"][0];
  EXPECT_EQ(tensor["verdict"], "differs");
  EXPECT_EQ(tensor["differing"], 2);
  EXPECT_EQ(tensor["max_absolute"], 12);
  EXPECT_EQ(tensor["max_relative"], 2);
  EXPECT_EQ(tensor["first"], Json::array({1, 0}));
}

TEST_F(FileCommandsTest, DiffSaysNanWhereThereIsNoDistance) {
  write("a.pt", floats({1, NAN, 3, 4}));
  write("b.pt", floats({1, 2, 3, 5}));
  EXPECT_EQ(json("diff a.pt b.pt")["tensors"][0]["max_absolute"], "nan");
  EXPECT_EQ(run("diff a.pt a.pt").code, 0);
}

TEST_F(FileCommandsTest, DamageOfATorchFileIsFoundByItsRecord) {
  write("a.pt", floats(std::vector<float>(1000, 1.5f)));
  Bytes bytes = env_.read_file("a.pt").value();
  const Memory pattern = memory_of(std::vector<float>(8, 1.5f));
  const auto at =
      std::search(bytes.begin(), bytes.end(), pattern.begin(), pattern.end());
  ASSERT_NE(at, bytes.end());
  at[5] ^= std::byte{1};
  ASSERT_OK(env_.write_file("a.pt", bytes));
  const Ran ran = run("verify a.pt");
  EXPECT_EQ(ran.code, 3);
  EXPECT_NE(ran.out.find("data/0"), ran.out.npos) << ran.out;
  EXPECT_EQ(run("verify --fast a.pt").code, 0);
}

TEST_F(FileCommandsTest, ATorchFileWithoutACrcIsNotSaidToBeChecked) {
  write("a.pt", floats({1, 2}));
  EXPECT_EQ(json("verify a.pt")["verified"][0]["digests"], true);
  Bytes bytes = env_.read_file("a.pt").value();
  const auto name = text_of(bytes).rfind("/data/0");  // in the directory
  const auto entry = text_of(bytes).rfind("PK\x01\x02", name);
  for (size_t i = 0; i < 4; ++i) bytes[entry + 16 + i] = std::byte{0};
  ASSERT_OK(env_.write_file("a.pt", bytes));
  EXPECT_EQ(json("verify a.pt")["verified"][0]["digests"], false);
  EXPECT_NE(run("verify a.pt").out.find("contents not checked"), std::string::npos);
}

TEST_F(FileCommandsTest, ASafetensorsFileIsCheckedAsFarAsItCanBe) {
  write("a.safetensors", floats({1, 2}));
  EXPECT_EQ(json("verify a.safetensors")["verified"][0]["digests"], false);
  const Bytes bytes = env_.read_file("a.safetensors").value();
  ASSERT_OK(env_.write_file("a.safetensors", ByteView(bytes).first(bytes.size() - 1)));
  EXPECT_EQ(run("verify a.safetensors").code, 3);
  EXPECT_EQ(run("show a.safetensors").code, 3);
}

TEST_F(FileCommandsTest, AFileThatLostWhatItIsKnownByIsDamagedAllTheSame) {
  const Bytes zeros(4096);
  ASSERT_OK(env_.write_file("zeroed.safetensors", zeros));
  for (const char* path : {"a.safetensors", "a.pt", "a.pth", "a.bin"}) {
    ASSERT_OK(env_.write_file(path, {}));
  }
  for (const std::string path :
       {"a.safetensors", "a.pt", "a.pth", "a.bin", "zeroed.safetensors"}) {
    const Ran ran = run("verify " + path);
    EXPECT_EQ(ran.code, 3) << path << ": " << ran.err;
    EXPECT_NE(ran.out.find("DAMAGED"), ran.out.npos) << ran.out;
  }
  ASSERT_OK(env_.write_file("zeroed.bin", zeros));
  ASSERT_OK(env_.write_file("a.txt", {}));
  for (const char* path : {"zeroed.bin", "a.txt"}) {
    EXPECT_EQ(run(std::string("verify ") + path).code, 1) << path;
  }
}

TEST_F(FileCommandsTest, NamesFromFilesCannotSpeakToTheTerminal) {
  write("a.safetensors",
        contents_with({{.name = "w\033[2Jx\u202e", .shape = {1}}}, {Memory(4)}));
  for (const char* line : {"show a.safetensors --tensors --layout",
                           "diff a.safetensors a.safetensors --all"}) {
    const Ran ran = run(line);
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_EQ(ran.out.find('\033'), ran.out.npos);
    EXPECT_NE(ran.out.find("w\\x1b[2Jx\\u202e"), ran.out.npos) << ran.out;
  }
  const Ran programs = run("show a.safetensors --json");
  EXPECT_NE(programs.out.find("w\\u001b[2Jx\\u202e"), std::string::npos);
}

TEST_F(FileCommandsTest, ProgressIsShownOnlyOnATerminalAndWipedInTheEnd) {
  write("a.pt", floats({1, 2}));
  EXPECT_EQ(run("convert a.pt b.pt").err, "");
  const Ran ran = run_line(env_, "convert a.pt c.pt", {.progress = true});
  EXPECT_TRUE(ran.err.starts_with("\r\033[Kconvert  ")) << ran.err;
  EXPECT_TRUE(ran.err.ends_with("\r\033[K")) << ran.err;
}

TEST_F(FileCommandsTest, InjectFlipsWhatTheSeedChoosesAndUndoesIt) {
  write("a.pt", floats({0.5f, 0.25f, 3, 4}));
  const Bytes before = env_.read_file("a.pt").value();
  const std::string call = "inject a.pt --tensors w --bits 30 --seed 7";
  const Ran shown = run(call + " --dry-run");
  EXPECT_EQ(shown.code, 0) << shown.err;
  const Ran done = run(call + " b.pt --checksums consistent --save-plan p.json");
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(done.out, shown.out);
  EXPECT_TRUE(done.out.starts_with("w [") &&
              done.out.find("F32 bit 30  ") != std::string::npos)
      << done.out;
  EXPECT_EQ(run("verify b.pt").code, 0);
  EXPECT_EQ(json("diff a.pt b.pt")["tensors"][0]["differing"], 1);
  EXPECT_EQ(run(call + " c.pt --checksums raw").code, 0);
  EXPECT_EQ(run("verify c.pt").code, 3);
  EXPECT_EQ(run("inject b.pt --in-place --undo p.json --checksums consistent").code, 0);
  EXPECT_TRUE(env_.read_file("b.pt").value() == before);
  EXPECT_EQ(run("inject a.pt d.pt --plan p.json --checksums consistent").code, 0);
  EXPECT_EQ(run("inject d.pt e.pt --plan p.json --checksums consistent").code, 1);
  EXPECT_EQ(json("inject a.pt --dry-run")["holdfast"], "flip plan");
  EXPECT_TRUE(env_.read_file("a.pt").value() == before);
}

TEST_F(FileCommandsTest, InjectSaysWhatIsWrongInOneSentenceAndTouchesNothing) {
  write("a.pt", floats({1, 2}));
  const auto fails = [&](const std::string& rest, int code, const std::string& words) {
    const Ran ran = run("inject a.pt " + rest);
    EXPECT_EQ(ran.code, code) << rest;
    EXPECT_NE(ran.err.find(words), std::string::npos) << ran.err;
    EXPECT_EQ(std::ranges::count(ran.err, '\n'), 1) << ran.err;
    EXPECT_EQ(env_.list("").value().size(), 1u) << rest;
  };
  fails("b.pt", 2, "--checksums is not given");
  fails("b.pt --checksums exact", 2, "raw, consistent or sealed");
  fails("--checksums raw", 2, "--in-place");
  fails("b.pt --in-place --checksums raw", 2, "both given");
  fails("b.pt --checksums sealed", 2, "holdfast: a.pt: has no seals");
  fails("b.pt --checksums raw --tensors x", 4, "no tensor has such a name");
  fails("b.pt --checksums raw --bits 40", 2, "such bits");
  fails("b.pt --checksums raw --flips 65", 2, "no site left");
  fails("b.pt --checksums consistent --anywhere", 2, "raw");
  fails("b.pt --checksums raw --plan p.json", 4, "p.json");
  fails("b.pt --checksums raw --plan p.json --tensors w", 2, "--plan and --tensors");
  fails("b.pt --checksums raw --undo p.json --flips 2", 2, "--undo and --flips");
  fails("b.pt --checksums raw --anywhere --bits 30", 2, "--anywhere and --bits");
  fails("b.pt --checksums raw --anywhere --rate 0.1", 2, "--anywhere and --rate");
  fails("a.pt --checksums raw", 1, "exists already");
  fails("b.pt --checksums raw --rate 0.5 --flips 3", 2, "--rate and --flips");
  fails("b.pt --checksums raw --scale 2 --bits 30", 2, "--scale and --bits");
  fails("b.pt --checksums raw --value 2 --bits 30", 2, "--value and --bits");
  fails("b.pt --checksums raw --save-plan a.pt", 1, "a.pt: exists already");
  fails("b.pt --checksums raw --save-plan b.pt", 1, "b.pt: exists already");
}

// A script whose variable is not set must not flip another bit instead of undoing one.
TEST_F(FileCommandsTest, AnOptionWithAnEmptyTextIsRefused) {
  write("a.pt", floats({1, 2}));
  const Ran ran = tests::run_words(
      env_, {"inject", "a.pt", "--in-place", "--checksums", "raw", "--undo", ""});
  EXPECT_EQ(ran.code, 2);
  EXPECT_EQ(ran.err, "holdfast: --undo: is empty; expected a value\n");
}

TEST_F(FileCommandsTest, ShowTellsTheRolesOfTensorsByTheirNames) {
  write("a.pt", random_contents({{.name = "bn.running_var", .shape = {2}},
                                 {.name = "bn.weight", .shape = {2}},
                                 {.name = "state.0.exp_avg", .shape = {2}}}));
  const Json tensors = json("show a.pt")["tensors"];
  const auto role = [&](const std::string& name) {
    for (const Json& tensor : tensors) {
      if (tensor["name"] == name) return tensor["role"].get<std::string>();
    }
    return std::string();
  };
  EXPECT_EQ(role("bn.running_var"), "buffer");
  EXPECT_EQ(role("bn.weight"), "parameter");
  EXPECT_EQ(role("state.0.exp_avg"), "slot");
  EXPECT_NE(run("show a.pt --tensors").out.find("buffer"), std::string::npos);
}

TEST_F(FileCommandsTest, ASealedFileIsVerifiedAndMendedByItsSeals) {
  write("a.safetensors", floats({0.5f, 0.25f, 3, 4}));
  const Bytes before = env_.read_file("a.safetensors").value();
  EXPECT_EQ(run("seal a.safetensors").code, 0);
  EXPECT_EQ(run("seal a.safetensors").code, 1) << "the seals are not replaced";
  EXPECT_EQ(json("verify a.safetensors")["verified"][0]["digests"], true);
  ASSERT_EQ(run("inject a.safetensors --in-place --bits 30 --checksums raw").code, 0);
  const Ran verified = run("verify a.safetensors");
  EXPECT_EQ(verified.code, 3);
  EXPECT_NE(verified.out.find("in w: ["), std::string::npos) << verified.out;
  EXPECT_NE(verified.out.find("bit 30 is "), std::string::npos) << verified.out;
  EXPECT_EQ(run("repair a.safetensors").code, 2);
  EXPECT_EQ(run("repair a.safetensors --dry-run").code, 3);
  const Ran mended = run("repair a.safetensors b.safetensors");
  EXPECT_EQ(mended.code, 0) << mended.err;
  EXPECT_NE(mended.out.find("by its seal\nb.safetensors is whole"), std::string::npos)
      << mended.out;
  EXPECT_TRUE(env_.read_file("b.safetensors").value() == before);
  EXPECT_EQ(run("verify b.safetensors").code, 0);
  EXPECT_EQ(json("repair a.safetensors --in-place")["mended"].size(), 1u);
  EXPECT_TRUE(env_.read_file("a.safetensors").value() == before);
  EXPECT_NE(run("repair a.safetensors --in-place").out.find("nothing"),
            std::string::npos);
}

}  // namespace
}  // namespace holdfast::tests
