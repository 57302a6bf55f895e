#include "holdfast/state/sample_sequence.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <numeric>

#include "holdfast/base/testing.h"

namespace holdfast {
namespace {

using Indices = std::vector<int64_t>;

SampleSequence sequence(SampleOptions options) {
  return SampleSequence::create(options).value();
}

Indices order_of(int64_t samples, uint64_t seed, int64_t epoch) {
  const Shuffle shuffle(samples, seed, epoch);
  Indices order;
  for (int64_t place = 0; place < samples; ++place) order.push_back(shuffle(place));
  return order;
}

// Expects that the counts are equal, within five standard deviations of a random
// process. Seeds are fixed, so the result is the same on every run.
void expect_even(const std::vector<int64_t>& counts, double freedom) {
  const auto total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const double want = static_cast<double>(total) / static_cast<double>(counts.size());
  double chi_square = 0;
  for (const int64_t count : counts) {
    chi_square += std::pow(static_cast<double>(count) - want, 2) / want;
  }
  EXPECT_NEAR(chi_square, freedom, 5 * std::sqrt(2 * freedom));
}

// Expects a count that a random order has once in a shuffle on average (a Poisson
// distribution with mean 1).
void expect_one_in_each(const std::function<int64_t(int64_t)>& count) {
  constexpr int64_t kTrials = 4000;
  int64_t total = 0;
  for (int64_t i = 0; i < kTrials; ++i) total += count(i);
  EXPECT_NEAR(static_cast<double>(total), kTrials, 5 * std::sqrt(kTrials));
}

int64_t in_common(const Indices& a, const Indices& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), int64_t{0}, std::plus<>(),
                            std::equal_to<>());
}

TEST(ShuffleTest, IsTheSameOnEveryMachine) {
  EXPECT_EQ(order_of(10, 0, 0), (Indices{6, 9, 5, 0, 7, 8, 2, 1, 4, 3}));
  EXPECT_EQ(order_of(10, 0, 1), (Indices{8, 3, 2, 5, 4, 9, 6, 7, 0, 1}));
  EXPECT_EQ(order_of(10, 1, 0), (Indices{4, 7, 1, 6, 0, 5, 3, 2, 9, 8}));
  const int64_t large = (int64_t{1} << 62) + 12345;
  EXPECT_EQ(Shuffle(large, 0x123456789abcdef0u, 7)(0), 63192197770878115);
  EXPECT_EQ(Shuffle(large, 0x123456789abcdef0u, 7)(large - 1), 1740197239778601570);
  EXPECT_EQ(Shuffle(INT64_MAX, UINT64_MAX, INT64_MAX)(1), 6757746061295441894);
}

TEST(ShuffleTest, HasEverySampleOnce) {
  for (int64_t samples = 1; samples < 300; ++samples) {
    Indices order = order_of(samples, 5, samples % 3), want(order.size());
    std::sort(order.begin(), order.end());
    std::iota(want.begin(), want.end(), 0);
    ASSERT_EQ(order, want) << samples;
  }
}

TEST(ShuffleTest, HasEveryOrderOfFewSamplesEquallyOften) {
  for (int64_t samples = 2, orders = 2; samples <= 5; orders *= ++samples) {
    std::map<Indices, int64_t> seen;
    for (int64_t epoch = 0; epoch < 200 * orders; ++epoch) {
      ++seen[order_of(samples, 17, epoch)];
    }
    std::vector<int64_t> counts;
    for (const auto& [order, count] : seen) counts.push_back(count);
    ASSERT_EQ(static_cast<int64_t>(counts.size()), orders);
    expect_even(counts, static_cast<double>(orders - 1));
  }
}

TEST(ShuffleTest, HasEverySampleAtEveryPlaceEquallyOften) {
  for (const int64_t samples : {7, 16, 33}) {
    std::vector<int64_t> counts(static_cast<size_t>(samples * samples));
    for (int64_t epoch = 0; epoch < 3000; ++epoch) {
      const Indices order = order_of(samples, 3, epoch);
      for (int64_t place = 0; place < samples; ++place) {
        ++counts[static_cast<size_t>(place * samples +
                                     order[static_cast<size_t>(place)])];
      }
    }
    expect_even(counts, std::pow(static_cast<double>(samples - 1), 2));
  }
}

TEST(ShuffleTest, SpreadsTheFirstPlacesOfALargeSet) {
  const int64_t samples = 1'000'000'007, boxes = 256;
  const Shuffle shuffle(samples, 11, 0);
  std::vector<int64_t> counts(boxes), pairs(boxes);
  int64_t before = 0;
  for (int64_t place = 0; place < 100 * boxes; ++place) {
    const int64_t box = shuffle(place) / (samples / boxes + 1);
    ++counts[static_cast<size_t>(box)];
    ++pairs[static_cast<size_t>(before % 16 * 16 + box % 16)];
    before = box;
  }
  expect_even(counts, boxes - 1);
  expect_even(pairs, boxes - 1);
}

