#include "holdfast/schedule/curve.h"

#include <algorithm>
#include <cmath>

#include "holdfast/base/reproducible_math.h"

namespace holdfast {
namespace {

using Piece = Curve::Piece;
using Shape = Curve::Shape;

double shape_at(const Piece& piece, double s) {
  if (piece.shape == Shape::kExponential) return reproducible::exp(-piece.rate * s);
  return reproducible::pow(1 + piece.rate * s, -piece.exponent);
}

double loss_in(const Piece& piece, double s) {
  if (piece.shape == Shape::kLine) return piece.first - piece.rate * s;
  return piece.floor + (piece.first - piece.floor) * shape_at(piece, s);
}

double drop_in(const Piece& piece, double s, double t) {
  if (piece.shape == Shape::kLine) return piece.rate * (t - s);
  const double change =
      piece.shape == Shape::kExponential
          ? -piece.rate * (t - s)
          : -piece.exponent *
                reproducible::log1p(piece.rate * (t - s) / (1 + piece.rate * s));
  return (piece.first - piece.floor) * shape_at(piece, s) *
         -reproducible::expm1(change);
}

double fall_in(const Piece& piece, double s) {
  if (piece.shape == Shape::kLine) return piece.rate;
  const double scale = (piece.first - piece.floor) * shape_at(piece, s) * piece.rate;
  if (piece.shape == Shape::kExponential) return scale;
  return scale * piece.exponent / (1 + piece.rate * s);
}

// The rest of the piece from `x` on, as a piece that begins at `x`, on a clock that
// runs `pace` times as fast.
Piece rebased(const Piece& piece, double x, double pace) {
  const double s = x - piece.start;
  Piece out = piece;
  out.first = loss_in(piece, s);
  out.rate = piece.rate * pace;
  if (piece.shape == Shape::kPower) out.rate /= 1 + piece.rate * s;
  return out;
}

Result<void> check_fall(double first, double rate, double floor) {
  if (!std::isfinite(first - floor) || !(first > floor)) {
    return invalid("curve: loss from {} to floor {}; expected a finite fall", first,
                   floor);
  }
  if (!(rate > 0) || !std::isfinite(rate)) {
    return invalid("curve: rate {} a second; expected a positive one", rate);
  }
  return {};
}

}  // namespace

double Workers::at(double x) const {
  double count = 1;
  for (const Phase& phase : phases) {
    if (phase.start <= x) count = phase.count;
  }
  return count;
}

double Workers::until(double x) const {
  double sum = 0, from = 0, count = 1;
  for (const Phase& phase : phases) {
    if (phase.start >= x) break;
    sum += (phase.start - from) * count;
    from = phase.start;
    count = phase.count;
  }
  return sum + (x - from) * count;
}

Result<Curve> Curve::exponential(double first, double rate, double floor) {
  HOLDFAST_TRY(check_fall(first, rate, floor));
  return Curve(
      {{.shape = Shape::kExponential, .first = first, .floor = floor, .rate = rate}});
}

Result<Curve> Curve::power(double first, double rate, double exponent, double floor) {
  HOLDFAST_TRY(check_fall(first, rate, floor));
  if (!(exponent > 0) || !std::isfinite(exponent)) {
    return invalid("curve: exponent {}; expected a positive one", exponent);
  }
  return Curve({{.shape = Shape::kPower,
                 .first = first,
                 .floor = floor,
                 .rate = rate,
                 .exponent = exponent}});
}

Result<Curve> Curve::drops(double first, std::span<const Drop> drops) {
  std::vector<Piece> pieces;
  for (const Drop& drop : drops) {
    const double begin = pieces.empty() ? 0 : pieces.back().start;
    const bool ordered = pieces.empty() ? drop.start == 0 : drop.start > begin;
    if (!ordered || !std::isfinite(drop.start)) {
      return invalid(
          "curve: a drop at {} s after one at {} s; expected rising times from 0",
          drop.start, begin);
    }
    if (!pieces.empty()) first = loss_in(pieces.back(), drop.start - begin);
    HOLDFAST_TRY(check_fall(first, drop.rate, drop.floor));
    pieces.push_back({.start = drop.start,
                      .shape = Shape::kExponential,
                      .first = first,
                      .floor = drop.floor,
                      .rate = drop.rate});
  }
  if (pieces.empty()) return invalid("curve: no drops; expected at least one");
  return Curve(std::move(pieces));
}

Result<Curve> Curve::points(std::span<const std::pair<double, double>> points) {
  std::vector<Piece> pieces;
  double least = 0;
  for (const auto& [x, loss] : points) {
    if (!std::isfinite(x) || !std::isfinite(loss) ||
        (!pieces.empty() && x <= pieces.back().start)) {
      return invalid(
          "curve: point {} of loss {}; expected finite numbers and rising times", x,
          loss);
    }
    least = pieces.empty() ? loss : std::min(least, loss);
    if (std::fabs(loss) > 1e150)
      return invalid("curve: a loss of {}, limit 1e150", loss);
    if (!pieces.empty()) {
      Piece& last = pieces.back();
      last.rate = (last.first - least) / (x - last.start);
    }
    pieces.push_back({.start = x, .first = least});
  }
  if (pieces.empty()) return invalid("curve: no points; expected at least one");
  pieces.front().start = std::min(pieces.front().start, 0.0);
  return Curve(std::move(pieces));
}

size_t Curve::piece_at(double x) const {
  if (pieces_.size() == 1) return 0;
  const auto after =
      std::upper_bound(pieces_.begin(), pieces_.end(), x,
                       [](double at, const Piece& piece) { return at < piece.start; });
  return static_cast<size_t>(std::max<ptrdiff_t>(after - pieces_.begin() - 1, 0));
}

double Curve::loss(double x) const {
  const Piece& piece = pieces_[piece_at(x)];
  return loss_in(piece, x - piece.start);
}

double Curve::fall(double x) const {
  const Piece& piece = pieces_[piece_at(x)];
  return fall_in(piece, x - piece.start);
}

double Curve::drop(double x, double y) const {
  const size_t i = piece_at(x), j = piece_at(y);
  const Piece& a = pieces_[i];
  if (i == j) return drop_in(a, x - a.start, y - a.start);
  const Piece& b = pieces_[j];
  double sum = drop_in(a, x - a.start, pieces_[i + 1].start - a.start);
  sum += pieces_[i + 1].first - b.first;
  return sum + drop_in(b, 0, y - b.start);
}

Curve Curve::from(double x) const {
  const size_t first = piece_at(x);
  std::vector<Piece> out{rebased(pieces_[first], x, 1)};
  out.front().start = 0;
  for (size_t i = first + 1; i < pieces_.size(); ++i) {
    out.push_back(pieces_[i]);
    out.back().start -= x;
  }
  return Curve(std::move(out));
}

Curve Curve::later(double x) const {
  Curve out = *this;
  for (Piece& piece : out.pieces_) piece.start += x;
  return out;
}

Curve Curve::paced(const Workers& workers, double efficiency) const {
  std::vector<Piece> out;
  // The time on this curve's own clock.
  double z = 0;
  for (size_t p = 0; p <= workers.phases.size(); ++p) {
    const double start = p == 0 ? 0 : workers.phases[p - 1].start;
    const bool last = p == workers.phases.size();
    const double end = last ? INFINITY : workers.phases[p].start;
    if (end <= start) continue;
    const double pace =
        p == 0 ? 1 : reproducible::pow(workers.phases[p - 1].count, efficiency);
    const double z_end = last ? INFINITY : z + (end - start) * pace;
    for (size_t i = piece_at(z); i < pieces_.size() && pieces_[i].start < z_end; ++i) {
      const double from = std::max(z, pieces_[i].start);
      out.push_back(rebased(pieces_[i], from, pace));
      out.back().start = start + (from - z) / pace;
    }
    z = z_end;
  }
  return Curve(std::move(out));
}

}  // namespace holdfast
