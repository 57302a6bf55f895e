#include "holdfast/elastic/reshard.h"

#include <gmock/gmock.h>

#include <thread>

#include "holdfast/base/testing.h"
#include "holdfast/env/faulty_env.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/formats/format.h"
#include "holdfast/formats/safetensors.h"
#include "holdfast/megatron/objects.h"
#include "holdfast/shard/shard_index.h"
#include "holdfast/state/layout_testing.h"
#include "holdfast/store/owner.h"
#include "holdfast/store/step_check.h"

namespace holdfast {
namespace {

using testing::HasSubstr;

// A small GPT-2 with the state of Adam, and some values for it.
std::vector<Tensor> small_gpt2() {
  std::vector<Tensor> tensors;
  const auto add = [&](std::string name, Shape shape, Dtype dtype = Dtype::kBf16) {
    tensors.push_back({.name = std::move(name), .dtype = dtype, .shape = shape});
  };
  const auto add_with_state = [&](const std::string& name, Shape shape) {
    add("model.transformer." + name, shape);
    add("optimizer.transformer." + name + ".exp_avg", shape, Dtype::kF32);
    add("optimizer.transformer." + name + ".step", {}, Dtype::kF32);
  };
  add_with_state("wte.weight", {1000, 16});
  add_with_state("wpe.weight", {33, 16});
  for (int i = 0; i < 4; ++i) {
    const std::string h = fmt::format("h.{}.", i);
    for (const char* norm : {"ln_1", "ln_2"}) {
      add_with_state(h + norm + ".weight", {16}),
          add_with_state(h + norm + ".bias", {16});
    }
    add_with_state(h + "attn.c_attn.weight", {16, 48});
    add_with_state(h + "attn.c_attn.bias", {48});
    add_with_state(h + "attn.c_proj.weight", {16, 16});
    add_with_state(h + "attn.c_proj.bias", {16});
    add_with_state(h + "mlp.c_fc.weight", {16, 64});
    add_with_state(h + "mlp.c_fc.bias", {64});
    add_with_state(h + "mlp.c_proj.weight", {64, 16});
    add_with_state(h + "mlp.c_proj.bias", {16});
  }
  add_with_state("ln_f.weight", {16});
  add_with_state("ln_f.bias", {16});
  return tensors;
}

class Reshard : public ::testing::Test {
 protected:
  void SetUp() override { write_source("/gpt2.safetensors", small_gpt2()); }

  void write_source(const std::string& path, std::vector<Tensor> tensors,
                    const Object& objects = {}) {
    LayoutBuilder builder(tensors, {{.name = "memory", .kind = HolderKind::kFile}});
    int64_t bytes = 0;
    for (TensorId t = 0; t < tensors.size(); ++t) {
      builder.add(t, Box::whole(tensors[t].shape), 0, bytes);
      bytes += tensors[t].bytes();
    }
    tests::Dice dice(7);
    Bytes values(static_cast<size_t>(bytes));
    for (std::byte& value : values) value = static_cast<std::byte>(dice.below(256));
    Layout layout = std::move(builder).build().value();
    const Contents contents{
        .collection = Collection::create(std::move(tensors), std::move(layout)).value(),
        .sources = {std::make_shared<MemorySource>("memory", std::move(values))},
        .objects = objects,
        .metadata = {}};
    ASSERT_OK(write_file(env_, path, contents));
  }

  ReshardOptions options(std::string to) {
    return {
        .to = std::move(to), .threads = 2, .identity = Identity{.host = "a", .pid = 1}};
  }

  Result<Resharded> cut(const Path& from, const Path& to,
                        const ReshardOptions& options) {
    const ReshardPlan plan = HOLDFAST_TRY(plan_reshard(env_, from, options));
    return reshard(env_, plan, to, options);
  }
  Result<Resharded> cut(const Path& from, const Path& to, const std::string& config) {
    return cut(from, to, options(config));
  }

