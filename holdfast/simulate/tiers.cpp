#include "holdfast/simulate/tiers.h"

#include <algorithm>
#include <cmath>

namespace holdfast {
namespace {

constexpr size_t kMostTiers = 8;
constexpr double kMostFactor = 1e6;

Result<void> check(std::span<const TierCost> tiers) {
  if (tiers.empty() || tiers.size() > kMostTiers) {
    return invalid("tiers: {}; expected 1 to {}", tiers.size(), kMostTiers);
  }
  bool needed = false;
  for (const TierCost& tier : tiers) {
    if (!(tier.stall >= 0 && tier.stall < 1e9) || !(tier.persist >= 0) ||
        !std::isfinite(tier.persist)) {
      return invalid("tier {}: stall {} s, persist {} s; expected 0 or more", tier.name,
                     tier.stall, tier.persist);
    }
    if (!(tier.mtbf > 0)) {
      return invalid("tier {}: mtbf {} s; expected more than 0", tier.name, tier.mtbf);
    }
    needed |= std::isfinite(tier.mtbf) && tier.stall > 0;
  }
  if (!needed)
    return invalid(
        "tiers: none has both a stall and failures that need it; expected at least "
        "one");
  return {};
}

// Searches for the multiples of the nearest tier's interval t. If each tier has the
// multiple m, the overhead is (sum of stall/m)/t + t (sum of m/mtbf)/2 + const.
struct Search {
  std::span<const TierCost> tiers;
  std::vector<int64_t> each{}, best{};
  double cost = std::numeric_limits<double>::infinity(), nearest = 0;

  void evaluate() {
    double stalls = 0, danger = 0, least = 0;
    for (size_t i = 0; i < tiers.size(); ++i) {
      const auto m = static_cast<double>(each[i]);
      stalls += tiers[i].stall / m;
      danger += m / tiers[i].mtbf;
      least = std::max(least, tiers[i].persist / m);
    }
    const double t = std::max(std::sqrt(2 * stalls / danger), least);
    const double overhead = stalls / t + t * danger / 2;
    if (overhead < cost) cost = overhead, nearest = t, best = each;
  }

  // Tries multiples of the previous tier's interval around the ratio of the best
  // intervals that both tiers would have alone.
  void descend(size_t tier) {
    if (tier == tiers.size()) return evaluate();
    const auto own = [&](size_t i) {
      return std::sqrt(2 * std::max(tiers[i].stall, 1e-9) * tiers[i].mtbf);
    };
    const double before = own(tier - 1),
                 ratio = std::isinf(before) ? 1 : own(tier) / before;
    const auto middle = static_cast<int64_t>(std::clamp(ratio, 1.0, kMostFactor));
    for (const int64_t factor : {int64_t{1}, middle / 2, middle - 1, middle, middle + 1,
                                 middle + 2, 2 * middle}) {
      if (factor < 1) continue;
      each.push_back(each.back() * factor);
      descend(tier + 1);
      each.pop_back();
    }
  }
};

}  // namespace

Result<std::vector<TierInterval>> tier_intervals(std::span<const TierCost> tiers) {
  HOLDFAST_TRY(check(tiers));
  Search search{.tiers = tiers};
  search.each = {1};
  search.descend(1);
  std::vector<TierInterval> out;
  for (size_t i = 0; i < tiers.size(); ++i) {
    const double interval = search.nearest * static_cast<double>(search.best[i]);
    out.push_back({interval, search.best[i],
                   tiers[i].stall / interval +
                       (interval / 2 + tiers[i].persist) / tiers[i].mtbf});
  }
  return out;
}

}  // namespace holdfast
