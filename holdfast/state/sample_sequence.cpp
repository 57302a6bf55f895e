#include "holdfast/state/sample_sequence.h"

#include <algorithm>
#include <bit>

#include "holdfast/base/checked.h"
#include "holdfast/base/int128.h"
#include "holdfast/state/mix64.h"

namespace holdfast {
namespace {

constexpr int kLeastBits = 6;

// The top bits of a mixed value, because mix64 mixes them best.
uint64_t top(uint64_t value, int bits) { return value >> (64 - bits); }

uint64_t low(uint64_t value, int bits) { return value & ((uint64_t{1} << bits) - 1); }

}  // namespace

Shuffle::Shuffle(int64_t samples, uint64_t seed, int64_t epoch)
    : samples_(static_cast<uint64_t>(samples)) {
  const int bits = std::max(kLeastBits, static_cast<int>(std::bit_width(samples_ - 1)));
  left_bits_ = bits / 2;
  right_bits_ = bits - left_bits_;
  const uint64_t base = mix64(mix64(seed) ^ static_cast<uint64_t>(epoch));
  for (int i = 0; i < kRounds; ++i) keys_[i] = mix64(base + static_cast<uint64_t>(i));
}

uint64_t Shuffle::mixed(uint64_t value) const {
  uint64_t left = value >> right_bits_, right = low(value, right_bits_);
  for (int i = 0; i < kRounds; i += 2) {
    left ^= top(mix64(keys_[i] ^ right), left_bits_);
    right ^= top(mix64(keys_[i + 1] ^ left), right_bits_);
  }
  return left << right_bits_ | right;
}

int64_t Shuffle::operator()(int64_t place) const {
  // The network permutes more values than there are samples. Following its cycle until
  // the value is in range again is a permutation of the samples. From 33 samples on, it
  // permutes fewer than twice as many values, so this takes less than two steps on
  // average.
  auto value = static_cast<uint64_t>(place);
  do {
    value = mixed(value);
  } while (value >= samples_);
  return static_cast<int64_t>(value);
}

Result<SampleSequence> SampleSequence::create(const SampleOptions& options) {
  if (options.samples < 1) {
    return invalid("sample sequence: {} samples; expected at least 1", options.samples);
  }
  if (options.batch < 1) {
    return invalid("sample sequence: batches of {}; expected at least 1",
                   options.batch);
  }
  if (options.end == EpochEnd::kDrop && options.batch > options.samples) {
    return invalid(
        "sample sequence: a batch of {} is larger than the {} samples; expected a "
        "smaller batch, or that the last batch is not dropped",
        options.batch, options.samples);
  }
  return SampleSequence(options);
}

int64_t SampleSequence::batches_per_epoch() const {
  return options_.end == EpochEnd::kDrop ? options_.samples / options_.batch
                                         : divide_up(options_.samples, options_.batch);
}

int64_t SampleSequence::index_at(int64_t position) const {
  const int64_t place = position % options_.samples;
  if (!options_.shuffle) return place;
  return Shuffle(options_.samples, options_.seed, epoch_of(position))(place);
}

std::vector<int64_t> SampleSequence::indices(Positions positions) const {
  std::vector<int64_t> found;
  found.reserve(static_cast<size_t>(std::max<int64_t>(positions.size(), 0)));
  int64_t at = positions.first;
  while (at < positions.last) {
    const int64_t epoch = epoch_of(at);
    const Shuffle shuffle(options_.samples, options_.seed, epoch);
    int64_t place = at % options_.samples;
    const int64_t stop =
        place + std::min(options_.samples - place, positions.last - at);
    at += stop - place;
    for (; place < stop; ++place) {
      found.push_back(options_.shuffle ? shuffle(place) : place);
    }
  }
  return found;
}

Result<Positions> SampleSequence::batch_at(int64_t cursor) const {
  const int64_t left = options_.samples - cursor % options_.samples;
  int64_t skipped = 0, size = options_.batch;
  if (size > left && options_.end == EpochEnd::kDrop) skipped = left;
  if (size > left && options_.end == EpochEnd::kShort) size = left;
  const auto first = checked_add(cursor, skipped);
  const auto last = first.has_value() ? checked_add(*first, size) : std::nullopt;
  if (!last.has_value()) {
    return invalid(
        "sample sequence: no batch of {} after position {}; expected positions "
        "below 2^63",
        size, cursor);
  }
  return Positions{*first, *last};
}

Positions share_of(Positions batch, int64_t rank, int64_t ranks) {
  const auto until = [&](int64_t r) {
    return batch.first + static_cast<int64_t>(Int128{batch.size()} * r / ranks);
  };
  return {until(rank), until(rank + 1)};
}

}  // namespace holdfast
