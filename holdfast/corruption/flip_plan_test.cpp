// Tests which bits a plan chooses, what becomes of them, and that the same seed gives the
// same plan everywhere.
#include "holdfast/corruption/flip_plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "holdfast/contents/contents_testing.h"
#include "holdfast/corruption/legacy_sampling.h"
#include "holdfast/corruption/make_plan.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/state/number.h"
#include "holdfast/state/tensor_names.h"

namespace holdfast {
namespace {

using tests::contents_with;
using tests::Memory;
using tests::random_contents;

Tensor tensor(std::string name, Dtype dtype, Shape shape) {
  return {.name = std::move(name), .dtype = dtype, .shape = shape};
}

Contents zeros(std::vector<Tensor> tensors) {
  std::vector<Memory> values;
  for (const Tensor& one : tensors)
    values.emplace_back(static_cast<size_t>(one.bytes()));
  return contents_with(std::move(tensors), values);
}

Contents filled(float value, int64_t count) {
  Memory memory;
  const auto bytes = std::as_bytes(std::span(&value, 1));
  for (int64_t i = 0; i < count; ++i) {
    memory.insert(memory.end(), bytes.begin(), bytes.end());
  }
  return contents_with({tensor("w", Dtype::kF32, {count})}, {memory});
}

// A small net; not in order of name.
Contents net() {
  return zeros({tensor("conv1.weight", Dtype::kF32, {2, 3}),
                tensor("conv10.weight", Dtype::kF32, {4}),
                tensor("bn.running_var", Dtype::kF64, {2})});
}

// "conv1.weight 5: 0, 24", one text for each element.
std::vector<std::string> texts(const FlipPlan& plan) {
  std::vector<std::string> all;
  for (const PlannedFlip& flip : plan.flips) {
    all.push_back(
        fmt::format("{} {} {}", flip.tensor, flip.element, bits_in_words(flip.mask())));
  }
  return all;
}

using Texts = std::vector<std::string>;

// The vectors were computed by an independent program.
TEST(FlipPlanTest, TheSameSeedGivesTheSamePlanOnEveryMachine) {
  const Contents contents = net();
  const auto first = make_plan(contents, {.count = 5, .seed = 7});
  ASSERT_OK(first);
  EXPECT_EQ(first->sites, 448);
  EXPECT_EQ(texts(*first), (Texts{"conv10.weight 2 bits 2, 11", "conv1.weight 5 bit 24",
                                  "conv1.weight 4 bit 20", "conv10.weight 3 bit 21"}));
  const auto second = make_plan(contents, {.count = 3, .seed = 7, .trial = 1});
  ASSERT_OK(second);
  EXPECT_EQ(texts(*second),
            (Texts{"conv10.weight 2 bit 28", "bn.running_var 1 bits 6, 10"}));
  const auto legacy =
      make_plan(contents, {.count = 4, .seed = 7, .sampling = Sampling::kLegacy});
  ASSERT_OK(legacy);
  EXPECT_EQ(texts(*legacy),
            (Texts{"conv1.weight 5 bit 0", "bn.running_var 1 bits 48, 53",
                   "conv1.weight 4 bit 23"}));
}

TEST(FlipPlanTest, APlanIsTheSameAfterItWasWrittenAndRead) {
  const auto plan = make_plan(net(), {.count = 9, .seed = 3, .trial = 2});
  ASSERT_OK(plan);
  const std::string text = encode_flip_plan(*plan);
  const auto again = decode_flip_plan(text, "plan");
  ASSERT_OK(again);
  EXPECT_TRUE(*again == *plan);
  EXPECT_TRUE(inverse(inverse(*plan)) == *plan);
  const auto with = [&](const std::string& what, const std::string& by) {
    std::string other = text;
    other.replace(other.find(what), what.size(), by);
    return decode_flip_plan(other, "plan");
  };
  EXPECT_ERROR(with("\"version\": 1", "\"version\": 2"), ErrorCode::kUnsupported);
  EXPECT_ERROR(with("flip plan", "manifest"), ErrorCode::kInvalid);
  EXPECT_ERROR(with("\"mask\": \"0", "\"mask\": \"1"), ErrorCode::kInvalid);
  EXPECT_ERROR(with("\"seed\"", "\"sead\""), ErrorCode::kInvalid);
  EXPECT_ERROR(decode_flip_plan("[", "plan"), ErrorCode::kInvalid);
}

// Compares the value after a flip with the same bits cast to the type by the compiler.
TEST(FlipPlanTest, EveryBitOfEveryDtypeIsFlippedAndFlippedBack) {
  for (const DtypeInfo& type : all_dtypes()) {
    const Contents contents = random_contents({tensor("w", type.dtype, {1})}, 5);
    const std::vector<int> bits = chosen_bits(type.dtype, {});
    EXPECT_EQ(std::ssize(bits), type.kind == DtypeKind::kBool ? 1 : 8 * type.bytes);
    std::set<int> seen;
    for (int trial = 0; trial < 1000 && std::ssize(seen) < std::ssize(bits); ++trial) {
      const auto plan = make_plan(contents, {.seed = 1, .trial = trial});
      ASSERT_OK(plan);
      ASSERT_EQ(plan->flips.size(), 1u);
      const PlannedFlip& flip = plan->flips[0];
      const std::vector<int> flipped = set_bits(flip.mask());
      ASSERT_EQ(flipped.size(), 1u);
      seen.insert(flipped[0]);
      EXPECT_EQ(with_flipped(flip.after, flipped[0]), flip.before);
      EXPECT_EQ(parse_bits(type.dtype, bits_text(type.dtype, flip.after)).value(),
                flip.after);
    }
    EXPECT_EQ(seen.size(), bits.size()) << type.name;
  }
  ElementBits half{};
  store_little_endian<uint32_t>(std::bit_cast<uint32_t>(0.5f), half);
  const ElementBits large = with_flipped(half, 30);
  EXPECT_EQ(value_text(Dtype::kF32, large), "1.7e+38");
  EXPECT_EQ(bits_text(Dtype::kF32, large), "7f000000");
  EXPECT_TRUE(is_finite(Dtype::kF8E4m3fn, element_of(Dtype::kF8E4m3fn, 448).value()));
  EXPECT_FALSE(is_finite(Dtype::kF8E4m3fn, parse_bits(Dtype::kF8E4m3fn, "ff").value()));
  EXPECT_FALSE(
      is_finite(Dtype::kF8E4m3fnuz, parse_bits(Dtype::kF8E4m3fnuz, "80").value()));
  EXPECT_FALSE(is_finite(Dtype::kF8E8m0, parse_bits(Dtype::kF8E8m0, "ff").value()));
}

// Chi-square over tensors of very different sizes.
double chi_square(const std::vector<int64_t>& seen, const std::vector<double>& shares) {
  int64_t total = 0;
  for (const int64_t count : seen) total += count;
  double sum = 0;
  for (size_t i = 0; i < seen.size(); ++i) {
    const double want = shares[i] * static_cast<double>(total);
    sum += (static_cast<double>(seen[i]) - want) *
           (static_cast<double>(seen[i]) - want) / want;
  }
  return sum;
}

TEST(FlipPlanTest, BitsAreEquallyLikelyAndTensorsAreSoInLegacySampling) {
  const Contents contents =
      zeros({tensor("a", Dtype::kF32, {1000}), tensor("b", Dtype::kBf16, {500}),
             tensor("c", Dtype::kF64, {1, 100, 2})});
  const auto count = [&](Sampling sampling) {
    std::vector<int64_t> hits(3);
    for (int trial = 0; trial < 3000; ++trial) {
      const auto plan = make_plan(contents, {.trial = trial, .sampling = sampling});
      hits[static_cast<size_t>(plan.value().flips.at(0).tensor[0] - 'a')] += 1;
    }
    return hits;
  };
  const double all = 32000 + 8000 + 12800;
  // 3 classes: 13.8 is exceeded once in 1,000 times, and the seed is fixed.
  EXPECT_LT(chi_square(count(Sampling::kBits), {32000 / all, 8000 / all, 12800 / all}),
            13.8);
  EXPECT_LT(chi_square(count(Sampling::kLegacy), {1 / 3., 1 / 3., 1 / 3.}), 13.8);
}

TEST(FlipPlanTest, SitesAreDistinctUntilAllAreFlipped) {
  const Contents contents = net();
  const auto plan = make_plan(contents, {.count = 448, .seed = 5});
  ASSERT_OK(plan);
  ASSERT_EQ(plan->flips.size(), 12u);
  for (const PlannedFlip& flip : plan->flips) {
    EXPECT_EQ(std::ssize(set_bits(flip.mask())), 8 * bytes_of(flip.dtype));
  }
  EXPECT_ERROR(make_plan(contents, {.count = 449, .seed = 5}), ErrorCode::kInvalid);
  EXPECT_ERROR(make_plan(contents, {.count = 0}), ErrorCode::kInvalid);
}

// One file of ten numbers: "base" has the first eight, "odd" every second one of these,
// and "tail" the last four of the file.
TEST(FlipPlanTest, BitsThatTensorsShareCountOnce) {
  std::vector<Tensor> tensors{tensor("base", Dtype::kF32, {8}),
                              tensor("odd", Dtype::kF32, {2, 2}),
                              tensor("tail", Dtype::kF32, {4})};
  std::vector<Holder> holders(3, {.name = "memory", .kind = HolderKind::kFile});
  for (size_t i = 0; i < 3; ++i) holders[i].name += std::to_string(i);
  LayoutBuilder builder(tensors, std::move(holders));
  builder.add(0, Box::whole({8}), 0, 0);
  builder.add(1, Box::whole({2, 2}), 1, Map{.offset = 4, .strides = {16, 8}});
  builder.add(2, Box::whole({4}), 2, 24);
  Layout layout = std::move(builder).build().value();
  const auto source = std::make_shared<MemorySource>("memory", Bytes(40));
  const Contents contents{
      .collection = Collection::create(std::move(tensors), layout).value(),
      .sources = {source, source, source},
      .objects = {},
      .metadata = {}};
  const auto plan = make_plan(contents, {.count = 320});
  ASSERT_OK(plan);
  std::map<std::string, std::set<int64_t>> elements;
  for (const PlannedFlip& flip : plan->flips)
    elements[flip.tensor].insert(flip.element);
  EXPECT_EQ(elements.size(), 2u) << "all of \"odd\" belongs to \"base\"";
  EXPECT_EQ(elements["base"].size(), 8u);
  EXPECT_EQ(elements["tail"], (std::set<int64_t>{2, 3}));
  EXPECT_ERROR(make_plan(contents, {.count = 321}), ErrorCode::kInvalid);
  const auto view = make_plan(contents, {.sites = {.tensors = {"odd"}}, .count = 128});
  EXPECT_OK(view);
}

TEST(FlipPlanTest, ARateStrikesItsShareOfTheSites) {
  const Contents contents = zeros({tensor("w", Dtype::kF32, {10000})});
  int64_t struck = 0;
  for (int trial = 0; trial < 50; ++trial) {
    const auto plan = make_plan(contents, {.rate = 1e-3, .trial = trial});
    ASSERT_OK(plan);
    for (const PlannedFlip& flip : plan->flips)
      struck += std::ssize(set_bits(flip.mask()));
  }
  EXPECT_NEAR(static_cast<double>(struck), 16000, 5 * std::sqrt(16000));
  EXPECT_ERROR(make_plan(contents, {.rate = 1.5}), ErrorCode::kInvalid);
}

TEST(FlipPlanTest, PatternsRolesLayersAndBitFieldsSelect) {
  EXPECT_TRUE(selects("conv1", "conv1.weight"));
  EXPECT_FALSE(selects("conv1", "conv10.weight"));
  EXPECT_TRUE(selects("/predictor/conv1", "predictor/conv1/W"));
  EXPECT_FALSE(selects("/predictor/conv1", "/predictor/conv10/W"));
  EXPECT_TRUE(selects("*.weight", "model.conv1.weight"));
  EXPECT_TRUE(selects("model.*", "model.conv1.weight"));
  EXPECT_FALSE(selects("model.*", "models.conv1.weight"));
  EXPECT_TRUE(selects("conv?", "conv1.bias"));
  EXPECT_FALSE(selects("conv?", "conv10.bias"));
  EXPECT_TRUE(selects("*", "w"));
  EXPECT_FALSE(selects("", "w"));
  const Contents contents = net();
  const auto all_in = [&](const SiteSelection& sites) {
    std::set<std::string> names;
    for (int trial = 0; trial < 60; ++trial) {
      const auto plan = make_plan(contents, {.sites = sites, .trial = trial});
      for (const PlannedFlip& flip : plan.value().flips) names.insert(flip.tensor);
    }
    return names;
  };
  using Names = std::set<std::string>;
  EXPECT_EQ(all_in({.tensors = {"conv1"}}), Names{"conv1.weight"});
  EXPECT_EQ(all_in({.roles = {Role::kBuffer}}), Names{"bn.running_var"});
  EXPECT_EQ(all_in({.layers = {"last"}}), Names{"conv10.weight"});
  EXPECT_EQ(all_in({.layers = {"0"}}), Names{"conv1.weight"});
  EXPECT_ERROR(make_plan(contents, {.sites = {.tensors = {"conv2"}}}),
               ErrorCode::kNotFound);
  EXPECT_ERROR(make_plan(contents, {.sites = {.layers = {"2"}}}), ErrorCode::kNotFound);
  EXPECT_ERROR(make_plan(contents, {.sites = {.layers = {"x"}}}), ErrorCode::kInvalid);
  EXPECT_EQ(chosen_bits(Dtype::kBf16, parse_bit_choice("top-exponent").value()),
            std::vector<int>{14});
  EXPECT_EQ(chosen_bits(Dtype::kC64, parse_bit_choice("sign").value()),
            (std::vector<int>{31, 63}));
  EXPECT_EQ(chosen_bits(Dtype::kF16, parse_bit_choice("30").value()),
            std::vector<int>{});
  EXPECT_EQ(chosen_bits(Dtype::kI8, parse_bit_choice("mantissa").value()).size(), 7u);
  EXPECT_EQ(chosen_bits(Dtype::kF16, parse_bit_choice("0-1,14,15").value()),
            (std::vector<int>{0, 1, 14, 15}));
  EXPECT_EQ(chosen_bits(Dtype::kF32, parse_bit_choice("0-29,31").value()).size(), 31u);
  for (const char* wrong : {"31-30", "", ",", "3,", ",3", "1-2-3", "128", "3,x"}) {
    EXPECT_ERROR(parse_bit_choice(wrong), ErrorCode::kInvalid);
  }
}

TEST(FlipPlanTest, NamesTellRoles) {
  const auto role = [](std::string name, Shape shape, Dtype dtype = Dtype::kF32) {
    return role_of(tensor(std::move(name), dtype, shape));
  };
  EXPECT_EQ(role("model.bn1.running_mean", {4}), Role::kBuffer);
  EXPECT_EQ(role("bn/moving_variance", {4}), Role::kBuffer);
  EXPECT_EQ(role("predictor/bn1/avg_var", {4}), Role::kBuffer);
  EXPECT_EQ(role("bn1.num_batches_tracked", {}, Dtype::kI64), Role::kCounter);
  EXPECT_EQ(role("optimizer.state.0.exp_avg", {4}), Role::kSlot);
  EXPECT_EQ(role("optimizer.state.0.step", {}), Role::kCounter);
  EXPECT_EQ(role("conv1/W/v", {4}), Role::kSlot);
  EXPECT_EQ(role("attention.v", {4}), Role::kParameter);
  EXPECT_EQ(
      role("dense/kernel/.OPTIMIZER_SLOT/optimizer/m/.ATTRIBUTES/VARIABLE_VALUE", {4}),
      Role::kSlot);
  EXPECT_EQ(role("dense/kernel/.ATTRIBUTES/VARIABLE_VALUE", {4}), Role::kParameter);
  EXPECT_EQ(role("optimizer_weights/adam/dense_kernel_momentum", {4}), Role::kSlot);
  EXPECT_EQ(role("dense/kernel/Adam_1", {4}), Role::kSlot);
  EXPECT_EQ(role("beta1_power", {}), Role::kCounter);
  EXPECT_EQ(role("rng", {5056}, Dtype::kU8), Role::kCounter);
  EXPECT_EQ(role("state.cuda_rng_states.0", {16}, Dtype::kU8), Role::kCounter);
  EXPECT_EQ(role("generator.weight", {4}), Role::kParameter) << "a model may be one";
  EXPECT_EQ(role("wrng", {4}, Dtype::kU8), Role::kParameter);
  Tensor stored = tensor("w", Dtype::kF32, {4});
  stored.role = Role::kSlot;
  EXPECT_EQ(role_of(stored), Role::kSlot) << "what is recorded wins";
}

TEST(FlipPlanTest, NumbersStayFiniteAsTheyAreStoredOrThePlanIsRefused) {
  const Contents ones = filled(1.0f, 50);
  const auto plan =
      make_plan(ones, {.sites = {.bits = parse_bit_choice("exponent").value()},
                       .count = 200,
                       .finite = Finite::kMust});
  ASSERT_OK(plan);
  EXPECT_GT(plan->passed_over, 0) << "bit 30 of 1.0 gives infinity";
  for (const PlannedFlip& flip : plan->flips) {
    EXPECT_TRUE(is_finite(flip.dtype, flip.after));
  }
  const SiteSelection top{.bits = parse_bit_choice("30").value()};
  EXPECT_ERROR(make_plan(ones, {.sites = top, .finite = Finite::kMust}),
               ErrorCode::kInvalid);  // no site is left
  EXPECT_ERROR(
      make_plan(ones,
                {.sites = top, .finite = Finite::kMust, .sampling = Sampling::kLegacy}),
      ErrorCode::kNotFound);  // the number of attempts is bounded
  EXPECT_ERROR(make_plan(filled(1.0f, 40'000), {.sites = top, .finite = Finite::kMust}),
               ErrorCode::kNotFound);
  const auto infinite = make_plan(ones, {.count = 3, .finite = Finite::kNever});
  ASSERT_OK(infinite);
  for (const PlannedFlip& flip : infinite->flips) {
    EXPECT_EQ(value_text(flip.dtype, flip.after), "inf");
  }
}

TEST(FlipPlanTest, EveryKindOfFaultDoesWhatItsNameSays) {
  const Contents ones = filled(1.5f, 8);
  const auto first = [&](const Fault& fault) {
    return make_plan(ones, {.fault = fault, .seed = 2}).value().flips.at(0);
  };
  const auto number = [](const PlannedFlip& flip) {
    return to_double(flip.dtype, load_little_endian<uint64_t>(flip.after));
  };
  const std::vector<int> burst =
      set_bits(first({.kind = Fault::Kind::kBurst, .length = 5}).mask());
  ASSERT_EQ(burst.size(), 5u);
  EXPECT_EQ(burst.back() - burst.front(), 4);
  const std::vector<int> mask =
      set_bits(first({.kind = Fault::Kind::kMask, .pattern = "1011"}).mask());
  ASSERT_EQ(mask.size(), 3u);
  EXPECT_EQ(mask[1] - mask[0], 1);
  EXPECT_EQ(mask[2] - mask[0], 3);
  EXPECT_EQ(number(first({.kind = Fault::Kind::kScale, .number = 100})), 150);
  EXPECT_EQ(number(first({.kind = Fault::Kind::kValue, .number = -0.25})), -0.25);
  for (int trial = 0; trial < 20; ++trial) {
    const auto plan = make_plan(
        ones,
        {.fault = {.kind = Fault::Kind::kStuckAt, .level = true}, .trial = trial});
    const std::vector<int> changed = set_bits(plan.value().flips.at(0).mask());
    for (const int bit : changed) EXPECT_TRUE(has_bit(plan->flips[0].after, bit));
  }
  EXPECT_ERROR(
      make_plan(ones, {.fault = {.kind = Fault::Kind::kMask, .pattern = "12"}}),
      ErrorCode::kInvalid);
  const Contents integers = zeros({tensor("n", Dtype::kI8, {2})});
  EXPECT_ERROR(
      make_plan(integers, {.fault = {.kind = Fault::Kind::kValue, .number = 200}}),
      ErrorCode::kInvalid);
}

TEST(FlipPlanTest, APlanOfOtherContentsIsRefused) {
  const Contents contents = net();
  const auto plan = make_plan(contents, {.count = 2, .seed = 9});
  ASSERT_OK(plan);
  EXPECT_OK(check_plan(contents, *plan));
  EXPECT_ERROR(check_plan(contents, inverse(*plan)), ErrorCode::kConflict);
  EXPECT_ERROR(check_plan(zeros({tensor("w", Dtype::kF32, {4})}), *plan),
               ErrorCode::kNotFound);
  EXPECT_ERROR(check_plan(zeros({tensor("conv1.weight", Dtype::kF16, {2, 3}),
                                 tensor("conv10.weight", Dtype::kF16, {4}),
                                 tensor("bn.running_var", Dtype::kF16, {2})}),
                          *plan),
               ErrorCode::kConflict);
}

TEST(FlipPlanTest, APlanThatContradictsItselfIsRefused) {
  const Contents contents = net();
  const FlipPlan plan = make_plan(contents, {.count = 2, .seed = 9}).value();
  FlipPlan twice = plan;
  twice.flips.push_back(plan.flips[0]);
  EXPECT_ERROR(check_plan(contents, twice), ErrorCode::kInvalid);
  FlipPlan moved = plan;
  moved.flips[0].index[0] += 1;
  EXPECT_ERROR(check_plan(contents, moved), ErrorCode::kInvalid);
  FlipPlan both = plan;
  both.bytes.push_back({.file = "a"});
  EXPECT_ERROR(decode_flip_plan(encode_flip_plan(both), "plan"), ErrorCode::kInvalid);
}

TEST(LegacySequenceTest, BitsCountFromTheSignAndMissingIndexesAreDrawn) {
  const Contents contents = net();
  const auto plan = plan_from_sequence(
      contents, R"({"/conv1": [[[1, 2], [0, 1]], null], "/bn": [[[], [63]]],
                    "/conv10/weight": [[31]]})",
      "sequence.json", {.seed = 4});
  ASSERT_OK(plan);
  ASSERT_EQ(plan->flips.size(), 3u);
  for (const PlannedFlip& flip : plan->flips) {
    const std::string bits = bits_in_words(flip.mask());
    if (flip.tensor == "conv1.weight") {
      EXPECT_EQ(flip.element, 5);
      EXPECT_EQ(bits, "bits 30, 31");
    } else {
      EXPECT_EQ(bits, "bit 0") << flip.tensor;
    }
  }
  const auto bad = [&](const char* text) {
    return plan_from_sequence(contents, text, "sequence.json", {});
  };
  EXPECT_ERROR(bad(R"({"/conv2": [[[0], [1]]]})"), ErrorCode::kNotFound);
  EXPECT_ERROR(bad(R"({"/conv1": [[[0, 0], [32]]]})"), ErrorCode::kInvalid);
  EXPECT_ERROR(bad(R"({"/conv1": [[[0, 3], [1]]]})"), ErrorCode::kInvalid);
  EXPECT_ERROR(bad(R"({"/conv1": 3})"), ErrorCode::kInvalid);
  EXPECT_ERROR(bad("[]"), ErrorCode::kInvalid);
}

TEST(BytePlanTest, AnyBitOfAllFilesIsASite) {
  MemoryEnv env;
  ASSERT_OK(env.write_file("a", bytes_of("abc")));
  ASSERT_OK(env.write_file("empty", bytes_of("")));
  ASSERT_OK(env.write_file("b", bytes_of("de")));
  const std::vector<NamedFile> files{{"a", "a"}, {"empty", "empty"}, {"b", "b"}};
  const auto plan = make_byte_plan(env, files, 40, 1, 0);
  ASSERT_OK(plan);
  ASSERT_EQ(plan->bytes.size(), 5u);
  for (const PlannedByte& byte : plan->bytes) {
    EXPECT_EQ(byte.before ^ byte.after, std::byte{0xff});
  }
  const auto again = decode_flip_plan(encode_flip_plan(*plan), "plan");
  ASSERT_OK(again);
  EXPECT_TRUE(*again == *plan);
  EXPECT_ERROR(make_byte_plan(env, files, 41, 1, 0), ErrorCode::kInvalid);
}

// As earlier code has written it.
TEST(FlipPlanTest, APlanOfEarlierCodeIsWrittenAgainByteByByte) {
  const std::string text = R"({
  "version": 1,
  "holdfast": "flip plan",
  "seed": 4,
  "trial": 0,
  "fault": "flip",
  "sites": 6176,
  "passed_over": 0,
  "flips": [
    {
      "tensor": "optimizer.0.weight.exp_avg",
      "index": [
        4,
        2
      ],
      "element": 26,
      "dtype": "F32",
      "mask": "40000000",
      "before": "399c245a",
      "after": "799c245a"
    },
    {
      "tensor": "optimizer.0.weight.exp_avg_sq",
      "index": [
        6,
        0
      ],
      "element": 36,
      "dtype": "F32",
      "mask": "00040000",
      "before": "30c1aa56",
      "after": "30c5aa56"
    }
  ],
  "bytes": []
})";
  EXPECT_EQ(encode_flip_plan(decode_flip_plan(text, "older").value()), text);
}

}  // namespace
}  // namespace holdfast
