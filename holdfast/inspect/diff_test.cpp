#include "holdfast/inspect/diff.h"

#include <gtest/gtest.h>

#include <cmath>

#include "holdfast/contents/contents_testing.h"

namespace holdfast::tests {
namespace {

template <typename T>
Memory memory_of(std::initializer_list<T> values) {
  const auto bytes = std::as_bytes(std::span(values.begin(), values.size()));
  return {bytes.begin(), bytes.end()};
}

TensorDiff diff_one(Dtype dtype, const Shape& shape, const Memory& a, const Memory& b,
                    int64_t window = 1 << 20) {
  const Tensor tensor{.name = "t", .dtype = dtype, .shape = shape};
  const Result<DiffReport> report =
      diff(contents_with({tensor}, {a}), contents_with({tensor}, {b}),
           {.window_bytes = window});
  EXPECT_OK(report);
  EXPECT_EQ(report->tensors.size(), 1u);
  return report->tensors[0];
}

TEST(DiffTest, FiguresAreThoseComputedByHand) {
  const TensorDiff f32 =
      diff_one(Dtype::kF32, {2, 3}, memory_of<float>({1, 2, 3, 4, 5, 6}),
               memory_of<float>({1, 2, 3.5, 4, 8, 6}));
  EXPECT_EQ(f32.verdict, Verdict::kDiffers);
  EXPECT_EQ(f32.differing, 2);
  EXPECT_EQ(f32.max_absolute, 3);
  EXPECT_EQ(f32.max_relative, 0.375);
  EXPECT_EQ(f32.first, (std::vector<int64_t>{0, 2}));

  const TensorDiff bf16 =
      diff_one(Dtype::kBf16, {2}, memory_of<uint16_t>({0x3f80, 0x4000}),
               memory_of<uint16_t>({0x3f80, 0x4080}));  // 2 and 4
  EXPECT_EQ(bf16.max_absolute, 2);
  EXPECT_EQ(bf16.max_relative, 0.5);
  const TensorDiff f8 = diff_one(Dtype::kF8E4m3fn, {1}, memory_of<uint8_t>({0x38}),
                                 memory_of<uint8_t>({0x40}));  // 1 and 2
  EXPECT_EQ(f8.max_absolute, 1);
  const TensorDiff i64 = diff_one(Dtype::kI64, {1}, memory_of<int64_t>({INT64_MAX}),
                                  memory_of<int64_t>({INT64_MAX - 3}));
  EXPECT_EQ(i64.max_absolute, 3);
  const TensorDiff flag =
      diff_one(Dtype::kBool, {}, memory_of<uint8_t>({0}), memory_of<uint8_t>({1}));
  EXPECT_EQ(flag.max_absolute, 1);
  EXPECT_TRUE(flag.first.empty());
}

TEST(DiffTest, BitsDecideAndNotNumbers) {
  EXPECT_EQ(diff_one(Dtype::kF32, {1}, memory_of<float>({NAN}), memory_of<float>({NAN}))
                .verdict,
            Verdict::kEqual);
  const TensorDiff zeros =
      diff_one(Dtype::kF32, {1}, memory_of<float>({0.f}), memory_of<float>({-0.f}));
  EXPECT_EQ(zeros.verdict, Verdict::kDiffers);
  EXPECT_EQ(zeros.max_absolute, 0);
  const TensorDiff nan = diff_one(Dtype::kF64, {3}, memory_of<double>({1, NAN, 3}),
                                  memory_of<double>({9, 2, 30}));
  EXPECT_EQ(nan.differing, 3);
  EXPECT_TRUE(std::isnan(nan.max_absolute));
  EXPECT_TRUE(std::isnan(nan.max_relative));
}

TEST(DiffTest, WindowsDoNotChangeTheFigures) {
  Dice dice(1);
  const std::vector<Tensor> tensors = {
      {.name = "t", .dtype = Dtype::kC64, .shape = {7, 9}}};
  const auto a = random_values(dice, tensors), b = random_values(dice, tensors);
  const TensorDiff whole = diff_one(Dtype::kC64, {7, 9}, a[0], b[0]);
  const TensorDiff parts = diff_one(Dtype::kC64, {7, 9}, a[0], b[0], 48);
  EXPECT_EQ(whole.differing, 63);
  EXPECT_EQ(parts.differing, whole.differing);
  EXPECT_EQ(parts.first, whole.first);
  EXPECT_TRUE(parts.max_absolute == whole.max_absolute ||
              std::isnan(whole.max_absolute));
}

TEST(DiffTest, TensorsAreMatchedByNameAndTie) {
  const Contents a =
      random_contents({{.name = "tied", .shape = {3}, .aliases = {"head"}},
                       {.name = "kind", .shape = {4}},
                       {.name = "form", .shape = {4}},
                       {.name = "left", .shape = {1}}});
  Contents b = random_contents({{.name = "head", .shape = {3}, .aliases = {"tied"}},
                                {.name = "kind", .dtype = Dtype::kI32, .shape = {4}},
                                {.name = "form", .shape = {2, 2}},
                                {.name = "right", .shape = {1}}});
  const DiffReport report = diff(a, b).value();
  ASSERT_EQ(report.tensors.size(), 5u);
  EXPECT_EQ(report.tensors[0].name, "form");
  EXPECT_EQ(report.tensors[0].verdict, Verdict::kShape);
  EXPECT_EQ(report.tensors[1].name,
            "head");  // its alias "tied" is not listed a second time
  EXPECT_EQ(report.tensors[1].verdict, Verdict::kEqual);
  EXPECT_EQ(report.tensors[2].verdict, Verdict::kDtype);
  EXPECT_EQ(report.tensors[3].verdict, Verdict::kOnlyA);
  EXPECT_EQ(report.tensors[4].verdict, Verdict::kOnlyB);
  EXPECT_FALSE(report.equal());
  EXPECT_EQ(report.bytes, 12);
}

Object dict(std::vector<std::pair<Object, Object>> items) {
  return Object(Object::Dict{std::move(items)});
}

TEST(DiffTest, TheFirstDifferenceOfObjectsIsNamedByItsPath) {
  const auto with = [](Object rate, Object steps) {
    return dict({{Object("opt"), dict({{Object("lr"), std::move(rate)}})},
                 {Object("steps"), Object(Object::List{{std::move(steps)}})}});
  };
  const Object a = with(Object(0.5), Object(int64_t{3}));
  EXPECT_EQ(first_difference(a, a), std::nullopt);
  EXPECT_EQ(first_difference(a, with(Object(0.25), Object(int64_t{3}))),
            "opt.lr: 0.5 against 0.25");
  EXPECT_EQ(first_difference(a, with(Object(0.5), Object(3.0))),
            "steps.0: 3 against 3.0");
  EXPECT_EQ(first_difference(dict({{Object("x"), Object(true)}}), dict({})),
            "x: only in the first");
  EXPECT_EQ(first_difference(Object(), Object(true)), "the objects: null against true");
  const Object none(Object::Dict{});
  const Object empty(Object::Dict{{{Object("m"), none}}});
  EXPECT_EQ(first_difference(none, empty), "m: only in the second");
}

TEST(DiffTest, TheOrderOfADictAndTheBareNestingOfTensorsAreNoDifference) {
  const Object ab = dict({{Object("a"), Object(true)}, {Object("b"), Object()}});
  const Object ba = dict({{Object("b"), Object()}, {Object("a"), Object(true)}});
  EXPECT_EQ(first_difference(ab, ba), std::nullopt);
  const Object tree = dict({{Object("w"), Object(Object::TensorName{"w"})}});
  EXPECT_EQ(first_difference(tree, Object()), std::nullopt);
  EXPECT_EQ(first_difference(Object(), tree), std::nullopt);
  EXPECT_NE(first_difference(ab, Object()), std::nullopt);
}

}  // namespace
}  // namespace holdfast::tests
