// For tests: exact maximum-weight assignment of positions to devices, in three ways.
//
// Tests compare placement with it, so it shares no code with placement. Weights are
// weight[position][device] >= 0. There are at least as many devices as positions; every
// position takes one device, and no device takes two positions. Each function returns
// the greatest sum.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "holdfast/base/result.h"

namespace holdfast::elementwise {

using Weights = std::vector<std::vector<int64_t>>;

inline constexpr size_t kDevicesPerHost = 4;
inline constexpr int64_t kForbidden = -(int64_t{1} << 52);

// Finds shortest augmenting paths with potentials, in O(positions^2 * devices) time.
// Row and column 0 are sentinels: taker[0] is the position that still looks for a
// device.
class Assignment {
 public:
  explicit Assignment(const Weights& weight)
      : weight_(weight),
        devices_(weight.empty() ? 0 : weight[0].size()),
        row_price_(weight.size() + 1),
        column_price_(devices_ + 1),
        taker_(devices_ + 1),
        previous_(devices_ + 1) {
    HOLDFAST_CHECK(weight.size() <= devices_ || weight.empty(),
                   "{} positions for {} devices", weight.size(), devices_);
    for (size_t position = 1; position <= weight.size(); ++position) seat(position);
  }

  int64_t total() const {
    int64_t sum = 0;
    for (size_t d = 1; d <= devices_; ++d) {
      if (taker_[d] != 0) sum += weight_[taker_[d] - 1][d - 1];
    }
    return sum;
  }

 private:
  static constexpr int64_t kFar = std::numeric_limits<int64_t>::max();

  void seat(size_t position) {
    taker_[0] = position;
    std::vector<int64_t> slack(devices_ + 1, kFar);
    std::vector<bool> reached(devices_ + 1);
    size_t device = 0;
    while (taker_[device] != 0) device = reach_next(device, slack, reached);
    for (; device != 0; device = previous_[device]) {
      taker_[device] = taker_[previous_[device]];
    }
  }

  // Extends the tree from `from` and returns the device that became reachable.
  size_t reach_next(size_t from, std::vector<int64_t>& slack,
                    std::vector<bool>& reached) {
    reached[from] = true;
    const size_t row = taker_[from];
    size_t nearest = 0;
    int64_t step = kFar;
    for (size_t d = 1; d <= devices_; ++d) {
      if (reached[d]) continue;
      const int64_t gap = -weight_[row - 1][d - 1] - row_price_[row] - column_price_[d];
      if (gap < slack[d]) slack[d] = gap, previous_[d] = from;
      if (slack[d] < step) step = slack[d], nearest = d;
    }
    for (size_t d = 0; d <= devices_; ++d) {
      if (reached[d]) {
        row_price_[taker_[d]] += step;
        column_price_[d] -= step;
      } else {
        slack[d] -= d == 0 ? 0 : step;
      }
    }
    return nearest;
  }

  const Weights& weight_;
  size_t devices_;
  std::vector<int64_t> row_price_;
  std::vector<int64_t> column_price_;
  std::vector<size_t> taker_;     // by device: 1 + its position, 0 for none
  std::vector<size_t> previous_;  // by device: the one before it on the augmenting path
};

inline int64_t best_assignment(const Weights& weight) {
  return Assignment(weight).total();
}

// Tries every way to give positions distinct devices. For at most 8 devices.
inline int64_t best_assignment_by_brute_force(const Weights& weight) {
  const size_t devices = weight.empty() ? 0 : weight[0].size();
  HOLDFAST_CHECK(devices <= 8, "{} devices are too many to try all", devices);
  std::vector<size_t> order(devices);
  for (size_t d = 0; d < devices; ++d) order[d] = d;
  int64_t best = std::numeric_limits<int64_t>::min();
  do {
    int64_t sum = 0;
    for (size_t p = 0; p < weight.size(); ++p) sum += weight[p][order[p]];
    best = std::max(best, sum);
  } while (std::next_permutation(order.begin(), order.end()));
  return best;
}

// The best assignment in which groups stay together. Positions [k * size, (k + 1) *
// size) form a group; it must stay on one host, or on whole hosts of its own if it is
// larger than a host. Tries every choice of hosts for the groups. `size` must divide
// kDevicesPerHost or be a multiple of it, and all hosts must be full.
class GroupedAssignment {
 public:
  GroupedAssignment(const Weights& weight, size_t size)
      : weight_(weight),
        size_(size),
        free_(weight[0].size() / kDevicesPerHost, kDevicesPerHost),
        allowed_(weight.size(), std::vector<bool>(weight[0].size())) {
    HOLDFAST_CHECK(weight[0].size() % kDevicesPerHost == 0, "a host is not full");
    choose(0, size, 0);
  }

  int64_t total() const { return best_; }

 private:
  // Tries all hosts from `first` on for the `left` positions of `group` that have none
  // yet.
  void choose(size_t group, size_t left, size_t first) {
    if (left == 0) return choose_next(group);
    const size_t share = std::min(left, kDevicesPerHost);
    for (size_t host = first; host < free_.size(); ++host) {
      if (free_[host] < share) continue;
      allow(group, host, true);
      free_[host] -= share;
      choose(group, left - share, host + 1);
      free_[host] += share;
      allow(group, host, false);
    }
  }

  void choose_next(size_t group) {
    if ((group + 1) * size_ < weight_.size()) return choose(group + 1, size_, 0);
    Weights inside = weight_;
    for (size_t p = 0; p < inside.size(); ++p) {
      for (size_t d = 0; d < inside[p].size(); ++d) {
        if (!allowed_[p][d]) inside[p][d] = kForbidden;
      }
    }
    best_ = std::max(best_, best_assignment(inside));
  }

  void allow(size_t group, size_t host, bool yes) {
    for (size_t p = group * size_; p < (group + 1) * size_; ++p) {
      for (size_t k = 0; k < kDevicesPerHost; ++k) {
        allowed_[p][host * kDevicesPerHost + k] = yes;
      }
    }
  }

  const Weights& weight_;
  size_t size_;
  std::vector<size_t> free_;
  std::vector<std::vector<bool>> allowed_;
  int64_t best_ = std::numeric_limits<int64_t>::min();
};

}  // namespace holdfast::elementwise