TEST(ShuffleTest, KeepsNeitherPlacesNorNeighboursMoreOftenThanChance) {
  Indices unmoved(50);
  std::iota(unmoved.begin(), unmoved.end(), 0);
  expect_one_in_each([&](int64_t i) { return in_common(order_of(50, 1, i), unmoved); });
  expect_one_in_each([&](int64_t i) {
    const Indices order = order_of(50, 1, i);
    int64_t kept = 0;
    for (size_t k = 1; k < order.size(); ++k) kept += order[k] == order[k - 1] + 1;
    return kept;
  });
}

TEST(ShuffleTest, OfNeighbouringEpochsAndSeedsAgreesNoMoreOftenThanChance) {
  expect_one_in_each(
      [](int64_t i) { return in_common(order_of(50, 1, i), order_of(50, 1, i + 1)); });
  expect_one_in_each([](int64_t i) {
    return in_common(order_of(50, static_cast<uint64_t>(i), 0),
                     order_of(50, static_cast<uint64_t>(i) + 1, 0));
  });
}

TEST(SampleSequenceTest, GoesThroughEpochAfterEpoch) {
  const SampleSequence s = sequence({.samples = 10, .seed = 4, .batch = 4});
  Indices want;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    for (const int64_t index : order_of(10, 4, epoch)) want.push_back(index);
  }
  EXPECT_EQ(s.indices({0, 30}), want);
  EXPECT_EQ(s.indices({7, 7}), Indices());
  for (int64_t g = 0; g < 30; ++g) {
    EXPECT_EQ(s.index_at(g), want[static_cast<size_t>(g)]);
    EXPECT_EQ(s.indices({g, 30}), Indices(want.begin() + g, want.end()));
  }
}

TEST(SampleSequenceTest, WithoutShuffleIsTheDatasetsOwnOrder) {
  const SampleSequence s = sequence({.samples = 3, .shuffle = false});
  EXPECT_EQ(s.indices({1, 8}), (Indices{1, 2, 0, 1, 2, 0, 1}));
  EXPECT_EQ(s.index_at(5), 2);
}

TEST(SampleSequenceTest, EndsAnEpochAsAsked) {
  const auto batches = [](EpochEnd end) {
    const SampleSequence s = sequence({.samples = 10, .batch = 4, .end = end});
    std::vector<std::pair<int64_t, int64_t>> made;
    for (int64_t cursor = 0; made.size() < 5; cursor = made.back().second) {
      const Positions batch = s.batch_at(cursor).value();
      made.emplace_back(batch.first, batch.last);
    }
    return made;
  };
  using Made = std::vector<std::pair<int64_t, int64_t>>;
  EXPECT_EQ(batches(EpochEnd::kShort),
            (Made{{0, 4}, {4, 8}, {8, 10}, {10, 14}, {14, 18}}));
  EXPECT_EQ(batches(EpochEnd::kDrop),
            (Made{{0, 4}, {4, 8}, {10, 14}, {14, 18}, {20, 24}}));
  EXPECT_EQ(batches(EpochEnd::kJoin),
            (Made{{0, 4}, {4, 8}, {8, 12}, {12, 16}, {16, 20}}));
}

TEST(SampleSequenceTest, KnowsHowManyBatchesAnEpochHas) {
  SampleOptions options{.samples = 10, .batch = 4};
  EXPECT_EQ(sequence(options).batches_per_epoch(), 3);
  options.end = EpochEnd::kDrop;
  EXPECT_EQ(sequence(options).batches_per_epoch(), 2);
}

TEST(SampleSequenceTest, SharesPutTogetherAreTheBatchForAnyNumberOfRanks) {
  for (int64_t size = 0; size < 12; ++size) {
    for (int64_t ranks = 1; ranks < 15; ++ranks) {
      int64_t at = 100;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const Positions share = share_of({100, 100 + size}, rank, ranks);
        EXPECT_EQ(share.first, at);
        EXPECT_LE(std::abs(share.size() * ranks - size), ranks - 1);
        at = share.last;
      }
      EXPECT_EQ(at, 100 + size);
    }
  }
  const int64_t most = INT64_MAX;  // the product does not wrap
  EXPECT_EQ(share_of({0, most}, 2, 3), (Positions{most / 3 * 2, most}));
}

TEST(SampleSequenceTest, RefusesWhatCannotBeRead) {
  EXPECT_ERROR(SampleSequence::create({.samples = 0}), ErrorCode::kInvalid);
  EXPECT_ERROR(SampleSequence::create({.samples = 1, .batch = 0}), ErrorCode::kInvalid);
  EXPECT_ERROR(
      SampleSequence::create({.samples = 3, .batch = 4, .end = EpochEnd::kDrop}),
      ErrorCode::kInvalid);
  const SampleSequence s =
      sequence({.samples = 10, .batch = 4, .end = EpochEnd::kJoin});
  EXPECT_ERROR(s.batch_at(INT64_MAX - 3), ErrorCode::kInvalid);
  EXPECT_EQ(s.batch_at(INT64_MAX - 4).value().last, INT64_MAX);
}

}  // namespace
}  // namespace holdfast
