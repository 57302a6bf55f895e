// The sample sequence: in which order a training run reads its dataset, as a function
// of a seed alone. There is no list of indices and no state but a cursor, so any rank,
// on any machine, after any restart finds the sample of any position at once.
//
// The run reads one endless sequence of positions 0, 1, 2, ... Position g lies in epoch
// g / n (n samples) and is sample P(g % n), where P is the epoch's shuffle: a Feistel
// network on the least bits that hold n - 1 (but at least 6), walked until it lands
// below n.
//
//   mix64(z)  the SplitMix64 step
//   key(i)    mix64(mix64(mix64(seed) ^ epoch) + i) for the rounds i = 0 ... 11
//   halves    left: bits / 2 (rounded down), right: the rest
//   round     even i: left ^= top bits of mix64(key(i) ^ right); odd i: the other way
//
// All integers, so the same on every machine. What was measured (the test repeats it):
// every order of 2 to 5 samples is equally frequent over epochs; so is every sample at
// every place; fixed points, neighbours that stay neighbours, and places that two epochs
// or two seeds have in common are as rare as chance has them. With fewer rounds or bits
// small sets fail this (2 bits need 24 rounds). A shuffle for training, not a cipher.
//
// A step takes one batch [c, c + b) of positions, and rank r of R takes
// [c + b*r/R, c + b*(r+1)/R): the ranks' shares put together are the batch for every R,
// so the order does not depend on how many ranks there are. Shares differ by at most
// one sample; where they do, weigh gradients by them.
//
// Pure; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "holdfast/base/result.h"

namespace holdfast {

// What happens to a batch that an epoch has too few samples left for.
enum class EpochEnd {
  kShort,  // it is smaller
  kDrop,   // it is left out; the epoch's last samples are not seen
  kJoin,   // the next epoch fills it up
};

struct SampleOptions {
  int64_t samples = 0;  // in the dataset, at least 1
  uint64_t seed = 0;
  int64_t batch = 1;  // samples a step takes, all ranks together
  bool shuffle = true;
  EpochEnd end = EpochEnd::kShort;
};

// Positions [first, last).
struct Positions {
  int64_t first = 0;
  int64_t last = 0;

  int64_t size() const { return last - first; }
  friend bool operator==(const Positions&, const Positions&) = default;
};

// A shuffle of [0, samples): an order that `seed` and `epoch` choose.
class Shuffle {
 public:
  // samples >= 1.
  Shuffle(int64_t samples, uint64_t seed, int64_t epoch);
  // Which sample stands at `place`, which must be in [0, samples).
  int64_t operator()(int64_t place) const;

 private:
  static constexpr int kRounds = 12;
  uint64_t mixed(uint64_t value) const;

  uint64_t samples_;
  int left_bits_;
  int right_bits_;
  uint64_t keys_[kRounds];
};

class SampleSequence {
 public:
  // Fails with kInvalid on no samples, no batch, or a batch larger than the dataset
  // with EpochEnd::kDrop, which would never be full.
  static Result<SampleSequence> create(const SampleOptions& options);

  const SampleOptions& options() const { return options_; }
  // How many batches an epoch has that begins with one. Not for kJoin: those batches
  // belong to no epoch; there it is samples / batch, rounded up.
  int64_t batches_per_epoch() const;

  // Positions must not be negative, in all of these.
  int64_t epoch_of(int64_t position) const { return position / options_.samples; }
  int64_t index_at(int64_t position) const;
  std::vector<int64_t> indices(Positions positions) const;

  // The batch that follows when all before `cursor` has been read; its `last` is the
  // cursor after it. The batch size may change from call to call of a run: the epoch's
  // end is found from the cursor alone. Fails with kInvalid where positions end (2^63).
  Result<Positions> batch_at(int64_t cursor) const;

 private:
  explicit SampleSequence(const SampleOptions& options) : options_(options) {}

  SampleOptions options_;
};

// What rank `rank` of `ranks` takes of a batch. 0 <= rank < ranks.
Positions share_of(Positions batch, int64_t rank, int64_t ranks);

}  // namespace holdfast
