// Tests that compressed shards are smaller, restore the same tensors, and that all
// damage to them is noticed.
#include <gtest/gtest.h>

#include "holdfast/checkpoint/checkpoint_testing.h"
#include "holdfast/checkpoint/step_files.h"
#include "holdfast/shard/zstd.h"

namespace holdfast::tests::compress_test {
namespace {

std::vector<Tensor> tensors() {
  return {{.name = "w", .dtype = Dtype::kF32, .shape = {300, 1000}},
          {.name = "b", .dtype = Dtype::kBf16, .shape = {77}},
          {.name = "flags", .dtype = Dtype::kBool, .shape = {5}}};
}

// Values whose exponents repeat, as those of trained weights do, so that they compress
// well.
std::vector<Memory> values() {
  Dice dice(5);
  std::vector<Memory> made = random_values(dice, tensors());
  for (size_t i = 3; i < made[0].size(); i += 4) made[0][i] = std::byte{0x3f};
  return made;
}

struct Compressed : ::testing::Test {
  void SetUp() override {
    if (!compress(Bytes(8), 4, 1).ok()) GTEST_SKIP() << "built without libzstd";
    job.set(values());
    SaverOptions options = test_options();
    options.compress = 3;
    options.read_back = true;
    ASSERT_OK(save_alone(env, job, 1, options));
  }

  const Path shard = kRun / "step-00000001" / "rank-0000.packed";
  MemoryEnv env{1};
  Job job{replicated(tensors(), 1)};
};

TEST_F(Compressed, ComesBackBitForBitAndIsSmaller) {
  EXPECT_LT(env.info(shard)->size, job.collection().bytes() * 9 / 10);
  Job fresh(replicated(tensors(), 1));
  ASSERT_OK(restore_alone(env, fresh, {.verify_all = true}));
  EXPECT_TRUE(fresh.has(values()));
}

// The disk has room for what is written, but not for the bytes before compression.
TEST_F(Compressed, IsNotRefusedForItsSizeBeforeCompression) {
  const int64_t all = int64_t{1} << 40;
  env.set_capacity(all);
  const int64_t used = all - env.free_space(kRun).value();
  const int64_t room = env.info(shard)->size + (32 << 10);
  ASSERT_LT(room, job.collection().bytes());
  env.set_capacity(used + room);
  SaverOptions options = test_options();
  options.compress = 3;
  ASSERT_OK(save_alone(env, job, 2, options));
  // Without room for it, it fails and leaves nothing.
  EXPECT_ERROR(save_alone(env, job, 3, options), ErrorCode::kNoSpace);
  env.set_capacity(all);
  Job fresh(replicated(tensors(), 1));
  ASSERT_OK(restore_alone(env, fresh, {.verify_all = true}));
  EXPECT_TRUE(fresh.has(values()));
}

TEST_F(Compressed, PartsAndOtherLayoutsAreReadToo) {
  std::vector<Tensor> one{tensors()[0]};
  LayoutBuilder part(one, rank_holders(1));
  part.add(0, {{10, 290}, {3, 900}}, 0, 0);
  Job column(Collection::create(one, std::move(part).build().value()).value());
  const Result<RestoredState> restored = restore_alone(env, column);
  ASSERT_OK(restored);
  EXPECT_TRUE(restored->unverified.empty());
  EXPECT_TRUE(column.has({values()[0]}));
}

TEST_F(Compressed, AnyToolHereReadsItUnpacked) {
  const Result<Contents> contents = open_step_contents(env, shard.parent_path());
  ASSERT_OK(contents);
  Bytes w(300 * 1000 * 4);
  ASSERT_OK(read_canonical(*contents, *contents->collection.find("w"), 0, w));
  EXPECT_EQ(w, values()[0]);
}

TEST_F(Compressed, FlippedBitsAndTruncationsAreRefused) {
  const Bytes bytes = env.read_file(shard).value();
  Dice dice(9);
  for (int i = 0; i < 200; ++i) {
    Bytes damaged = bytes;
    const auto bit =
        static_cast<size_t>(dice.below(static_cast<int64_t>(bytes.size()) * 8));
    damaged[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    ASSERT_OK(env.replace_file(shard, damaged));
    EXPECT_ERROR(restore_alone(env, job), ErrorCode::kCorrupt);
  }
  ASSERT_OK(env.replace_file(shard, ByteView(bytes).first(bytes.size() - 1)));
  EXPECT_ERROR(restore_alone(env, job), ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace holdfast::tests::compress_test