  // The shards of a run's only step, by name.
  std::map<std::string, Bytes> shards(const Path& run) {
    std::map<std::string, Bytes> files;
    const Path folder = find_any(env_, run).value().path;
    for (const std::string& name : env_.list(folder).value()) {
      if (!name.ends_with(".safetensors")) continue;
      files[name] = env_.read_file(folder / name).value();
    }
    return files;
  }

  void expect_same_values(const Path& a, const Path& b) {
    const OpenedAny one = open_any(env_, a).value(), two = open_any(env_, b).value();
    ASSERT_EQ(one.contents.collection.tensors().size(),
              two.contents.collection.tensors().size());
    for (TensorId t = 0; t < one.contents.collection.tensors().size(); ++t) {
      const Tensor& tensor = one.contents.collection.tensor(t);
      Bytes left(static_cast<size_t>(tensor.bytes())), right = left;
      ASSERT_OK(read_canonical(one.contents, t, 0, left));
      const auto other = two.contents.collection.find(tensor.name);
      ASSERT_TRUE(other) << tensor.name;
      EXPECT_EQ(two.contents.collection.tensor(*other).shape, tensor.shape);
      ASSERT_OK(read_canonical(two.contents, *other, 0, right));
      EXPECT_EQ(left, right) << tensor.name;
    }
  }

  // Stops the call when this many bytes were counted.
  ReshardOptions stopped_after(int64_t bytes, const std::string& config) {
    ReshardOptions stopped = options(config);
    stopped.threads = 1;
    const auto seen = std::make_shared<int64_t>(0);
    stopped.reading.progress = [seen](int64_t done, int64_t) { *seen = done; };
    stopped.reading.stop = [seen, bytes] { return *seen >= bytes; };
    return stopped;
  }

  // The files of an interrupted call, by name.
  std::map<std::string, Bytes> left(const Path& files) {
    std::map<std::string, Bytes> there;
    for (const std::string& name : env_.list(files).value()) {
      if (!env_.info(files / name).value().folder) {
        there[name] = env_.read_file(files / name).value();
        continue;
      }
      for (auto& [below, bytes] : left(files / name)) there[name + "/" + below] = bytes;
    }
    return there;
  }

  // A small GPT of Megatron: all stages together, with its objects.
  void write_megatron(const std::string& path, int64_t expert_ranks = 1) {
    std::vector<Tensor> tensors;
    Object model{Object::Dict{}};
    const auto add = [&](const std::string& name, Shape shape) {
      tensors.push_back(
          {.name = "model." + name, .dtype = Dtype::kBf16, .shape = shape});
      megatron::set_key(model, name, Object(Object::TensorName{"model." + name}));
    };
    add("embedding.word_embeddings.weight", {1024, 16});
    for (int i = 0; i < 4; ++i) {
      const std::string layer = fmt::format("decoder.layers.{}.", i);
      add(layer + "mlp.linear_fc1.weight", {512, 16});
      add(layer + "pre_mlp_layernorm.weight", {16});
    }
    add("decoder.final_layernorm.weight", {16});
    Object args{Object::Dict{}}, objects{Object::Dict{}};
    megatron::set_key(args, "vocab_size", Object(int64_t{1000}));
    megatron::set_key(args, "make_vocab_size_divisible_by", Object(int64_t{128}));
    megatron::set_key(args, "expert_model_parallel_size", Object(expert_ranks));
    megatron::set_key(objects, "args", std::move(args));
    megatron::set_key(objects, "model", std::move(model));
    megatron::set_key(objects, "checkpoint_version", Object(3.0));
    megatron::set_key(objects, "iteration", Object(int64_t{5}));
    write_source(path, std::move(tensors), objects);
  }

