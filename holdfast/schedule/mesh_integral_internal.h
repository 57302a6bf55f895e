// Functions that are given at the ends and middles of the cells of an even mesh: their
// values and their integrals at any point.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace holdfast {

// A point of the mesh: its cell, and the part of the cell before it, which is less
// than 1.
struct MeshPoint {
  size_t cell = 0;
  double part = 0;

  // The point that lies `cells` cells after the start.
  static MeshPoint at(double cells) {
    const auto whole = static_cast<size_t>(std::max(cells, 0.0));
    return {whole, std::max(cells, 0.0) - static_cast<double>(whole)};
  }
};

// The value of a function at a point. `half` has the values at the 2n + 1 ends and
// middles of n cells. In between the function is the parabola through the three values
// of the cell.
inline double mesh_value(const std::vector<double>& half, MeshPoint at) {
  if (2 * at.cell + 2 >= half.size()) return half.back();
  const double *f = &half[2 * at.cell], t = at.part;
  const double slope = -3 * f[0] + 4 * f[1] - f[2];
  const double bend = 2 * f[0] - 4 * f[1] + 2 * f[2];
  return f[0] + t * (slope + t * bend);
}

// The integrals of such a function from any point to the end.
class MeshIntegral {
 public:
  MeshIntegral(std::vector<double> half, double width)
      : half_(std::move(half)), width_(width), rest_(half_.size() / 2 + 1) {
    for (size_t c = rest_.size() - 1; c-- > 0;) rest_[c] = rest_[c + 1] + of_cell(c, 0);
  }

  double from(MeshPoint at) const {
    if (at.cell + 1 >= rest_.size()) return 0;
    return at.part == 0 ? rest_[at.cell]
                        : rest_[at.cell + 1] + of_cell(at.cell, at.part);
  }

 private:
  // The integral over the rest of the cell from the part t on.
  double of_cell(size_t c, double t) const {
    const double* f = &half_[2 * c];
    if (t == 0) return width_ / 6 * (f[0] + 4 * f[1] + f[2]);
    const double slope = -3 * f[0] + 4 * f[1] - f[2];
    const double bend = 2 * f[0] - 4 * f[1] + 2 * f[2];
    return width_ *
           (f[0] * (1 - t) + slope * (1 - t * t) / 2 + bend * (1 - t * t * t) / 3);
  }

  std::vector<double> half_;
  double width_;
  std::vector<double> rest_;
};

}  // namespace holdfast
