// What every format must do. These tests run over each format that this build can write
// and that holds any number of tensors. fixtures_test.cpp has what formats that can only
// be read must do.
#include <gtest/gtest.h>

#include <cstdlib>

#include "holdfast/env/faulty_env.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/contents/contents_testing.h"
#include "holdfast/formats/format.h"

namespace holdfast {
namespace {

using tests::canonical_bytes;
using tests::CountingSource;
using tests::Dice;
using tests::expect_same_tensors;
using tests::random_contents;

class ConformanceTest : public ::testing::TestWithParam<const Format*> {
 protected:
  const Format& format() const { return *GetParam(); }

  // Writes the contents, recognises the format and opens the file again.
  Result<Contents> round_trip(const Contents& contents) {
    const Path path = fmt::format("file-{}", ++files_);
    HOLDFAST_TRY(write_file(env_, path, contents, {.format = &format()}));
    EXPECT_EQ(HOLDFAST_TRY(format_of(env_, path))->name, format().name);
    return open_file(env_, path);
  }

  void expect_round_trip(const Contents& contents) {
    const auto opened = round_trip(contents);
    ASSERT_OK(opened);
    expect_same_tensors(*opened, contents);
    for (const Holder& holder : opened->collection.layout().holders()) {
      EXPECT_EQ(holder.kind, HolderKind::kFile);
    }
    EXPECT_EQ(opened->sources.size(), opened->collection.layout().holders().size());
  }

  // The files that were written under a path: the path itself, or the files in the
  // folder.
  std::vector<Path> files_of(const Path& path) {
    if (!env_.info(path).value().folder) return {path};
    std::vector<Path> files;
    for (const std::string& name : env_.list(path).value()) {
      files.push_back(path / name);
    }
    return files;
  }

  // Contents with a few small tensors.
  static Contents small(uint64_t seed = 1) {
    return random_contents({{.name = "a", .dtype = Dtype::kF32, .shape = {2, 3}},
                            {.name = "b", .dtype = Dtype::kBf16, .shape = {5}},
                            {.name = "c", .dtype = Dtype::kU8, .shape = {}}},
                           seed);
  }

  // Opens the file and reads all of it. Returns the first error.
  static Result<void> read_all(Env& env, const Path& path) {
    const Contents contents = HOLDFAST_TRY(open_file(env, path));
    for (TensorId t = 0; t < contents.collection.tensors().size(); ++t) {
      Bytes bytes(static_cast<size_t>(contents.collection.tensor(t).bytes()));
      HOLDFAST_TRY(read_canonical(contents, t, 0, bytes));
    }
    return {};
  }

