// The sample sequence: the order in which a training run reads its dataset. The order
// is a function of the seed alone. There is no list of indices and no state except a
// cursor, so any rank, on any machine, after any restart, finds the sample of any
// position at once.
//
// The run reads one endless sequence of positions 0, 1, 2, ... Position g lies in epoch
// g / n (n samples) and is sample P(g % n), where P is the epoch's shuffle. P is a
// Feistel network on as many bits as n - 1 needs (but at least 6), applied again until
// the result is below n.
//
//   mix64(z)  the SplitMix64 step
//   key(i)    mix64(mix64(mix64(seed) ^ epoch) + i) for the rounds i = 0 ... 11
//   halves    left: bits / 2 (rounded down), right: the rest
//   round     even i: left ^= top bits of mix64(key(i) ^ right); odd i: the other way
//
// All arithmetic is in integers, so the order is the same on every machine. Measured,
// and repeated by the test: every order of 2 to 5 samples is equally frequent over
// epochs, and so is every sample at every place. Fixed points, neighbours that stay
// neighbours, and places that two epochs or two seeds have in common are as rare as
// with a random order. With fewer rounds or bits, small datasets fail these tests (2
// bits need 24 rounds). It is a shuffle for training, not a cipher.
//
// A step takes one batch [c, c + b) of positions, and rank r of R ranks takes [c +
// b*r/R, c + b*(r+1)/R). The shares of all ranks together are the batch for every R, so
// the order does not depend on the number of ranks. Shares differ by at most one
// sample; where they differ, gradients should be weighted by the size of the share.
//
// All functions are pure and safe from any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "holdfast/base/result.h"

namespace holdfast {

// What happens to a batch at the end of an epoch that has too few samples left for it.
enum class EpochEnd {
  kShort,  // the batch is smaller
  kDrop,   // the batch is left out, and the epoch's last samples are not read
  kJoin,   // the next epoch fills the batch up
};

struct SampleOptions {
  int64_t samples = 0;  // in the dataset, at least 1
  uint64_t seed = 0;
  int64_t batch = 1;  // samples that all ranks together take in a step
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

// An order of the samples [0, samples), which `seed` and `epoch` choose.
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
  // How many batches an epoch has if it begins with a new batch. With kJoin a batch may
  // belong to two epochs; the result is then samples / batch, rounded up.
  int64_t batches_per_epoch() const;

  // In all these functions positions must not be negative.
  int64_t epoch_of(int64_t position) const { return position / options_.samples; }
  int64_t index_at(int64_t position) const;
  std::vector<int64_t> indices(Positions positions) const;

  // The next batch after all positions before `cursor` have been read. Its `last` is
  // the cursor after it. The batch size may change between the calls of a run, because
  // the end of the epoch follows from the cursor alone. Fails with kInvalid for
  // positions of 2^63 and above.
  Result<Positions> batch_at(int64_t cursor) const;

 private:
  explicit SampleSequence(const SampleOptions& options) : options_(options) {}

  SampleOptions options_;
};

// The part of a batch that rank `rank` of `ranks` takes. 0 <= rank < ranks.
Positions share_of(Positions batch, int64_t rank, int64_t ranks);

}  // namespace holdfast
