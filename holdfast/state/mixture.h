// A mixture: the order in which a training run reads several datasets together, in fixed
// shares. Like the sample sequence (sample_sequence.h) it is a function of the seed, so
// any rank finds the sample of any position at once, and there is no last position.
//
// Each source s has a weight n_s, a whole number, and W is the sum of the weights. One
// pattern of W places, shuffled by the seed, says which source each position belongs to,
// and repeats itself: among any W positions that follow each other, source s has exactly
// n_s. The k-th position of a source is the k-th sample of the source's own endless
// sequence, which shuffles it anew in each of its own epochs. Sources of different sizes
// begin their next epochs at different positions.
//
//   position g, counted from the beginning of the segment
//   source   s = pattern[g mod W]
//   sample   number base_s + (g div W) * n_s + (how often s comes in pattern[0 ... g mod W))
//            of the sequence of s, whose seed is made of the seed and the name of s
//
// New weights begin a new segment: its bases say how many samples each source has given
// before. So no sample of any source is skipped or repeated by the change.
//
// All functions are pure and safe from any thread.
#pragma once

#include <string>

#include "holdfast/state/sample_sequence.h"

namespace holdfast {

struct MixtureSource {
  std::string name{};
  int64_t samples = 0;  // at least 1
  int64_t weight = 1;   // 0: not read in this segment
  int64_t base = 0;     // samples that it has given before this segment
};

struct MixtureOptions {
  std::vector<MixtureSource> sources{};
  uint64_t seed = 0;
  int64_t batch = 1;
  bool shuffle = true;  // of the sources; the pattern is shuffled in any case
  int64_t first = 0;    // position at which this segment begins
};

class Mixture {
 public:
  // Fails with kInvalid for no sources, two of one name, a source without samples,
  // negative numbers, weights that are all 0, and a sum of weights above 1,000,000.
  static Result<Mixture> create(MixtureOptions options);

  const MixtureOptions& options() const { return options_; }
  // Of all sources together. The samples of the first source have the first numbers.
  int64_t samples() const { return offsets_.back(); }

  // In all these functions positions must not lie before the segment.
  int64_t index_at(int64_t position) const;
  std::vector<int64_t> indices(Positions positions) const;
  // How many samples each source has given when all positions before `cursor` were read.
  std::vector<int64_t> given(int64_t cursor) const;
  // As SampleSequence::batch_at. All batches are full.
  Result<Positions> batch_at(int64_t cursor) const;
  // The mixture from `cursor` on with these weights, in the order of the sources.
  Result<Mixture> with_weights(int64_t cursor, const std::vector<int64_t>& weights) const;

 private:
  explicit Mixture(MixtureOptions options);
  // The place in the sequence of the source that the position belongs to.
  int64_t place_of(int64_t position, size_t source) const;

  MixtureOptions options_;
  std::vector<int64_t> offsets_;   // the number of each source's first sample, and the end
  std::vector<uint64_t> seeds_;    // of the sources
  std::vector<uint32_t> pattern_;  // which source
  std::vector<int64_t> before_;    // how often that source comes before in the pattern
};

}  // namespace holdfast