  // Interrupts a call, and leaves the disk no room for the whole target.
  void continue_on_a_full_disk(const Path& from, const std::string& format) {
    SCOPED_TRACE(format);
    ReshardOptions wanted = options("tp=2,pp=2");
    wanted.format = format;
    const Path whole = "/whole-" + format, to = "/again-" + format;
    ASSERT_OK(cut(from, whole, wanted));
    const int64_t bytes = plan_reshard(env_, from, wanted).value().target_bytes();
    ReshardOptions stopped = stopped_after(bytes * 7 / 10, "tp=2,pp=2");
    stopped.format = format;
    EXPECT_ERROR(cut(from, to, stopped), ErrorCode::kUnavailable);
    const int64_t capacity = int64_t{1} << 30;
    env_.set_capacity(capacity);
    const int64_t used = capacity - env_.free_space("/").value();
    env_.set_capacity(used + (int64_t{16} << 20) + bytes / 2);
    const Result<Resharded> done = cut(from, to, wanted);
    env_.set_capacity(capacity);
    ASSERT_OK(done);
    EXPECT_GT(done->kept, 0);
    EXPECT_LT(done->kept, done->files);
    EXPECT_EQ(left(to), left(whole));
  }

  std::string refusal(const Path& from, const Path& to, const ReshardOptions& options) {
    const auto before = env_.list("/").value();
    const Result<Resharded> done = cut(from, to, options);
    EXPECT_EQ(env_.list("/").value(), before);  // not a byte was written
    return done.ok() ? "" : done.error().message();
  }

