// For tests of reshard(): small models in memory, and calls that are stopped on the way.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "holdfast/base/testing.h"
#include "holdfast/reshard/reshard.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/formats/format.h"
#include "holdfast/formats/safetensors.h"
#include "holdfast/megatron/objects.h"
#include "holdfast/state/layout_testing.h"

namespace holdfast::reshard_test {

// A small GPT-2 with the state of Adam, and some values for it.
inline std::vector<Tensor> small_gpt2() {
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

}  // namespace holdfast::reshard_test
