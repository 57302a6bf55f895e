// Intervals from the literature.
#include "holdfast/schedule/intervals.h"

#include <algorithm>
#include <cmath>

#include "holdfast/base/reproducible_math.h"

namespace holdfast {

double young(double stall, double mtbf) { return std::sqrt(2 * stall * mtbf); }

double daly_first(double stall, double mtbf, double restart) {
  return std::sqrt(2 * stall * (mtbf + restart));
}

double daly(double stall, double mtbf) {
  if (std::isinf(mtbf)) return mtbf;
  if (stall >= 2 * mtbf) return mtbf;
  const double ratio = stall / (2 * mtbf), root = std::sqrt(ratio);
  return young(stall, mtbf) * (1 + root / 3 + ratio / 9) - stall;
}

double daly_exact(double stall, double mtbf) {
  if (std::isinf(mtbf)) return mtbf;
  double low = 0, high = mtbf;
  for (int round = 0; round < 100; ++round) {
    const double t = low + (high - low) / 2;
    // The logarithm of the condition is (t + stall) / mtbf + log(1 - t / mtbf) > 0.
    const bool shorter = (t + stall) / mtbf + reproducible::log1p(-t / mtbf) > 0;
    (shorter ? low : high) = t;
  }
  return low;
}

double checkfreq(double stall, double persist, double step, double overhead) {
  if (step <= 0) return std::max(persist, stall / overhead);
  const double steps =
      std::max({1.0, std::ceil(persist / step), std::ceil(stall / (overhead * step))});
  return steps * step;
}

double coci_loss_step(double theta1, double failure_rate, double stall,
                      double workers) {
  return -reproducible::expm1(theta1 * workers * stall) *
         (1 / (2 * failure_rate) - 1 / (2 * theta1));
}

}  // namespace holdfast
