#include "holdfast/state/mixture.h"

#include <algorithm>
#include <optional>
#include <set>

#include "holdfast/base/checked.h"
#include "holdfast/base/xxh3.h"
#include "holdfast/state/mix64.h"

namespace holdfast {
namespace {

constexpr int64_t kMostWeights = 1'000'000;

Result<void> check_source(const MixtureSource& source) {
  if (source.samples < 1) {
    return invalid("mixture: \"{}\" has {} samples; expected at least 1", source.name,
                   source.samples);
  }
  if (source.weight < 0 || source.weight > kMostWeights) {
    return invalid("mixture: \"{}\" has the weight {}; expected 0 to {}", source.name,
                   source.weight, kMostWeights);
  }
  if (source.base < 0) {
    return invalid("mixture: \"{}\" has given {} samples; expected 0 or more", source.name,
                   source.base);
  }
  return {};
}

Result<void> check(const MixtureOptions& options) {
  std::set<std::string> names;
  int64_t weights = 0, samples = 0;
  for (const MixtureSource& source : options.sources) {
    HOLDFAST_TRY(check_source(source));
    if (!names.insert(source.name).second) {
      return invalid("mixture: two sources \"{}\"; expected a name for each", source.name);
    }
    weights += source.weight;
    const auto sum = checked_add(samples, source.samples);
    if (!sum || weights > kMostWeights) {
      return invalid("mixture: weights of {} in all; expected at most {}, and fewer than "
                     "2^63 samples",
                     weights, kMostWeights);
    }
    samples = *sum;
  }
  if (weights == 0) {
    return invalid("mixture: no source has a weight; expected at least one above 0");
  }
  if (options.batch < 1 || options.first < 0) {
    return invalid("mixture: batches of {}, from position {}; expected at least 1, and 0",
                   options.batch, options.first);
  }
  return {};
}

// The place k of a source's own endless sequence, as a sample. Keeps the shuffle of the
// newest epoch.
class SourceOrder {
 public:
  SourceOrder(const MixtureSource& source, uint64_t seed, bool shuffle)
      : samples_(source.samples), seed_(seed), is_shuffled_(shuffle) {}

  int64_t operator()(int64_t k) {
    if (!is_shuffled_) return k % samples_;
    const int64_t epoch = k / samples_;
    if (!shuffle_ || epoch != epoch_) shuffle_.emplace(samples_, seed_, epoch);
    epoch_ = epoch;
    return (*shuffle_)(k % samples_);
  }

 private:
  int64_t samples_;
  uint64_t seed_;
  bool is_shuffled_;
  int64_t epoch_ = -1;
  std::optional<Shuffle> shuffle_{};
};

}  // namespace

Result<Mixture> Mixture::create(MixtureOptions options) {
  HOLDFAST_TRY(check(options));
  return Mixture(std::move(options));
}

Mixture::Mixture(MixtureOptions options) : options_(std::move(options)), offsets_{0} {
  std::vector<uint32_t> unshuffled;
  for (const MixtureSource& source : options_.sources) {
    const auto number = static_cast<uint32_t>(seeds_.size());
    unshuffled.insert(unshuffled.end(), static_cast<size_t>(source.weight), number);
    offsets_.push_back(offsets_.back() + source.samples);
    const Digest128 name = xxh3_128(bytes_of(source.name));
    seeds_.push_back(mix64(mix64(options_.seed) ^ name.low));
  }
  // The epoch -1 is none of a source's, so the pattern is no order of a source.
  const Shuffle shuffle(std::ssize(unshuffled), options_.seed, -1);
  std::vector<int64_t> seen(seeds_.size());
  for (int64_t place = 0; place < std::ssize(unshuffled); ++place) {
    const uint32_t source = unshuffled[static_cast<size_t>(shuffle(place))];
    pattern_.push_back(source);
    before_.push_back(seen[source]++);
  }
}

int64_t Mixture::place_of(int64_t position, size_t source) const {
  const int64_t from = position - options_.first;
  const int64_t width = std::ssize(pattern_);
  const MixtureSource& one = options_.sources[source];
  return one.base + from / width * one.weight + before_[static_cast<size_t>(from % width)];
}

int64_t Mixture::index_at(int64_t position) const {
  return indices({position, position + 1}).front();
}

std::vector<int64_t> Mixture::indices(Positions positions) const {
  std::vector<SourceOrder> orders;
  for (size_t s = 0; s < seeds_.size(); ++s) {
    orders.emplace_back(options_.sources[s], seeds_[s], options_.shuffle);
  }
  std::vector<int64_t> found;
  found.reserve(static_cast<size_t>(std::max<int64_t>(positions.size(), 0)));
  for (int64_t g = positions.first; g < positions.last; ++g) {
    const int64_t from = g - options_.first;
    const size_t s = pattern_[static_cast<size_t>(from % std::ssize(pattern_))];
    found.push_back(offsets_[s] + orders[s](place_of(g, s)));
  }
  return found;
}

std::vector<int64_t> Mixture::given(int64_t cursor) const {
  const int64_t from = cursor - options_.first;
  const int64_t width = std::ssize(pattern_);
  std::vector<int64_t> counts;
  for (const MixtureSource& source : options_.sources) {
    counts.push_back(source.base + from / width * source.weight);
  }
  for (int64_t place = 0; place < from % width; ++place) {
    ++counts[pattern_[static_cast<size_t>(place)]];
  }
  return counts;
}

Result<Positions> Mixture::batch_at(int64_t cursor) const {
  const auto last = checked_add(cursor, options_.batch);
  if (last) return Positions{cursor, *last};
  return invalid("mixture: no batch of {} after position {}; expected positions below 2^63",
                 options_.batch, cursor);
}

Result<Mixture> Mixture::with_weights(int64_t cursor,
                                      const std::vector<int64_t>& weights) const {
  HOLDFAST_CHECK(weights.size() == seeds_.size(), "{} weights", weights.size());
  MixtureOptions changed = options_;
  const std::vector<int64_t> bases = given(cursor);
  for (size_t s = 0; s < weights.size(); ++s) {
    changed.sources[s].weight = weights[s];
    changed.sources[s].base = bases[s];
  }
  changed.first = cursor;
  return create(std::move(changed));
}

}  // namespace holdfast
