// Converting keeps everything, from each format into each other format and back.
#include "holdfast/inspect/convert.h"

#include <gtest/gtest.h>

#include "holdfast/contents/contents_testing.h"
#include "holdfast/env/faulty_env.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/inspect/diff.h"

namespace holdfast::convert_test {
namespace {

Object text(const char* value) { return Object(std::string(value)); }

// Tensors of all dtypes, ties, names that are no paths, and objects.
Contents various() {
  std::vector<Tensor> tensors{
      {.name = "a", .shape = {2, 3}, .aliases = {"tied", "../b"}},
      {.name = "a/b", .dtype = Dtype::kBf16, .shape = {3}},
      {.name = "..", .dtype = Dtype::kI64},
      {.name = "/", .shape = {0, 2}},
      {.name = "model.w", .shape = {4}}};
  for (const DtypeInfo& dtype : all_dtypes()) {
    tensors.push_back({.name = fmt::format("dtype {}", dtype.name),
                       .dtype = dtype.dtype,
                       .shape = {2, 1, 2}});
  }
  Contents contents = tests::random_contents(std::move(tensors));
  const Object model(
      Object::Dict{{{text("w"), Object(Object::TensorName{"model.w"})}}});
  contents.objects = Object(Object::Dict{
      {{text("model"), model},
       {text("step"), Object(int64_t{400})},
       {text("graph"), Object(Bytes{std::byte{0}, std::byte{255}})},
       {text("betas"), Object(Object::Tuple{{Object(0.9), Object(), Object(true)}})}}});
  contents.metadata = {{"format", "pt"}};
  return contents;
}

class ConvertTest : public ::testing::TestWithParam<const Format*> {
 protected:
  Contents opened(const Path& path) { return open_file(env_, path).value(); }

  MemoryEnv env_;
};

TEST_P(ConvertTest, ThroughAnyOtherFormatAndBackAllIsEqual) {
  const Format& a = *GetParam();
  ASSERT_OK(write_file(env_, "a", various(), {.format = &a}));
  const Contents before = opened("a");
  for (const Format& b : formats()) {
    if (!b.can_write() || b.one_tensor) continue;
    const Path there = fmt::format("to {}", b.name),
               back = there.native() + " and back";
    ASSERT_OK(convert(env_, "a", there, {.format = std::string(b.name)}));
    ASSERT_OK(convert(env_, there, back, {.format = std::string(a.name)}));
    const Contents middle = opened(there), after = opened(back);
    EXPECT_TRUE(diff(before, middle)->equal()) << b.name;
    tests::expect_same_tensors(middle, before);
    tests::expect_same_tensors(after, before);
    EXPECT_EQ(first_difference(after.objects, before.objects), std::nullopt) << b.name;
    if (b.keeps_metadata) {
      EXPECT_EQ(after.metadata, before.metadata) << b.name;
    }
  }
}

std::vector<const Format*> writable_formats() {
  std::vector<const Format*> writable;
  for (const Format& format : formats()) {
    if (format.can_write() && !format.one_tensor) writable.push_back(&format);
  }
  return writable;
}

INSTANTIATE_TEST_SUITE_P(Formats, ConvertTest, ::testing::ValuesIn(writable_formats()),
                         [](const auto& of) {
                           std::string name(of.param->name);
                           std::erase(name, '-');
                           return name;
                         });

TEST(ConvertOneTensorTest, AnArrayAloneLosesItsNameAndNothingElse) {
  MemoryEnv env;
  const auto write = [&](const Path& path, std::vector<Tensor> tensors) {
    ASSERT_OK(write_file(env, path, tests::random_contents(std::move(tensors))));
  };
  write("one.pt", {{.name = "w", .shape = {2, 3}}});
  const auto done = convert(env, "one.pt", "one.npy");
  ASSERT_OK(done);
  EXPECT_EQ(done->notes, std::vector<std::string>{"name w"});
  const Contents array = open_file(env, "one.npy").value();
  EXPECT_TRUE(tests::canonical_bytes(array, 0) ==
              tests::canonical_bytes(open_file(env, "one.pt").value(), 0));
  write("two.npz", {{.name = "v"}, {.name = "w"}});
  EXPECT_ERROR(convert(env, "two.npz", "two.npy"), ErrorCode::kUnsupported);
  write("tied.npz", {{.name = "v", .aliases = {"w"}}});
  EXPECT_ERROR(convert(env, "tied.npz", "tied.npy"), ErrorCode::kUnsupported);
  EXPECT_FALSE(env.info("two.npy").ok() || env.info("tied.npy").ok());
}

// columns.h5 has a matrix of 56 MiB in chunks of whole columns, more than the reader
// remembers. Each row crosses all of them.
TEST(ConvertChunksTest, NoChunkIsReadTwice) {
  MemoryEnv disk;
  FaultyEnv env(disk);
  const Path path = Path(HOLDFAST_HDF5_FIXTURES) / "columns.h5";
  const Bytes file = make_posix_env()->read_file(path).value();
  ASSERT_OK(disk.write_file("columns.h5", file));
  ASSERT_OK(convert(env, "columns.h5", "columns.safetensors", {}));
  EXPECT_LT(env.bytes(Op::kRead), 2 * std::ssize(file));
}

}  // namespace
}  // namespace holdfast::convert_test
