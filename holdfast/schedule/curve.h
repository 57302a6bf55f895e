// A loss curve over the work clock: seconds of training without stalls, restarts and
// work done twice.
//
// A curve is pieces one after the other, each an exponential or a power law that falls
// towards a floor, or a straight line; it never rises. Differences are computed as such:
// far out, where the loss itself has settled to the last bit, drop() still tells how much
// less the next minute brings. Plans over many time constants depend on that.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "holdfast/base/result.h"

namespace holdfast {

// How many workers train from when on, by the work clock. Without phases it is one.
struct Workers {
  struct Phase {
    double start = 0;
    double count = 1;
  };
  std::vector<Phase> phases;

  double at(double x) const;
  // The integral of at() over [0, x].
  double until(double x) const;
};

class Curve {
 public:
  enum class Shape { kExponential, kPower, kLine };
  // loss(start + s) = floor + (first - floor) e^(-rate s), or
  //                   floor + (first - floor) (1 + rate s)^(-exponent), or
  //                   first - rate s
  struct Piece {
    double start = 0;
    Shape shape = Shape::kLine;
    double first = 0;
    double floor = 0;
    double rate = 0;
    double exponent = 1;
  };

  // Constant: no progress to be lost.
  Curve() : pieces_{Piece{}} {}

  // All fail with kInvalid unless numbers are finite, rates positive and first > floor.
  static Result<Curve> exponential(double first, double rate, double floor = 0);
  static Result<Curve> power(double first, double rate, double exponent,
                             double floor = 0);
  // A learning-rate drop opens an exponential towards another floor: (start, floor,
  // rate), the first at 0.
  struct Drop {
    double start, floor, rate;
  };
  static Result<Curve> drops(double first, std::span<const Drop> drops);
  // Through points (x, loss) of rising x; where the loss rises it stays instead.
  static Result<Curve> points(std::span<const std::pair<double, double>> points);

  double loss(double x) const;
  // loss(x) - loss(y) for x <= y, to full relative precision within a piece.
  double drop(double x, double y) const;
  // How fast the loss falls: -d loss / dx, never negative.
  double fall(double x) const;
  std::span<const Piece> pieces() const { return pieces_; }

  // The same curve where `workers` train instead of one, so that the work clock runs
  // count^efficiency times as fast.
  Curve paced(const Workers& workers, double efficiency) const;
  // What is left of it from x on, as a curve from 0.
  Curve from(double x) const;
  // The same curve begun at x instead of 0.
  Curve later(double x) const;

 private:
  explicit Curve(std::vector<Piece> pieces) : pieces_(std::move(pieces)) {}
  size_t piece_at(double x) const;

  std::vector<Piece> pieces_;
};

}  // namespace holdfast
