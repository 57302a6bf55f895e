// For tests of campaigns: a real program that campaigns run, a small training in Python
// that needs nothing but Python itself, and campaigns with it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "holdfast/base/testing.h"
#include "holdfast/campaign/analysis.h"
#include "holdfast/campaign/campaign.h"
#include "holdfast/campaign/campaign_file.h"
#include "holdfast/campaign/trial_record.h"
#include "holdfast/contents/contents_testing.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/formats/format.h"

namespace holdfast::campaign_test {

// Moves weights towards 0.5 by gradient descent with momentum. The words after the files
// change what it does. With "serve" it serves trials.
inline constexpr const char* kTrain = R"(
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
        if "evaluate" in how:
            accuracy = sum(abs(w) < 1e6 for w in weights) / len(weights)
            out.write(json.dumps({"step": 0, "accuracy": accuracy}) + "\n")
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

  // The same campaign twice, with a process for each trial in the folder "fresh" and with
  // one process that serves all of them in "warm". Its flips make weights huge.
  struct Both {
    CampaignOptions fresh, warm;
  };
  Both fresh_and_warm(const std::string& how) {
    Both both{options(how), served(how)};
    both.fresh.folder = root_ / "fresh";
    both.warm.folder = root_ / "warm";
    for (CampaignOptions* asked : {&both.fresh, &both.warm}) {
      asked->request.sites.tensors = {"model.*"};
      asked->request.sites.bits = {.field = BitChoice::Field::kRanges,
                                   .ranges = {{29, 30}}};
    }
    return both;
  }

  std::vector<TrialRecord> records(const char* folder = "out") {
    auto read = read_records(*env_, root_ / folder / kTrialsFile);
    EXPECT_OK(read);
    if (!read.ok()) return {};
    std::ranges::sort(*read, {}, &TrialRecord::trial);
    return std::move(*read);
  }

  Result<CampaignAnalysis> analyse(const char* folder) {
    const Path path = root_ / folder;
    return analyse_campaign(*env_, {&path, 1});
  }

  Result<PairedAnalysis> compare(const char* a, const char* b, bool converted = false) {
    return analyse_pairs(*env_, {{root_ / a}, {root_ / b}, converted});
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

}  // namespace holdfast::campaign_test
