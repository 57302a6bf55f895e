// reshard() carries out the plan that it is given: what the plan moves from each file of the
// source is what is read of that file, to the byte.
#include <gmock/gmock.h>

#include <atomic>

#include "holdfast/formats/format.h"
#include "holdfast/reshard/reshard_testing.h"

namespace holdfast::reshard_test {
namespace {

using testing::HasSubstr;

// Counts the bytes that are asked of a source.
class CountingSource : public Source {
 public:
  explicit CountingSource(std::shared_ptr<const Source> inner)
      : inner_(std::move(inner)) {}

  const std::string& name() const override { return inner_->name(); }
  int64_t size() const override { return inner_->size(); }
  int64_t read_bytes_so_far() const { return read_; }

 protected:
  Result<void> read_inside(int64_t offset, ByteSpan into) const override {
    read_ += std::ssize(into);
    return inner_->read(offset, into);
  }

 private:
  const std::shared_ptr<const Source> inner_;
  mutable std::atomic<int64_t> read_ = 0;
};

class PlannedReshard : public Reshard {
 protected:
  // Rows of each rank are so long that they are read without what is between them. There
  // are the cuts of tensors, a tied tensor, optimizer state and tensors that are not cut.
  void SetUp() override {
    std::vector<Tensor> tensors;
    const auto add = [&](const std::string& name, Shape shape) {
      tensors.push_back(
          {.name = "model." + name, .dtype = Dtype::kBf16, .shape = shape});
      tensors.push_back({.name = "optimizer." + name + ".exp_avg",
                         .dtype = Dtype::kF32,
                         .shape = shape});
      tensors.push_back({.name = "optimizer." + name + ".step", .dtype = Dtype::kF32});
    };
    add("embed.weight", {1001, 16});
    for (int i = 0; i < 5; ++i) {
      add(fmt::format("layers.{}.up.weight", i), {24, 40});
      if (i == 3) add("layers.3.down.weight", {2, 12 * 12'288});
      add(fmt::format("layers.{}.norm.weight", i), {40});
    }
    add("norm.weight", {40});
    write_source("/source.safetensors", std::move(tensors));
    ASSERT_OK(env_.write_file("/rules.json", bytes_of(std::string_view(R"({
        "holdfast": "rules", "version": 1, "name": "own", "rules": {
        "embed.weight": "first vocabulary tied",
        "layers.#.up.weight": "rows/2",
        "layers.#.down.weight": "columns some",
        "layers.#.norm.weight": "whole",
        "norm.weight": "last whole"}})"))));
  }

  ReshardOptions ruled(const std::string& to, const std::string& format = "native") {
    ReshardOptions wanted = options(to);
    wanted.rules = "/rules.json";
    wanted.format = format;
    return wanted;
  }

  // Plans, and counts from then on what is read of the source.
  ReshardPlan counted_plan(const Path& from, const ReshardOptions& wanted) {
    ReshardPlan plan = plan_reshard(env_, from, wanted).value();
    auto contents = std::make_shared<Contents>(*plan.contents);
    counted_.clear();
    for (auto& source : contents->sources) {
      counted_.push_back(std::make_shared<CountingSource>(source));
      source = counted_.back();
    }
    plan.contents = std::move(contents);
    return plan;
  }

  int64_t read_in_all() const {
    int64_t bytes = 0;
    for (const auto& source : counted_) bytes += source->read_bytes_so_far();
    return bytes;
  }

  // Fails unless each file of the source was read as planned. The source must be a step,
  // because others are read again for their seals.
  void expect_read_as_planned(const ReshardPlan& plan) const {
    for (size_t h = 0; h < counted_.size(); ++h) {
      EXPECT_EQ(counted_[h]->read_bytes_so_far(), plan.moves->loads[h].sent)
          << plan.moves->holders[h].name;
    }
    EXPECT_EQ(read_in_all(), plan.figures.moved);
  }

  std::vector<std::shared_ptr<CountingSource>> counted_;
};

TEST_F(PlannedReshard, OfEachFileTheBytesOfItsMovesAreReadAndNoOthers) {
  ASSERT_OK(cut("/source.safetensors", "/tp=2,pp=2", ruled("tp=2,pp=2")));
  ASSERT_OK(cut("/source.safetensors", "/tp=3,dp=2", ruled("tp=3,dp=2")));
  for (const char* from : {"/tp=2,pp=2", "/tp=3,dp=2"}) {
    for (const auto& [to, format] : std::vector<std::pair<const char*, const char*>>{
             {"tp=4,pp=3", "native"},
             {"tp=1,pp=5,dp=2", "native"},
             {"pp=4,layers=2/1/1/1", "dcp"},
             {"tp=6,dp=2,zero=1", "native"},
             {"dp=3,zero=3", "dcp"},
             {"whole", "native"},
             {"whole", "safetensors"}}) {
      SCOPED_TRACE(fmt::format("{} -> {} {}", from, to, format));
      const ReshardOptions wanted = ruled(to, format);
      const ReshardPlan plan = counted_plan(from, wanted);
      const Path target = "/target";
      const Resharded done = reshard(env_, plan, target, wanted).value();
      EXPECT_EQ(done.moved, plan.figures.moved);
      EXPECT_EQ(plan.figures.moved, plan.contents->collection.bytes());
      expect_read_as_planned(plan);
      expect_same_values("/source.safetensors", target);
      ASSERT_OK(env_.remove_all(target));
    }
  }
}

TEST_F(PlannedReshard, AContinuedCallCarriesOutTheMovesToTheOtherFiles) {
  ASSERT_OK(cut("/source.safetensors", "/step", ruled("tp=2,pp=2")));
  for (const char* format : {"native", "dcp"}) {
    SCOPED_TRACE(format);
    const ReshardOptions wanted = ruled("tp=4,pp=3", format);
    const ReshardPlan plan = counted_plan("/step", wanted);
    ReshardOptions stopped = stopped_after(plan.figures.moved / 2, "tp=4,pp=3");
    stopped.rules = wanted.rules, stopped.format = format;
    const Path target = Path("/") / format;
    EXPECT_ERROR(reshard(env_, plan, target, stopped), ErrorCode::kUnavailable);
    const int64_t before = read_in_all();
    EXPECT_GT(before, plan.figures.moved / 3);
    const ReshardPlan again = counted_plan("/step", wanted);
    const Resharded done = reshard(env_, again, target, wanted).value();
    EXPECT_GT(done.kept, 0);
    EXPECT_LT(done.kept, done.files);
    EXPECT_EQ(done.moved, read_in_all());
    // What is kept was not read again. Only the file that was stopped is read twice.
    int64_t largest = 0, all = 0;
    for (const HolderLoad& load : again.moves->loads) {
      largest = std::max(largest, load.received);
      all += load.received;
    }
    EXPECT_EQ(all, again.figures.moved);
    EXPECT_GE(before + done.moved, all);
    EXPECT_LE(before + done.moved, all + largest);
    expect_same_values("/source.safetensors", target);
  }
}

TEST_F(PlannedReshard, WithoutOneOfItsMovesATargetIsNotWritten) {
  ASSERT_OK(cut("/source.safetensors", "/step", ruled("tp=2")));
  for (const auto& [to, format] : std::vector<std::pair<const char*, const char*>>{
           {"tp=4", "native"}, {"tp=4", "dcp"}, {"whole", "safetensors"}}) {
    const ReshardOptions wanted = ruled(to, format);
    ReshardPlan plan = plan_reshard(env_, "/step", wanted).value();
    Plan fewer = *plan.moves;
    fewer.moves.erase(fewer.moves.begin() + std::ssize(fewer.moves) / 2);
    plan.moves = std::make_shared<const Plan>(std::move(fewer));
    const Result<Resharded> done = reshard(env_, plan, "/a", wanted);
    ASSERT_FALSE(done.ok()) << format;
    EXPECT_THAT(done.error().message(), HasSubstr("no move of the plan brings"));
    EXPECT_FALSE(env_.info("/a").ok());
  }
}

// Norms are on every rank, and with several stages the last one has the embedding too.
TEST_F(PlannedReshard, CopiesInAFolderOfMegatronAreMovesOfThePlan) {
  write_megatron("/megatron.safetensors");
  ReshardOptions wanted = options("tp=2,pp=2");
  wanted.format = "megatron";
  int64_t planned = 0;
  wanted.planning = [&](int64_t done, int64_t) { planned = done; };
  const ReshardPlan plan = counted_plan("/megatron.safetensors", wanted);
  EXPECT_EQ(planned, 100);
  const int64_t source = plan.contents->collection.bytes();
  const int64_t norms = 5 * 32, embedding = 1024 * 32;
  EXPECT_EQ(plan.figures.moved_bound, source);
  EXPECT_EQ(plan.figures.moved, source + norms + embedding);
  EXPECT_EQ(plan.figures.moved, plan.target_bytes());
  const Resharded done = reshard(env_, plan, "/folder", wanted).value();
  EXPECT_EQ(done.moved, plan.figures.moved);
  // The source has recorded no seals, and is read again for them.
  EXPECT_EQ(read_in_all(), plan.figures.moved + source);
  // The files of the folder have copies of norms, of which the plan reads each byte once.
  ReshardOptions back = options("tp=1");
  back.format = "native";
  const ReshardPlan merged = plan_reshard(env_, "/folder", back).value();
  EXPECT_EQ(merged.figures.moved, source + embedding);  // which is an output layer now
  EXPECT_EQ(merged.figures.moved, merged.contents->collection.bytes());
  EXPECT_EQ(reshard(env_, merged, "/merged", back).value().moved, merged.figures.moved);
}

TEST_F(PlannedReshard, ATensorThatAFileHasTwiceIsMovedTwice) {
  const std::string layer = "decoder.layers.0.mlp.linear_fc1.weight";
  const std::string norm = "decoder.final_layernorm.weight";
  const std::string words = "embedding.word_embeddings.weight";
  std::vector<Tensor> tensors{
      {.name = "model." + layer, .dtype = Dtype::kBf16, .shape = {8, 4}},
      {.name = "model." + norm, .dtype = Dtype::kBf16, .shape = {4}},
      {.name = "model." + words, .dtype = Dtype::kBf16, .shape = {256, 1}}};
  Object model{Object::Dict{}}, objects{Object::Dict{}}, args{Object::Dict{}};
  for (const std::string& name : {words, layer, norm}) {
    megatron::set_key(model, name, Object(Object::TensorName{"model." + name}));
  }
  megatron::set_key(model, "decoder.layers.0.pre_mlp_layernorm.weight",
                    Object(Object::TensorName{"model." + norm}));
  megatron::set_key(args, "vocab_size", Object(int64_t{256}));
  megatron::set_key(objects, "args", std::move(args));
  megatron::set_key(objects, "model", std::move(model));
  megatron::set_key(objects, "checkpoint_version", Object(3.0));
  write_source("/twice.safetensors", std::move(tensors), objects);
  ReshardOptions wanted = options("tp=2");
  wanted.format = "megatron";
  const ReshardPlan plan = counted_plan("/twice.safetensors", wanted);
  const int64_t source = 64 + 8 + 512;
  EXPECT_EQ(plan.figures.moved, source + 3 * 8);
  EXPECT_EQ(plan.figures.moved_bound, source);
  EXPECT_EQ(reshard(env_, plan, "/a", wanted).value().moved, plan.figures.moved);
  EXPECT_EQ(read_in_all(), plan.figures.moved + source);
}

// Files are known to a plan by their names, and those of the target are not there yet.
TEST_F(PlannedReshard, ASourceMayBeNamedLikeAFileOfTheTarget) {
  for (const char* name : {"position-0", "rank-0.file", "device-0.file", "file 0"}) {
    ASSERT_OK(env_.write_file(name, env_.read_file("/source.safetensors").value()));
    for (const char* to : {"whole", "tp=1"}) {
      const ReshardPlan plan = plan_reshard(env_, name, ruled(to)).value();
      EXPECT_EQ(plan.figures.moved, plan.contents->collection.bytes()) << name << to;
      const Path target = fmt::format("/{}{}", name, to);
      ASSERT_OK(reshard(env_, plan, target, ruled(to)));
      expect_same_values("/source.safetensors", target);
    }
  }
}

}  // namespace
}  // namespace holdfast::reshard_test