  MemoryEnv env_;
};

TEST_F(Reshard, ThereAndBackGivesTheSameFiles) {
  const Resharded first = cut("/gpt2.safetensors", "/a", "tp=4,pp=2").value();
  EXPECT_EQ(first.files, 8);
  EXPECT_EQ(first.seals, std::ssize(small_gpt2()));
  ASSERT_OK(cut("/a", "/b", "tp=2,pp=4"));
  ASSERT_OK(cut("/b", "/c", "tp=4,pp=2"));
  EXPECT_EQ(shards("/a"), shards("/c"));
  EXPECT_NE(shards("/a"), shards("/b"));
  EXPECT_EQ(shards("/b").size(), 8u);
  for (const char* run : {"/a", "/b", "/c"})
    expect_same_values("/gpt2.safetensors", run);
  const Path folder = find_any(env_, "/b").value().path;
  EXPECT_TRUE(check_step(env_, folder, Depth::kFull).value().whole());
  EXPECT_EQ(read_manifest(env_, folder).value().parallel, "tp=2,pp=4,dp=1");
  for (const std::string& name : env_.list("/").value()) {
    EXPECT_FALSE(name.starts_with(".")) << name;
  }
}

TEST_F(Reshard, AnyConfigurationCanBeMerged) {
  ASSERT_OK(cut("/gpt2.safetensors", "/zero", "tp=2,pp=2,dp=3,zero=1"));
  expect_same_values("/gpt2.safetensors", "/zero");
  ASSERT_OK(cut("/zero", "/one", "whole"));
  EXPECT_EQ(shards("/one").size(), 1u);
  expect_same_values("/gpt2.safetensors", "/one");
  ReshardOptions folder = options("whole");
  folder.format = "safetensors";
  EXPECT_EQ(cut("/zero", "/folder", folder).value().seals, std::ssize(small_gpt2()));
  expect_same_values("/gpt2.safetensors", "/folder");
}

TEST_F(Reshard, EveryByteIsReadOnce) {
  const ReshardPlan plan =
      plan_reshard(env_, "/gpt2.safetensors", options("tp=2,pp=2,dp=2")).value();
  EXPECT_EQ(plan.figures.moved, plan.figures.moved_bound);
  EXPECT_EQ(plan.figures.moved, plan.contents->collection.bytes());
  EXPECT_EQ(plan.rules, "hf-gpt2");
}

TEST_F(Reshard, AnInterruptedCallIsContinued) {
  ASSERT_OK(cut("/gpt2.safetensors", "/whole", "tp=2,pp=4"));
  for (const int64_t after : {1, 30'000, 60'000, 90'000}) {
    EXPECT_ERROR(cut("/gpt2.safetensors", "/again", stopped_after(after, "tp=2,pp=4")),
                 ErrorCode::kUnavailable);
    EXPECT_FALSE(env_.info("/again").ok());
  }
  const Resharded done = cut("/gpt2.safetensors", "/again", "tp=2,pp=4").value();
  EXPECT_GT(done.kept, 0);
  EXPECT_LT(done.kept, 8);
  EXPECT_EQ(shards("/again"), shards("/whole"));
  EXPECT_FALSE(env_.info("/.again.reshard").ok());
}

TEST_F(Reshard, AFolderOfDcpHasAFileForEachPosition) {
  ReshardOptions dcp = options("tp=4,pp=2");
  dcp.format = "dcp";
  const Resharded done = cut("/gpt2.safetensors", "/dcp", dcp).value();
  EXPECT_EQ(done.files, 8);
  EXPECT_EQ(done.seals, std::ssize(small_gpt2()));
  expect_same_values("/gpt2.safetensors", "/dcp");
  EXPECT_EQ(env_.list("/dcp").value().size(), 9u);
  // Without --format the target has the format of the source.
  EXPECT_EQ(plan_reshard(env_, "/dcp", options("tp=2")).value().format, "dcp");
  ASSERT_OK(cut("/dcp", "/merged", "whole"));
  EXPECT_EQ(env_.list("/merged").value().size(), 2u);
  expect_same_values("/gpt2.safetensors", "/merged");
  EXPECT_FALSE(env_.info("/.dcp.reshard").ok());
}

TEST_F(Reshard, AnInterruptedFolderOfDcpIsContinued) {
  ReshardOptions dcp = options("tp=2,pp=4");
  dcp.format = "dcp";
  ASSERT_OK(cut("/gpt2.safetensors", "/whole", dcp));
  for (const int64_t after : {1, 60'000, 120'000}) {
    ReshardOptions stopped = stopped_after(after, "tp=2,pp=4");
    stopped.format = "dcp";
    EXPECT_ERROR(cut("/gpt2.safetensors", "/again", stopped), ErrorCode::kUnavailable);
    EXPECT_FALSE(env_.info("/again").ok());
    for (const auto& [name, bytes] : left("/.again.reshard/files")) {
      EXPECT_TRUE(name.ends_with(".distcp")) << name;  // no part of a file is left
    }
  }
  ReshardOptions watched = dcp;
  std::pair<int64_t, int64_t> counted;
  watched.reading.progress = [&](int64_t seen, int64_t all) { counted = {seen, all}; };
  const Resharded done = cut("/gpt2.safetensors", "/again", watched).value();
  EXPECT_GT(done.kept, 0);
  EXPECT_LT(done.kept, 8);
  EXPECT_EQ(counted.first, counted.second);  // files that are kept count, too
  EXPECT_EQ(left("/again"), left("/whole"));
  EXPECT_FALSE(env_.info("/.again.reshard").ok());
  // Another process is writing the target.
  ReshardOptions slow = dcp, other = dcp;
  other.identity = Identity{.host = "b", .pid = 2};
  int calls = 0;
  slow.reading.progress = [&](int64_t, int64_t) {
    if (++calls == 1) {
      EXPECT_ERROR(cut("/gpt2.safetensors", "/owned", other), ErrorCode::kConflict);
    }
  };
  ASSERT_OK(cut("/gpt2.safetensors", "/owned", slow));
}

TEST_F(Reshard, AWrongFileInTheHiddenFolderGivesNoTarget) {
  ReshardOptions dcp = options("tp=2");
  dcp.format = "dcp";
  ReshardOptions stopped =
      stopped_after(plan_reshard(env_, "/gpt2.safetensors", dcp).value().target_bytes(),
                    "tp=2");
  stopped.format = "dcp";
  EXPECT_ERROR(cut("/gpt2.safetensors", "/a", stopped), ErrorCode::kUnavailable);
  const Path file = "/.a.reshard/files/__0_0.distcp";
  Bytes bytes = env_.read_file(file).value();
  bytes[bytes.size() / 2] ^= std::byte{1};
  ASSERT_OK(env_.write_file(file, bytes));
  EXPECT_ERROR(cut("/gpt2.safetensors", "/a", dcp), ErrorCode::kCorrupt);
  EXPECT_FALSE(env_.info("/a").ok());
  EXPECT_EQ(cut("/gpt2.safetensors", "/a", dcp).value().kept, 0);
}

TEST_F(Reshard, AStopLeavesFinishedShardsAndNoOthers) {
  const Path files = "/.a.reshard/files";
  const auto stop_after = [&](int64_t bytes) {
    EXPECT_ERROR(cut("/gpt2.safetensors", "/a", stopped_after(bytes, "tp=2,pp=4")),
                 ErrorCode::kUnavailable);
  };
  stop_after(90'000);
  const std::map<std::string, Bytes> before = left(files);
  ASSERT_TRUE(before.contains("rank-0000.index.json"));
  EXPECT_EQ(before.size() % 2, 0u);  // each shard has its index
  stop_after(0);
  EXPECT_EQ(left(files), before);
  // A shard that is not finished loses its index before it is written anew.
  ASSERT_OK(env_.remove_file(files / "rank-0000.safetensors"));
  stop_after(0);
  EXPECT_FALSE(left(files).contains("rank-0000.index.json"));
  EXPECT_FALSE(left(files).contains("rank-0000.safetensors"));
  ASSERT_OK(cut("/gpt2.safetensors", "/a", "tp=2,pp=4"));
  const Path folder = find_any(env_, "/a").value().path;
  EXPECT_TRUE(check_step(env_, folder, Depth::kFull).value().whole());
  expect_same_values("/gpt2.safetensors", "/a");
}

TEST_F(Reshard, TheSecondReadIsCountedAndCanBeStopped) {
  const int64_t bytes =
      plan_reshard(env_, "/gpt2.safetensors", options("whole")).value().files->bytes();
  for (const char* format : {"native", "safetensors"}) {
    ReshardOptions whole = options("whole");
    whole.format = format;
    std::vector<int64_t> last;
    whole.reading.progress = [&](int64_t done, int64_t total) { last = {done, total}; };
    ASSERT_OK(cut("/gpt2.safetensors", Path("/") / format, whole));
    EXPECT_EQ(last.at(0), last.at(1)) << format;
    EXPECT_EQ(last.at(1), bytes * (whole.format == "native" ? 2 : 3));
    ReshardOptions stopped = stopped_after(last.at(1) - 1000, "whole");
    stopped.format = format;
    EXPECT_ERROR(cut("/gpt2.safetensors", "/stopped", stopped),
                 ErrorCode::kUnavailable);
    EXPECT_FALSE(env_.info("/stopped").ok());
  }
}

TEST_F(Reshard, FilesWithAnotherSealAreRemoved) {
  const int64_t all =
      plan_reshard(env_, "/gpt2.safetensors", options("tp=2")).value().files->bytes();
  EXPECT_ERROR(cut("/gpt2.safetensors", "/a", stopped_after(all, "tp=2")),
               ErrorCode::kUnavailable);
  const Path path = "/.a.reshard/files/rank-0000.index.json";
  ShardIndex index =
      decode_shard_index(env_.read_file(path).value(), path.native()).value();
  index.pieces.front().seal.lanes[0] += 1;
  ASSERT_OK(env_.write_file(path, encode_shard_index(index)));
  const Result<Resharded> differs = cut("/gpt2.safetensors", "/a", "tp=2");
  ASSERT_FALSE(differs.ok());
  EXPECT_EQ(differs.error().code(), ErrorCode::kCorrupt);
  EXPECT_THAT(differs.error().message(), HasSubstr("; expected"));
  EXPECT_THAT(differs.error().message(), HasSubstr("begins anew"));
  EXPECT_EQ(cut("/gpt2.safetensors", "/a", "tp=2").value().kept, 0);
}

TEST_F(Reshard, OnlyFilesThatAreContinuedSaveSpace) {
  ReshardOptions whole = options("whole");
  const int64_t bytes =
      plan_reshard(env_, "/gpt2.safetensors", whole).value().files->bytes();
  ReshardOptions stopped = stopped_after(bytes, "whole");
  stopped.format = "native";
  EXPECT_ERROR(cut("/gpt2.safetensors", "/a", stopped), ErrorCode::kUnavailable);
  const int64_t capacity = int64_t{1} << 30;
  env_.set_capacity(capacity);
  const int64_t used = capacity - env_.free_space("/").value();
  env_.set_capacity(used + (int64_t{16} << 20) + bytes / 2);
  whole.format = "safetensors";
  EXPECT_ERROR(cut("/gpt2.safetensors", "/a", whole), ErrorCode::kNoSpace);
  whole.format = "native";
  EXPECT_EQ(cut("/gpt2.safetensors", "/a", whole).value().kept, 1);
}

TEST_F(Reshard, AnInterruptedFolderNeedsRoomOnlyForItsRest) {
  write_megatron("/megatron.safetensors");
  continue_on_a_full_disk("/gpt2.safetensors", "dcp");
  continue_on_a_full_disk("/megatron.safetensors", "megatron");
}

TEST_F(Reshard, CopiesInAFolderOfMegatronAreCompared) {
  write_megatron("/megatron.safetensors");
  ReshardOptions wanted = options("tp=2");
  wanted.format = "megatron";
  const ReshardPlan plan = plan_reshard(env_, "/megatron.safetensors", wanted).value();
  ReshardOptions stopped = stopped_after(plan.target_bytes(), "tp=2");
  stopped.format = "megatron";
  EXPECT_ERROR(cut("/megatron.safetensors", "/a", stopped), ErrorCode::kUnavailable);
  // The second rank has a copy of each norm, whose values it has nowhere else.
  const OpenedAny source = open_any(env_, "/megatron.safetensors").value();
  const auto norm =
      source.contents.collection.find("model.decoder.layers.1.pre_mlp_layernorm.weight");
  Bytes value(32);
  ASSERT_OK(read_canonical(source.contents, *norm, 0, value));
  const Path file = "/.a.reshard/files/iter_0000005/mp_rank_01/model_optim_rng.pt";
  Bytes bytes = env_.read_file(file).value();
  const auto found = std::ranges::search(bytes, value);
  ASSERT_FALSE(found.empty());
  found.front() ^= std::byte{1};
  ASSERT_OK(env_.write_file(file, bytes));
  const Result<Resharded> done = cut("/megatron.safetensors", "/a", wanted);
  EXPECT_ERROR(done, ErrorCode::kCorrupt);
  EXPECT_FALSE(env_.info("/a").ok());
  EXPECT_EQ(cut("/megatron.safetensors", "/a", wanted).value().kept, 0);
}

TEST_F(Reshard, AFolderOfMegatronWhoseRanksHaveExpertsIsRefused) {
  write_megatron("/experts.safetensors", 2);
  ReshardOptions wanted = options("tp=2");
  wanted.format = "megatron";
  const Result<Resharded> done = cut("/experts.safetensors", "/a", wanted);
  EXPECT_ERROR(done, ErrorCode::kUnsupported);
  EXPECT_THAT(message_of(done), HasSubstr("experts"));
  EXPECT_FALSE(env_.info("/a").ok());
}

TEST_F(Reshard, AFolderOfMegatronForOtherRulesOrWordsIsNotContinued) {
  write_megatron("/megatron.safetensors");
  ReshardOptions wanted = options("tp=2");
  wanted.format = "megatron";
  const auto interrupt = [&] {
    ReshardOptions stopped = stopped_after(80'000, "tp=2");
    stopped.format = "megatron";
    EXPECT_ERROR(cut("/megatron.safetensors", "/a", stopped), ErrorCode::kUnavailable);
  };
  const auto kept = [&](const ReshardOptions& how) {
    interrupt();
    const Result<Resharded> done = cut("/megatron.safetensors", "/a", how);
    EXPECT_OK(done);
    EXPECT_OK(env_.remove_all("/a"));
    return done.ok() ? done->kept : -1;
  };
  EXPECT_EQ(kept(wanted), 1);
  ReshardOptions other = wanted;
  other.vocabulary = 1001;
  EXPECT_EQ(kept(other), 0);
  const auto with_rule = [&](const char* words) {
    const std::string text = fmt::format(
        R"({{"holdfast": "rules", "version": 1, "name": "own", "rules": {{
        "embedding.word_embeddings.weight": "first vocabulary tied",
        "layers.#.mlp.linear_fc1.weight": "{}",
        "layers.#.pre_mlp_layernorm.weight": "whole",
        "final_layernorm.weight": "last whole"}}}})",
        words);
    EXPECT_OK(env_.write_file("/rules.json", bytes_of(text)));
    ReshardOptions ruled = wanted;
    ruled.rules = "/rules.json";
    return ruled;
  };
  EXPECT_EQ(kept(with_rule("columns")), 0);
  EXPECT_THAT(refusal("/megatron.safetensors", "/b", with_rule("columns/2")),
              HasSubstr("components of rows"));
}

