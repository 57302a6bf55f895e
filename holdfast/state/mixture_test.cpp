#include "holdfast/state/mixture.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>

#include "holdfast/base/testing.h"

namespace holdfast {
namespace {

using Indices = std::vector<int64_t>;

Mixture mixture(MixtureOptions options) { return Mixture::create(std::move(options)).value(); }

// Two sources of 10 and 7 samples, with weights 3 and 2.
Mixture two(uint64_t seed = 4) {
  return mixture({.sources = {{.name = "a", .samples = 10, .weight = 3},
                              {.name = "b", .samples = 7, .weight = 2}},
                  .seed = seed});
}

TEST(MixtureTest, IsTheSameOnEveryMachine) {
  // Vectors that an independent script in Python has computed.
  EXPECT_EQ(two().indices({0, 20}), (Indices{11, 1, 10, 5, 9, 16, 7, 15, 3, 0, 14, 4, 12, 2, 8, 13, 6, 15, 4, 7}));
}

TEST(MixtureTest, AnyPositionsHaveTheSharesOfTheWeights) {
  const Mixture m = two();
  for (int64_t g = 0; g < 200; ++g) {
    const Indices indices = m.indices({g, g + 5});
    EXPECT_EQ(std::ranges::count_if(indices, [](int64_t i) { return i < 10; }), 3) << g;
  }
}

TEST(MixtureTest, EachSourceHasEpochsOfItsOwn) {
  const Indices all = two().indices({0, 700});
  std::map<bool, Indices> by_source;
  for (const int64_t index : all) by_source[index >= 10].push_back(index);
  const auto expect_epochs = [](const Indices& given, int64_t first, int64_t samples) {
    Indices before;
    for (size_t at = 0; at + static_cast<size_t>(samples) <= given.size();
         at += static_cast<size_t>(samples)) {
      Indices epoch(given.begin() + static_cast<std::ptrdiff_t>(at),
                    given.begin() + static_cast<std::ptrdiff_t>(at) + samples);
      EXPECT_NE(epoch, before);
      before = epoch;
      std::ranges::sort(epoch);
      for (int64_t i = 0; i < samples; ++i) {
        ASSERT_EQ(epoch[static_cast<size_t>(i)], first + i) << at;
      }
    }
  };
  expect_epochs(by_source[false], 0, 10);
  expect_epochs(by_source[true], 10, 7);
}

TEST(MixtureTest, ASourceKeepsItsOrderWhenOthersChange) {
  const auto of_a = [](const Mixture& m) {
    Indices found;
    for (const int64_t index : m.indices({0, 500})) {
      if (index < 10 && found.size() < 50) found.push_back(index);
    }
    return found;
  };
  const Mixture other = mixture({.sources = {{.name = "a", .samples = 10, .weight = 1},
                                             {.name = "c", .samples = 900, .weight = 4}},
                                 .seed = 4});
  EXPECT_EQ(of_a(two()), of_a(other));
  EXPECT_NE(of_a(two()), of_a(two(5)));
}

TEST(MixtureTest, WithoutShuffleSourcesHaveTheirOwnOrder) {
  MixtureOptions options = two().options();
  options.shuffle = false;
  Indices a;
  for (const int64_t index : mixture(options).indices({0, 20})) {
    if (index < 10) a.push_back(index);
  }
  EXPECT_EQ(a, (Indices{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1}));
}

// Any weights that change at any cursors: each source gives what it would give alone.
RC_GTEST_PROP(MixtureProperty, NewWeightsSkipAndRepeatNothing, ()) {
  const auto sources = *rc::gen::inRange<int64_t>(1, 5);
  MixtureOptions options{.seed = *rc::gen::arbitrary<uint64_t>()};
  const auto weights = [&] {
    Indices some;
    for (int64_t s = 0; s < sources; ++s) some.push_back(*rc::gen::inRange<int64_t>(0, 6));
    if (std::ranges::count(some, 0) == sources) some[0] = 1;
    return some;
  };
  const Indices begun = weights();
  Indices offsets{0};
  for (int64_t s = 0; s < sources; ++s) {
    const auto samples = *rc::gen::inRange<int64_t>(1, 20);
    options.sources.push_back({.name = std::to_string(s),
                               .samples = samples,
                               .weight = begun[static_cast<size_t>(s)]});
    offsets.push_back(offsets.back() + samples);
  }
  Mixture now = mixture(options);
  std::map<size_t, Indices> given;
  int64_t cursor = 0;
  for (int segment = 0; segment < 6; ++segment) {
    const int64_t last = cursor + *rc::gen::inRange<int64_t>(0, 60);
    for (const int64_t index : now.indices({cursor, last})) {
      const auto after = std::ranges::upper_bound(offsets, index);
      given[static_cast<size_t>(after - offsets.begin()) - 1].push_back(index);
    }
    cursor = last;
    const Indices counts = now.given(cursor);
    for (size_t s = 0; s < static_cast<size_t>(sources); ++s) {
      RC_ASSERT(counts[s] == std::ssize(given[s]));
    }
    now = now.with_weights(cursor, weights()).value();
  }
  for (const auto& [s, indices] : given) {
    const int64_t samples = options.sources[s].samples;
    for (size_t at = 0; at < indices.size(); at += static_cast<size_t>(samples)) {
      Indices epoch(indices.begin() + static_cast<std::ptrdiff_t>(at),
                    indices.begin() + static_cast<std::ptrdiff_t>(
                                          std::min(indices.size(),
                                                   at + static_cast<size_t>(samples))));
      std::ranges::sort(epoch);
      RC_ASSERT(std::ranges::adjacent_find(epoch) == epoch.end());
    }
  }
}

TEST(MixtureTest, RefusesWhatMakesNoSense) {
  const auto refused = [](std::vector<MixtureSource> sources, int64_t batch = 1) {
    return Mixture::create({.sources = std::move(sources), .batch = batch});
  };
  EXPECT_ERROR(refused({}), ErrorCode::kInvalid);
  EXPECT_ERROR(refused({{"a", 0}}), ErrorCode::kInvalid);
  EXPECT_ERROR(refused({{"a", 1, 0}}), ErrorCode::kInvalid);
  EXPECT_ERROR(refused({{"a", 1, -1}}), ErrorCode::kInvalid);
  EXPECT_ERROR(refused({{"a", 1}, {"a", 2}}), ErrorCode::kInvalid);
  EXPECT_ERROR(refused({{"a", 1, 1, -1}}), ErrorCode::kInvalid);
  EXPECT_ERROR(refused({{"a", 1, 600000}, {"b", 1, 600000}}), ErrorCode::kInvalid);
  EXPECT_ERROR(refused({{"a", INT64_MAX}, {"b", 1}}), ErrorCode::kInvalid);
  EXPECT_ERROR(refused({{"a", 1}}, 0), ErrorCode::kInvalid);
  EXPECT_ERROR(two().batch_at(INT64_MAX), ErrorCode::kInvalid);
}

}  // namespace
}  // namespace holdfast