  MemoryEnv env_;
  int files_ = 0;
};

TEST_P(ConformanceTest, EveryDtypeComesBackInEveryShape) {
  std::vector<Tensor> tensors;
  for (const DtypeInfo& dtype : all_dtypes()) {
    if (!format().keeps_dtype(dtype.dtype)) continue;
    for (const Shape& shape : {Shape{}, Shape{1}, Shape{7}, Shape{0}, Shape{3, 0, 2},
                               Shape{2, 3, 4}, Shape{1, 2, 1, 2, 1, 2, 1}}) {
      tensors.push_back({.name = fmt::format("{} {}", dtype.name, to_string(shape)),
                         .dtype = dtype.dtype,
                         .shape = shape});
    }
  }
  ASSERT_FALSE(tensors.empty());
  expect_round_trip(random_contents(std::move(tensors)));
}

TEST_P(ConformanceTest, NoTensorsAreWrittenOrRefused) {
  const auto opened = round_trip(random_contents({}));
  if (format().keeps_empty) {
    ASSERT_OK(opened);
    EXPECT_TRUE(opened->collection.tensors().empty());
  } else {
    EXPECT_ERROR(opened, ErrorCode::kUnsupported);
  }
}

TEST_P(ConformanceTest, OneTensorComesBack) {
  expect_round_trip(
      random_contents({{.name = "w", .dtype = Dtype::kF32, .shape = {3}}}));
}

TEST_P(ConformanceTest, AThousandTensorsComeBack) {
  std::vector<Tensor> tensors;
  for (int i = 0; i < 1000; ++i) {
    tensors.push_back({.name = fmt::format("layers.{}.weight", i),
                       .dtype = i % 2 == 0 ? Dtype::kF32 : Dtype::kU8,
                       .shape = {i % 7, 3}});
  }
  expect_round_trip(random_contents(std::move(tensors)));
}

TEST_P(ConformanceTest, OddNamesComeBack) {
  std::vector<Tensor> tensors;
  for (const char* name : {"a/b", "/", "..", "a.b.c", "été", "日本語", "\U0001f600",
                           "a \"b\"", "a'b", "back\\slash", "new\nline", "\x01",
                           "a@[0:2, 3:4]", "$tensor", " ", "data.pkl"}) {
    tensors.push_back({.name = name, .dtype = Dtype::kI16, .shape = {3}});
  }
  expect_round_trip(random_contents(std::move(tensors)));
}

TEST_P(ConformanceTest, TiedNamesAreOneTensor) {
  if (!format().keeps_aliases) GTEST_SKIP() << "a format without aliases";
  expect_round_trip(random_contents({{.name = "embedding",
                                      .dtype = Dtype::kF32,
                                      .shape = {4, 2},
                                      .aliases = {"head", "other \"head\""}},
                                     {.name = "w", .dtype = Dtype::kF32}}));
}

TEST_P(ConformanceTest, ObjectsComeBack) {
  if (!format().keeps_objects) GTEST_SKIP() << "a format without objects";
  const auto name = [](const char* text) { return Object(std::string(text)); };
  const auto tensor = [](const char* text) { return Object(Object::TensorName{text}); };
  // The tensors are named by their paths, as formats that nest objects name them.
  Contents contents =
      random_contents({{.name = "model.a", .dtype = Dtype::kF32, .shape = {2, 3}},
                       {.name = "model.b", .dtype = Dtype::kU8, .shape = {5}},
                       {.name = "optimizer.0", .dtype = Dtype::kF64}});
  contents.objects = Object(Object::Dict{
      {{name("model"), Object(Object::Dict{{{name("a"), tensor("model.a")},
                                            {name("b"), tensor("model.b")}}})},
       {name("optimizer"),
        Object(Object::Dict{{{Object(int64_t{0}), tensor("optimizer.0")},
                             {Object(int64_t{1}),
                              Object(Object::Tuple{{Object(0.9), Object(0.999)}})}}})},
       {name("step"), Object(int64_t{400})},
       {name("big"), Object(Object::BigInteger{"-170141183460469231731687303715"})},
       {name("rng"), Object(Bytes{std::byte{0}, std::byte{255}})},
       {name("flags"), Object(Object::List{{Object(true), Object(), Object(-0.0)}})}}});
  const auto opened = round_trip(contents);
  ASSERT_OK(opened);
  EXPECT_TRUE(opened->objects == contents.objects);
}

TEST_P(ConformanceTest, MetadataComesBack) {
  if (!format().keeps_metadata) GTEST_SKIP() << "a format without metadata";
  Contents contents = small();
  contents.metadata = {{"format", "pt"}, {"é", "a \"b\"\n"}, {"", ""}};
  const auto opened = round_trip(contents);
  ASSERT_OK(opened);
  EXPECT_EQ(opened->metadata, contents.metadata);
}

TEST_P(ConformanceTest, EveryKindOfBoxIsTheSliceThatItIs) {
  const Contents contents =
      random_contents({{.name = "first", .dtype = Dtype::kU8, .shape = {5}},
                       {.name = "w", .dtype = Dtype::kF32, .shape = {4, 5, 6}}});
  const auto opened = round_trip(contents);
  ASSERT_OK(opened);
  const TensorId t = opened->collection.find("w").value();
  const Bytes values = canonical_bytes(contents, 1);
  Dice dice(1);
  std::vector<Box> boxes{Box::whole({4, 5, 6}),    {{1, 2}, {0, 5}, {0, 6}},
                         {{0, 4}, {2, 3}, {0, 6}}, {{0, 4}, {0, 5}, {5, 6}},
                         {{3, 4}, {4, 5}, {5, 6}}, {{2, 2}, {0, 5}, {0, 6}}};
  while (boxes.size() < 60) {
    const int64_t a = dice.below(5), b = dice.below(6), c = dice.below(7);
    boxes.push_back({{a, a + dice.below(5 - a)},
                     {b, b + dice.below(6 - b)},
                     {c, c + dice.below(7 - c)}});
  }
  for (const Box& box : boxes) {
    Bytes memory(static_cast<size_t>(box.elements() * 4)), want;
    ASSERT_OK(read_box(*opened, t, box, Map::dense(box, 4), memory));
    for (int64_t x = box[0].lo; x < box[0].hi; ++x) {
      for (int64_t y = box[1].lo; y < box[1].hi; ++y) {
        const auto row = values.begin() + (x * 5 + y) * 24;
        want.insert(want.end(), row + box[2].lo * 4, row + box[2].hi * 4);
      }
    }
    EXPECT_TRUE(memory == want) << to_string(box);
  }
}

TEST_P(ConformanceTest, CutAtAnyByteItIsRefused) {
  ASSERT_OK(write_file(env_, "whole", small(), {.format = &format()}));
  for (const Path& file : files_of("whole")) {
    const Bytes bytes = env_.read_file(file).value();
    for (size_t size = 0; size < bytes.size(); ++size) {
      ASSERT_OK(env_.write_file(file, ByteView(bytes).first(size)));
      const auto read = read_all(env_, "whole");
      // The last byte of an index may be white space after its end.
      if (size + 1 == bytes.size() && bytes.back() == std::byte{'\n'}) continue;
      ASSERT_FALSE(read.ok()) << file << " cut to " << size;
      const ErrorCode code = read.error().code();
      EXPECT_TRUE(code == ErrorCode::kCorrupt || code == ErrorCode::kUnsupported)
          << size << ": " << name_of(code) << " " << read.error().message();
    }
    ASSERT_OK(env_.write_file(file, bytes));
  }
  EXPECT_OK(read_all(env_, "whole"));
}

// HOLDFAST_LONG=1 changes every byte instead of every third.
TEST_P(ConformanceTest, WithAnyByteChangedItIsReadOrRefused) {
  const size_t step = std::getenv("HOLDFAST_LONG") != nullptr ? 1 : 3;
  ASSERT_OK(write_file(env_, "whole", small(), {.format = &format()}));
  for (const Path& file : files_of("whole")) {
    const Bytes bytes = env_.read_file(file).value();
    for (size_t i = 0; i < std::min<size_t>(bytes.size(), 4096); i += step) {
      for (const std::byte mask : {std::byte{1}, std::byte{128}, std::byte{255}}) {
        Bytes changed = bytes;
        changed[i] ^= mask;
        ASSERT_OK(env_.write_file(file, changed));
        const auto read = read_all(env_, "whole");
        EXPECT_TRUE(read.ok() || !read.error().message().empty());
      }
    }
    ASSERT_OK(env_.write_file(file, bytes));
  }
}

TEST_P(ConformanceTest, WritingStreams) {
  Contents contents =
      random_contents({{.name = "a", .dtype = Dtype::kU8, .shape = {5 << 20}},
                       {.name = "b", .dtype = Dtype::kF32, .shape = {1 << 20, 3}}});
  const auto counting = std::make_shared<CountingSource>(contents.sources.front());
  contents.sources = {counting};
  ASSERT_OK(write_file(env_, "large", contents, {.format = &format()}));
  EXPECT_LE(counting->counts.most, 4 << 20);
  // A format may read the data twice, if a checksum comes before the data.
  EXPECT_LE(counting->counts.bytes, 2 * contents.collection.bytes());
}

// A weight that was transposed, as torch saves it.
TEST_P(ConformanceTest, ATransposedTensorIsNotReadOverAndOver) {
  const std::vector<Tensor> tensors{
      {.name = "w", .dtype = Dtype::kF32, .shape = {3000, 1000}}};
  Contents contents = random_contents(tensors);
  const Box box = Box::whole(tensors[0].shape);
  Map map = Map::dense(box, 4);
  map.strides[0] = 4;
  map.strides[1] = 3000 * 4;
  LayoutBuilder builder(tensors, {{.name = "memory", .kind = HolderKind::kFile}});
  builder.add(0, box, 0, map);
  contents.collection =
      Collection::create(tensors, std::move(builder).build().value()).value();
  const auto counting = std::make_shared<CountingSource>(contents.sources.front());
  contents.sources = {counting};
  const auto opened = round_trip(contents);
  ASSERT_OK(opened);
  EXPECT_LE(counting->counts.bytes, 2 * contents.collection.bytes());
  expect_same_tensors(*opened, contents);
}

TEST_P(ConformanceTest, WhatExistsIsNotReplaced) {
  ASSERT_OK(write_file(env_, "there", small(1), {.format = &format()}));
  EXPECT_ERROR(write_file(env_, "there", small(2), {.format = &format()}),
               ErrorCode::kConflict);
  const auto opened = open_file(env_, "there");
  ASSERT_OK(opened);
  expect_same_tensors(*opened, small(1));
}

TEST_P(ConformanceTest, AFailureLeavesNothingBehind) {
  FaultyEnv counted(env_);
  ASSERT_OK(write_file(counted, "counted", small(), {.format = &format()}));
  for (int64_t k = 2; k < counted.calls();
       ++k) {  // call 1 checks whether the target exists
    MemoryEnv disk;
    FaultyEnv env(disk);
    env.fail_at(Op::kAny, k, ErrorCode::kNoSpace);
    EXPECT_ERROR(write_file(env, "file", small(), {.format = &format()}),
                 ErrorCode::kNoSpace);
    EXPECT_EQ(disk.list("").value(), std::vector<std::string>()) << "call " << k;
  }
}

TEST_P(ConformanceTest, ACrashLeavesTheWholeOrNothingOfThatName) {
  FaultyEnv counted(env_);
  ASSERT_OK(write_file(counted, "counted", small(), {.format = &format()}));
  for (int64_t k = 1; k <= counted.calls() + 1; ++k) {
    MemoryEnv disk;
    FaultyEnv env(disk);
    env.crash_at(Op::kAny, k);
    const bool done = write_file(env, "file", small(), {.format = &format()}).ok();
    for (const Unsynced unsynced :
         {Unsynced::kLost, Unsynced::kKept, Unsynced::kReordered}) {
      const auto after =
          disk.after_crash({.unsynced = unsynced, .seed = static_cast<uint64_t>(k)});
      const bool there = after->info("file").ok();
      EXPECT_TRUE(there || !done) << "call " << k;
      EXPECT_TRUE(!there || read_all(*after, "file").ok()) << "call " << k;
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

INSTANTIATE_TEST_SUITE_P(Formats, ConformanceTest,
                         ::testing::ValuesIn(writable_formats()), [](const auto& of) {
                           std::string name(of.param->name);
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace holdfast
