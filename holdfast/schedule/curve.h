// A loss curve over the work clock. The work clock counts seconds of training without
// stalls, restarts and work that is done again.
//
// A curve is a sequence of pieces. Each piece is an exponential or a power law that
// falls towards a floor, or a straight line. A curve never rises. Differences of losses
// are computed directly and not by subtraction: late in a training, where the loss
// itself does not change in the last bit any more, drop() still says how much the next
// minute brings. Schedules over many time constants depend on that.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "holdfast/base/result.h"

namespace holdfast {

// The number of workers over the work clock. Without phases it is one worker.
struct Workers {
  struct Phase {
    double start = 0;
    double count = 1;
  };
  std::vector<Phase> phases;

  double at(double x) const;
  // The integral of at() over [0, x], in worker-seconds.
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

  // A constant loss: there is no progress that could be lost.
  Curve() : pieces_{Piece{}} {}

  // All of these fail with kInvalid unless the numbers are finite, rates are positive
  // and first > floor.
  static Result<Curve> exponential(double first, double rate, double floor = 0);
  static Result<Curve> power(double first, double rate, double exponent,
                             double floor = 0);
  // At each drop of the learning rate a new exponential begins, which falls towards
  // another floor. The first drop must start at 0.
  struct Drop {
    double start, floor, rate;
  };
  static Result<Curve> drops(double first, std::span<const Drop> drops);
  // A curve through points (x, loss) with rising x. Where the losses rise, the curve
  // stays at the least loss so far.
  static Result<Curve> points(std::span<const std::pair<double, double>> points);

  double loss(double x) const;
  // loss(x) - loss(y) for x <= y, with full relative precision within a piece.
  double drop(double x, double y) const;
  // How fast the loss falls, -d loss / dx. Never negative.
  double fall(double x) const;
  std::span<const Piece> pieces() const { return pieces_; }

  // The same curve trained by `workers` instead of one worker, so that the work clock
  // runs count^efficiency times as fast.
  Curve paced(const Workers& workers, double efficiency) const;
  // The rest of the curve from x on, as a curve that begins at 0.
  Curve from(double x) const;
  // The same curve, moved so that it begins at x instead of 0.
  Curve later(double x) const;

 private:
  explicit Curve(std::vector<Piece> pieces) : pieces_(std::move(pieces)) {}
  size_t piece_at(double x) const;

  std::vector<Piece> pieces_;
};

}  // namespace holdfast
