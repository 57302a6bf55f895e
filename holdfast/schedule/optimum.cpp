// Finds the cheapest schedule on a grid by dynamic programming.
#include "holdfast/schedule/optimum.h"

#include <algorithm>

namespace holdfast {
namespace {

// For each position: the least cost from there to the end, and the next save. Costs
// include `extra`, an additional price for each save.
struct SavePath {
  std::vector<double> to_go;
  std::vector<int64_t> next;

  explicit SavePath(const Grid& grid)
      : to_go(static_cast<size_t>(grid.last()) + 1),
        next(static_cast<size_t>(grid.last()) + 1, grid.last()) {}

  void set(int64_t i, int64_t j, double cost) {
    to_go[static_cast<size_t>(i)] = cost;
    next[static_cast<size_t>(i)] = j;
  }
  double at(int64_t j) const { return to_go[static_cast<size_t>(j)]; }

  std::vector<int64_t> saves() const {
    std::vector<int64_t> out;
    const auto last = static_cast<int64_t>(next.size()) - 1;
    for (int64_t j = next[0]; j < last; j = next[static_cast<size_t>(j)]) {
      out.push_back(j);
    }
    return out;
  }
};

// Candidates for the next save are opened from the end of the job towards the start.
// From position i, candidates up to the returned one are far enough away. At the start
// nothing is in flight, so the first position is allowed.
int64_t nearest_open(const Grid& grid, int64_t i) {
  return i == 0 ? 1 : std::min(i + grid.gap(), grid.last());
}

// The lower envelope of lines. Lines are added with falling slopes, and best() is
// called with rising q.
class Hull {
 public:
  void add(double slope, double level, int64_t j) {
    if (!lines_.empty() && lines_.size() > head_ && lines_.back().slope == slope) {
      if (lines_.back().level <= level) return;
      lines_.pop_back();
    }
    while (lines_.size() - head_ >= 2 &&
           hidden(lines_[lines_.size() - 2], lines_.back(), {slope, level, j})) {
      lines_.pop_back();
    }
    lines_.push_back({slope, level, j});
  }

  struct Line {
    double slope, level;
    int64_t j;
    double at(double q) const { return level + slope * q; }
  };
  const Line& best(double q) {
    while (head_ + 1 < lines_.size() && lines_[head_ + 1].at(q) < lines_[head_].at(q)) {
      ++head_;
    }
    return lines_[head_];
  }
  void reserve(size_t n) { lines_.reserve(n); }

 private:
  // Whether the line b, between a and c, is nowhere the lowest.
  static bool hidden(const Line& a, const Line& b, const Line& c) {
    return (c.level - a.level) * (a.slope - b.slope) <=
           (b.level - a.level) * (a.slope - c.slope);
  }

  std::vector<Line> lines_;
  size_t head_ = 0;
};

// For grids with one danger. The cost from i to the end is left_i danger_i - sum_i plus
// the least value of (price_j + sum_j + to_go_j) - danger_j left_i over all j, which a
// Hull finds.
SavePath by_hull(const Grid& grid, double extra) {
  SavePath path(grid);
  const Grid::Component& c = grid.components().front();
  Hull hull;
  hull.reserve(static_cast<size_t>(grid.last()) + 1);
  const auto add = [&](int64_t j) {
    const auto b = static_cast<size_t>(j);
    const double price = j == grid.last() ? 0 : grid.prices()[b] + extra;
    hull.add(-c.danger[b], price + c.sum[b] + path.to_go[b], j);
  };
  add(grid.last());
  int64_t open = grid.last();
  for (int64_t i = grid.last() - 1; i >= 0; --i) {
    for (const int64_t nearest = nearest_open(grid, i); open > nearest;) add(--open);
    const auto a = static_cast<size_t>(i);
    const Hull::Line& line = hull.best(c.left[a]);
    path.set(i, line.j, line.at(c.left[a]) + (c.left[a] * c.danger[a] - c.sum[a]));
  }
  return path;
}

// The costs that a Queue needs, for grids with up to two dangers: compare() says which
// of two candidates is better from i, and cost() is the cost of the chosen one.
// compare() leaves out terms that depend only on i.
class TwoDangers {
 public:
  TwoDangers(const Grid& grid, const SavePath& path, double extra)
      : grid_(grid), path_(path), extra_(extra), nodes_(path.to_go.size()) {
    const auto all = grid.components();
    const Grid::Component& a = all[0];
    for (size_t j = 0; j < nodes_.size(); ++j) {
      Node& node = nodes_[j];
      node = {a.left[j], 0, a.danger[j], 0, a.sum[j]};
      if (all.size() < 2) continue;
      node.left_too = all[1].left[j], node.danger_too = all[1].danger[j];
      node.level += all[1].sum[j];
    }
  }

  // Must be called when the cost from j to the end is known.
  void open(int64_t j) {
    const auto b = static_cast<size_t>(j);
    const double price = j == grid_.last() ? 0 : grid_.prices()[b] + extra_;
    nodes_[b].level += price + path_.to_go[b];
  }
  double compare(int64_t i, int64_t j) const {
    const Node &a = nodes_[static_cast<size_t>(i)], &b = nodes_[static_cast<size_t>(j)];
    return b.level - (a.left * b.danger + a.left_too * b.danger_too);
  }
  double cost(int64_t i, int64_t j) const {
    return path_.at(j) + grid_.cost(i, j) + (j == grid_.last() ? 0 : extra_);
  }