// A disk that fails says nothing about the files.
TEST_F(Reshard, OnlyFilesThatDifferAreRemovedAfterTheCheck) {
  ReshardOptions dcp = options("tp=2");
  dcp.format = "dcp";
  const ReshardPlan plan = plan_reshard(env_, "/gpt2.safetensors", dcp).value();
  FaultyEnv failing(env_);
  ReshardOptions broken = dcp;
  broken.threads = 1;
  broken.reading.progress = [&, begun = false](int64_t done, int64_t) mutable {
    if (done < plan.target_bytes() + 1 || std::exchange(begun, true)) return;
    failing.fail_from(Op::kRead);
  };
  EXPECT_ERROR(reshard(failing, plan_reshard(failing, "/gpt2.safetensors", dcp).value(),
                       "/a", broken),
               ErrorCode::kIo);
  EXPECT_EQ(cut("/gpt2.safetensors", "/a", dcp).value().kept, 2);
}

// The owner of the hidden run is at work for longer than its lease.
TEST_F(Reshard, ALongCallKeepsItsRunAndLetsGoAtTheEnd) {
  const auto renewed = [&] {
    const auto owner = read_owner(env_, "/.a.reshard");
    return owner.ok() && *owner && (*owner)->renewed == env_.wall_now();
  };
  ReshardOptions other = options("tp=2");
  other.identity = Identity{.host = "b", .pid = 2};
  ReshardOptions slow = options("tp=2");
  int calls = 0;
  slow.reading.progress = [&](int64_t, int64_t) {
    if (++calls > 4) return;
    env_.advance(std::chrono::seconds(50));
    for (int i = 0; i < 5000 && !renewed(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_ERROR(cut("/gpt2.safetensors", "/a", other), ErrorCode::kConflict);
  };
  ASSERT_OK(cut("/gpt2.safetensors", "/a", slow));
  EXPECT_GE(calls, 4);
  EXPECT_TRUE(read_owner(env_, "/a").value()->released);
}

TEST_F(Reshard, FilesForAnotherTargetAreNotKept) {
  EXPECT_ERROR(cut("/gpt2.safetensors", "/a", stopped_after(90'000, "tp=2,pp=4")),
               ErrorCode::kUnavailable);
  EXPECT_EQ(cut("/gpt2.safetensors", "/a", "tp=4,pp=2").value().kept, 0);
  expect_same_values("/gpt2.safetensors", "/a");
}

TEST_F(Reshard, ADamagedSourceGivesNoTarget) {
  ASSERT_OK(cut("/gpt2.safetensors", "/a", "tp=2"));
  const Path shard = find_any(env_, "/a").value().path / "rank-0001.safetensors";
  Bytes bytes = env_.read_file(shard).value();
  bytes[bytes.size() / 2] ^= std::byte{1};
  ASSERT_OK(env_.write_file(shard, bytes));
  EXPECT_ERROR(cut("/a", "/b", "tp=4"), ErrorCode::kCorrupt);
  EXPECT_FALSE(env_.info("/b").ok());
}

TEST_F(Reshard, WhatCannotBeDoneIsRefusedBeforeAByteIsWritten) {
  EXPECT_THAT(refusal("/gpt2.safetensors", "/a", options("tp=3")),
              HasSubstr("tp=3 does not divide its dimension of 16"));
  EXPECT_THAT(refusal("/gpt2.safetensors", "/a", options("pp=5")), HasSubstr("5"));
  EXPECT_THAT(refusal("/gpt2.safetensors", "/a", options("tp=two")), HasSubstr("tp"));
  EXPECT_THAT(refusal("/gpt2.safetensors", "/gpt2.safetensors", options("tp=2")),
              HasSubstr("exists"));
  const std::string config = R"({"n_embd": 16, "n_head": 2})";  // two heads
  ASSERT_OK(env_.write_file("/config.json", bytes_of(config)));
  EXPECT_THAT(refusal("/gpt2.safetensors", "/a", options("tp=4")),
              HasSubstr("in units of 8"));
  ReshardOptions other = options("tp=2");
  other.rules = "hf-llama";
  EXPECT_THAT(refusal("/gpt2.safetensors", "/a", other), HasSubstr("another model's"));
  other.rules = "hf-bert";
  EXPECT_THAT(refusal("/gpt2.safetensors", "/a", other), HasSubstr("not known"));
  other = options("tp=2");
  other.format = "safetensors";
  EXPECT_THAT(refusal("/gpt2.safetensors", "/a", other), HasSubstr("--to whole"));
  other.format = "megatron";
  EXPECT_THAT(refusal("/gpt2.safetensors", "/a", other),
              HasSubstr("no objects of Megatron"));
  std::vector<Tensor> missing = small_gpt2();
  std::erase_if(missing, [](const Tensor& tensor) {
    return tensor.name == "model.transformer.h.2.mlp.c_fc.weight";
  });
  write_source("/missing.safetensors", missing);
  other = options("tp=2");
  other.rules = "hf-gpt2";
  EXPECT_THAT(
      refusal("/missing.safetensors", "/a", other),
      HasSubstr("optimizer.transformer.h.2.mlp.c_fc.weight.exp_avg: has no rule"));
  env_.set_capacity(1'000'000);
  EXPECT_THAT(refusal("/gpt2.safetensors", "/a", options("tp=2")),
              HasSubstr("bytes are free"));
}

TEST_F(Reshard, RowsOfAnOldMegatronAreNotTakenForRowsByHead) {
  const auto tensor = [](std::string name, Shape shape) {
    return Tensor{.name = std::move(name), .dtype = Dtype::kBf16, .shape = shape};
  };
  const std::vector<Tensor> tensors{
      tensor("embedding.word_embeddings.weight", {64, 8}),
      tensor("layers.0.attention.query_key_value.weight", {24, 8}),
      tensor("final_layernorm.weight", {8})};
  const auto source = [&](const std::string& path, const Object& version) {
    const Object key(std::string("checkpoint_version"));
    write_source(path, tensors, Object(Object::Dict{{{key, version}}}));
  };
  source("/v0.safetensors", Object(int64_t{0}));
  source("/v1.safetensors", Object(1.0));
  source("/v3.safetensors", Object(3.0));
  for (const char* old : {"/v0.safetensors", "/v1.safetensors"}) {
    EXPECT_THAT(refusal(old, "/a", options("tp=2")), HasSubstr("expected 2 or newer"));
    EXPECT_OK(plan_reshard(env_, old, options("dp=2")));  // cuts no rows
  }
  EXPECT_EQ(plan_reshard(env_, "/v3.safetensors", options("tp=2")).value().rules,
            "megatron-gpt");
}

}  // namespace
}  // namespace holdfast
