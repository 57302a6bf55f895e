// A loss curve from noisy losses as they come.
//
// Values are gathered in bins of equal count (64 at most; then pairs are joined), so that
// the noise of single batches averages out and a run of any length costs the same. The
// bins of the current segment are fitted with floor + a e^(-kx) and floor + a (1 + x/t)^-b
// by weighted least squares, later bins weighing more; the smaller corrected Akaike
// criterion wins. A change point opens a new segment: a known milestone of the learning
// rate, or three bins that all lie beyond six deviations from what the earlier ones
// foretold. What is no number or far off is left out; a loss that rises, stays or cannot
// be told from noise has no fit.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "holdfast/schedule/curve.h"

namespace holdfast {

struct FittedCurve {
  Curve curve;              // over the work clock of add(); good from the segment on
  double confidence = 0;    // the share of the losses' spread that it explains, 0 to 1
  std::string_view family;  // "exponential", "power law"
};

class LossFit {
 public:
  // x must not fall.
  void add(double x, double loss);
  // What was learned of the slope does not hold from here on.
  void milestone();
  // Fits what is there: a millisecond at most. Empty if there are fewer than 8 bins, or
  // nothing that falls with a confidence of 0.5.
  std::optional<FittedCurve> fit();

  int64_t segments() const { return segments_; }

 private:
  struct Bin {
    double count = 0, x = 0, loss = 0;  // means
  };
  struct Candidate;
  void close_bin();
  bool outlier(double loss);
  void open_segment(size_t keep);
  bool changed() const;
  static std::optional<Candidate> best_fit(const std::vector<Bin>& bins);

  std::vector<Bin> bins_;
  Bin open_;
  double per_bin_ = 1;
  double mean_ = 0, variance_ = 0;  // of the recent values
  int64_t seen_ = 0, rejected_in_a_row_ = 0;
  int64_t segments_ = 1;
};

}  // namespace holdfast