 private:
  struct Node {
    double left = 0, left_too = 0, danger = 0, danger_too = 0, level = 0;
  };
  const Grid& grid_;
  const SavePath& path_;
  const double extra_;
  std::vector<Node> nodes_;
};

// The same for grids with exact costs.
class ExactCosts {
 public:
  ExactCosts(const Grid& grid, const SavePath& path, double extra)
      : grid_(grid), path_(path), extra_(extra) {}

  void open(int64_t) {}
  double compare(int64_t i, int64_t j) const { return cost(i, j); }
  double cost(int64_t i, int64_t j) const {
    return path_.at(j) + grid_.cost(i, j) + (j == grid_.last() ? 0 : extra_);
  }

 private:
  const Grid& grid_;
  const SavePath& path_;
  const double extra_;
};

// Keeps candidates for the next save. If a candidate j is better than a candidate b > j
// from some position, it stays better from all positions before that one.
template <typename Costs>
class Queue {
 public:
  explicit Queue(Costs& costs, int64_t last) : costs_(costs) {
    costs.open(last);
    entries_.push_back({last, last - 1});
  }

  void add(int64_t j, int64_t i) {
    costs_.open(j);
    while (entries_.size() > head_) {
      const Entry& back = entries_.back();
      const int64_t from = std::min(back.from, i);
      if (!wins(j, back.j, from)) {
        const int64_t first = first_win(j, back.j, from);
        if (first >= 0) entries_.push_back({j, first});
        return;
      }
      entries_.pop_back();
    }
    entries_.push_back({j, i});
  }

  int64_t best(int64_t i) {
    while (head_ + 1 < entries_.size() && entries_[head_ + 1].from >= i) ++head_;
    return entries_[head_].j;
  }

 private:
  struct Entry {
    int64_t j,
        from;  // j is best for positions from `from` down to that of the next entry
  };

  bool wins(int64_t j, int64_t b, int64_t i) const {
    return costs_.compare(i, j) < costs_.compare(i, b);
  }

  // The highest position below `from` at which j is better than b, or -1. Searches near
  // `from` first, because the position is usually near.
  int64_t first_win(int64_t j, int64_t b, int64_t from) const {
    int64_t high = from, low = from - 1;
    for (int64_t stride = 1; low >= 0 && !wins(j, b, low); stride *= 2) {
      high = low;
      low -= stride;
    }
    low = std::max<int64_t>(low, -1);
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      (wins(j, b, middle) ? low : high) = middle;
    }
    return low;
  }

  Costs& costs_;
  std::vector<Entry> entries_;
  size_t head_ = 0;
};

template <typename Costs>
SavePath by_queue(const Grid& grid, double extra) {
  SavePath path(grid);
  Costs costs(grid, path, extra);
  Queue<Costs> queue(costs, grid.last());
  int64_t open = grid.last();
  for (int64_t i = grid.last() - 1; i >= 0; --i) {
    for (const int64_t nearest = nearest_open(grid, i); open > nearest;) {
      queue.add(--open, i);
    }
    const int64_t j = queue.best(i);
    path.set(i, j, costs.cost(i, j));
  }
  return path;
}

std::vector<int64_t> cheapest(const Grid& grid, double extra) {
  if (grid.exact()) return by_queue<ExactCosts>(grid, extra).saves();
  if (grid.components().size() == 1) return by_hull(grid, extra).saves();
  return by_queue<TwoDangers>(grid, extra).saves();
}

// Joins two schedules of the same least cost, one with fewer and one with more saves
// than `wanted`. Where an interval of one spans an interval of the other, they can be
// joined without additional cost (Aggarwal, Schieber, Tokuyama).
std::vector<int64_t> join_schedules(const std::vector<int64_t>& few,
                                    const std::vector<int64_t>& many, size_t wanted,
                                    int64_t last) {
  const auto at = [&](const std::vector<int64_t>& saves, size_t k) {
    return k == 0 ? 0 : k <= saves.size() ? saves[k - 1] : last;
  };
  const size_t shift = wanted - few.size();
  for (size_t k = 0; k <= few.size(); ++k) {
    if (at(few, k) > at(many, k + shift) || at(many, k + shift + 1) > at(few, k + 1)) {
      continue;
    }
    std::vector<int64_t> out(many.begin(),
                             many.begin() + static_cast<ptrdiff_t>(k + shift));
    out.insert(out.end(), few.begin() + static_cast<ptrdiff_t>(k), few.end());
    return out;
  }
  return few;
}

// Finds the schedule with `wanted` saves by bisection over an additional price for each
// save. This works because the least cost is convex in the number of saves.
std::vector<int64_t> with_count(const Grid& grid, size_t wanted) {
  const int64_t none[] = {grid.last()};
  double high = std::max(grid.cost(std::span(none, 0)), 1e-300), low = -high;
  std::vector<int64_t> few = cheapest(grid, high), many = cheapest(grid, low);
  while (many.size() < wanted) many = cheapest(grid, low *= 4);
  if (many.size() == wanted) return many;
  for (int round = 0; round < 200 && few.size() != wanted; ++round) {
    const double middle = low + (high - low) / 2;
    if (middle == low || middle == high) break;
    std::vector<int64_t> saves = cheapest(grid, middle);
    if (saves.size() > wanted) {
      low = middle;
      many = std::move(saves);
    } else {
      high = middle;
      few = std::move(saves);
    }
  }
  return few.size() == wanted ? few : join_schedules(few, many, wanted, grid.last());
}

}  // namespace

std::vector<int64_t> optimum(const Grid& grid) {
  const auto& budget = grid.problem().budget;
  if (!budget) return cheapest(grid, 0);
  return with_count(grid, static_cast<size_t>(*budget));
}

}  // namespace holdfast
