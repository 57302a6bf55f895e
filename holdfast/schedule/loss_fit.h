// Fits a loss curve to noisy losses as they arrive.
//
// Losses are collected in bins with an equal number of values. There are at most 64
// bins; then pairs of bins are joined. So the noise of single batches averages out, and
// a run of any length costs the same. The bins of the current segment are fitted with
// floor + a e^(-kx) and with floor + a (1 + x/t)^-b by weighted least squares, where
// later bins weigh more. The fit with the smaller corrected Akaike criterion is used.
//
// A new segment begins at a known milestone of the learning rate, or if three bins in a
// row all lie more than six deviations from what the earlier bins predict. Losses that
// are not numbers or far off are left out. If the loss rises, stays the same or cannot
// be told from noise, there is no fit.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "holdfast/schedule/curve.h"

namespace holdfast {

struct FittedCurve {
  Curve curve;            // over the work clock of add(); valid in this segment
  double confidence = 0;  // 1 / (1 + cv^2), where cv is the relative error of the fall
  std::string_view family;  // "exponential" or "power law"
};

// The loss first e^(-rate (x - start)), which falls to 0. COCI fits this shape.
struct FittedExponential {
  double start = 0, first = 0, rate = 0;
  double loss(double x) const;
};

class LossFit {
 public:
  // Adds a loss. x is the work clock and must not fall.
  void add(double x, double loss);
  // Says that the learning rate changes here, so that the slope so far does not hold
  // any more.
  void milestone();
  // Fits the losses so far. Takes a millisecond at most. Returns nullopt if there are
  // fewer than 8 bins, or if the fall is less than five of its standard errors.
  std::optional<FittedCurve> fit();
  // Fits an exponential without a floor to the losses of this segment by least squares,
  // in which all losses weigh the same. Says nothing about losses that may follow.
  // Returns nullopt if there are fewer than 8 bins, or if the loss is not positive or
  // does not fall.
  std::optional<FittedExponential> fit_decay() const;

  int64_t segments() const { return segments_; }
  // The mean of the first losses of the run. 0 before there are any.
  double first_loss() const { return first_loss_; }

 private:
  struct Bin {
    // The number of values, and the means of x and loss.
    double count = 0, x = 0, loss = 0;
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
  // Mean and variance of the recent values.
  double mean_ = 0, variance_ = 0;
  int64_t seen_ = 0, rejected_in_a_row_ = 0;
  int64_t segments_ = 1;
  double first_loss_ = 0;
};

}  // namespace holdfast
