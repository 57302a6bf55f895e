// Random lives of trainings: ranks, batches and weights change, and the training goes back
// to older checkpoints, through several epochs. With HOLDFAST_LONG=1 there are 100,000.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <span>

#include "holdfast/base/testing.h"
#include "holdfast/state/mixture.h"

namespace holdfast {
namespace {

using Samples = std::vector<int64_t>;

class Life {
 public:
  explicit Life(uint64_t seed) : dice_(seed) {}

  int64_t upto(int64_t most) { return std::uniform_int_distribution<int64_t>(1, most)(dice_); }
  bool one_of(int64_t many) { return upto(many) == 1; }

  // Reads the batch at the cursor as so many ranks, each its share, and appends it. Returns
  // the new cursor.
  template <typename Order>
  int64_t step(const Order& order, int64_t cursor, int64_t ranks, Samples& seen) {
    const Positions batch = order.batch_at(cursor).value();
    int64_t least = INT64_MAX, most = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const Positions share = share_of(batch, rank, ranks);
      least = std::min(least, share.size());
      most = std::max(most, share.size());
      const Samples some = order.indices(share);
      seen.insert(seen.end(), some.begin(), some.end());
    }
    EXPECT_LE(most - least, 1);
    return batch.last;
  }

 private:
  std::mt19937_64 dice_;
};

// Fails unless these are epochs of the samples [first, last), the last one perhaps not whole.
void expect_epochs(const Samples& seen, int64_t first, int64_t last) {
  Samples own;
  std::ranges::copy_if(seen, std::back_inserter(own),
                       [&](int64_t one) { return one >= first && one < last; });
  const auto size = static_cast<size_t>(last - first);
  for (size_t at = 0; at < own.size(); at += size) {
    const auto begin = own.begin() + static_cast<std::ptrdiff_t>(at);
    Samples epoch(begin, begin + static_cast<std::ptrdiff_t>(std::min(size, own.size() - at)));
    std::ranges::sort(epoch);
    ASSERT_EQ(std::ranges::adjacent_find(epoch), epoch.end()) << at;
  }
}

void live_with_one_dataset(uint64_t seed) {
  Life life(seed);
  const EpochEnd end = life.one_of(2) ? EpochEnd::kShort : EpochEnd::kJoin;
  const int64_t samples = life.upto(40);
  std::vector<std::pair<int64_t, Samples>> kept{{0, {}}};
  for (int phase = 0; phase < 8; ++phase) {
    auto [cursor, seen] = life.one_of(3) ? kept[static_cast<size_t>(life.upto(std::ssize(kept))) - 1]
                                         : kept.back();
    const int64_t batch = std::min(life.upto(20), samples);
    const auto order = SampleSequence::create(
        {.samples = samples, .seed = seed, .batch = batch, .end = end}).value();
    const int64_t ranks = life.upto(std::min<int64_t>(9, batch));
    for (int64_t steps = life.upto(12); steps > 0; --steps) {
      cursor = life.step(order, cursor, ranks, seen);
      ASSERT_EQ(cursor, std::ssize(seen));
      if (steps == 1 || life.one_of(4)) kept.emplace_back(cursor, seen);
    }
    // The shares together are what one rank reads at once.
    ASSERT_EQ(seen, order.indices({0, cursor}));
    expect_epochs(seen, 0, samples);
  }
}

Samples some_weights(Life& life, size_t sources) {
  Samples weights(sources);
  for (int64_t& weight : weights) weight = life.upto(5) - 1;
  weights[static_cast<size_t>(life.upto(std::ssize(weights))) - 1] += 1;
  return weights;
}

// In every so many samples in a row, each source has its weight.
void expect_shares(const Mixture& order, std::span<const int64_t> seen) {
  int64_t whole = 0, first = 0;
  for (const MixtureSource& source : order.options().sources) whole += source.weight;
  for (const MixtureSource& source : order.options().sources) {
    const auto is_own = [&](int64_t one) {
      return one >= first && one < first + source.samples;
    };
    for (int64_t at = 0; at + whole <= std::ssize(seen); ++at) {
      const auto row = seen.subspan(static_cast<size_t>(at), static_cast<size_t>(whole));
      ASSERT_EQ(std::ranges::count_if(row, is_own), source.weight) << at;
    }
    first += source.samples;
  }
}

void live_with_a_mixture(uint64_t seed) {
  Life life(seed);
  MixtureOptions options{.seed = seed};
  for (int64_t source = 0; source < 1 + static_cast<int64_t>(seed % 4); ++source) {
    options.sources.push_back({.name = std::to_string(source), .samples = life.upto(12)});
  }
  struct Saved {
    int64_t cursor;
    Mixture order;
    Samples seen;
  };
  std::vector<Saved> kept{{0, Mixture::create(options).value(), {}}};
  for (int phase = 0; phase < 8; ++phase) {
    Saved now = life.one_of(3) ? kept[static_cast<size_t>(life.upto(std::ssize(kept))) - 1]
                               : kept.back();
    if (life.one_of(2)) {
      const Samples weights = some_weights(life, options.sources.size());
      now.order = now.order.with_weights(now.cursor, weights).value();
    }
    MixtureOptions changed = now.order.options();
    changed.batch = life.upto(20);
    now.order = Mixture::create(changed).value();
    const int64_t ranks = life.upto(std::min<int64_t>(9, changed.batch));
    const size_t begun = now.seen.size();
    for (int64_t steps = life.upto(12); steps > 0; --steps) {
      now.cursor = life.step(now.order, now.cursor, ranks, now.seen);
      ASSERT_EQ(now.cursor, std::ssize(now.seen));
      if (steps == 1 || life.one_of(4)) kept.push_back(now);
    }
    expect_shares(now.order, std::span(now.seen).subspan(begun));
    int64_t first = 0;
    for (const MixtureSource& source : options.sources) {
      expect_epochs(now.seen, first, first + source.samples);
      first += source.samples;
    }
  }
}

TEST(SchedulesTest, EverySampleIsReadOncePerEpochWhateverHappens) {
  const uint64_t schedules = std::getenv("HOLDFAST_LONG") != nullptr ? 100'000 : 200;
  for (uint64_t seed = 1; seed <= schedules; ++seed) {
    SCOPED_TRACE(seed);
    live_with_one_dataset(seed);
    live_with_a_mixture(seed);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace holdfast
