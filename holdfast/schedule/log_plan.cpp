#include "holdfast/schedule/log_plan.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "holdfast/base/checked.h"

namespace holdfast {
namespace {

// More states of one host than this are thinned out: of those with nearly the same bytes, the
// cheapest stays. Up to 12 hosts there are never so many.
constexpr size_t kMostStates = 4096;

Result<void> check(const LogChain& chain) {
  const size_t hosts = chain.replay.size();
  if (hosts == 0 || chain.rate.size() != hosts || chain.right.size() != hosts - 1 ||
      chain.left.size() != hosts - 1) {
    return invalid(
        "log: {} replay times, {} rates, {} and {} borders; expected the same number of the "
        "first two, and one less of the others",
        hosts, chain.rate.size(), chain.right.size(), chain.left.size());
  }
  double rates = 0;
  for (size_t k = 0; k < hosts; ++k) {
    if (!(chain.replay[k] >= 0 && std::isfinite(chain.replay[k]) && chain.rate[k] >= 0 &&
          std::isfinite(chain.rate[k]))) {
      return invalid("log: host {} has a replay time of {} s and a rate of {}; expected numbers "
                     "of 0 or more",
                     k, chain.replay[k], chain.rate[k]);
    }
    rates += chain.rate[k];
  }
  if (!(rates > 0)) return invalid("log: no host is ever lost; expected a rate above 0");
  if (!(chain.bandwidth > 0) || chain.steps < 1 || chain.micro_batches < 0) {
    return invalid("log: {} bytes a second, {} steps and {} micro-batches; expected more than 0, or no "
                   "micro-batches",
                   chain.bandwidth, chain.steps, chain.micro_batches);
  }
  for (size_t k = 0; k + 1 < hosts; ++k) {
    const auto both = checked_add(chain.right[k], chain.left[k]);
    const auto all = both ? checked_mul(*both, chain.steps) : std::nullopt;
    if (chain.right[k] < 0 || chain.left[k] < 0 || !all ||
        !checked_mul(*all, static_cast<int64_t>(hosts))) {
      return invalid("log: border {} has {} and {} bytes a step; expected 0 or more, and less than "
                     "2^63 in all",
                     k, chain.right[k], chain.left[k]);
    }
  }
  return {};
}

int64_t border_bytes(const LogChain& chain, size_t border) {
  return chain.steps * (chain.right[border] + chain.left[border]);
}

// Seconds to make one step of the group [first, last] again, times how often it is lost.
double group_cost(const LogChain& chain, size_t first, size_t last) {
  double seconds = 0, rate = 0, longest = 0;
  for (size_t k = first; k <= last; ++k) {
    if (chain.micro_batches == 0) seconds += chain.replay[k];
    longest = std::max(longest, chain.replay[k]);
    rate += chain.rate[k];
    if (k < last) {
      seconds += static_cast<double>(chain.right[k] + chain.left[k]) / chain.bandwidth;
    }
  }
  if (chain.micro_batches > 0) {
    const auto more = static_cast<double>(last - first);
    seconds += longest * (1 + more / static_cast<double>(chain.micro_batches));
  }
  return seconds * rate;
}

// Whether the group is short enough, and the logs of its hosts fit if the borders around it are logged.
bool group_fits(const LogChain& chain, const LogLimits& limits, size_t first, size_t last) {
  if (static_cast<int64_t>(last - first) >= limits.group) return false;
  const int64_t to_left = first > 0 ? chain.left[first - 1] : 0;
  const int64_t to_right = last + 1 < chain.replay.size() ? chain.right[last] : 0;
  const int64_t most = first == last ? to_left + to_right : std::max(to_left, to_right);
  return most * chain.steps <= limits.host;
}

// The best way that is known to a number of bytes: the border before host `at` is logged.
struct State {
  int64_t bytes = 0;
  double cost = 0;
  size_t from = 0, before = 0;  // the state before it: its host, and its place there
};

// Drops states that cost more than one with fewer bytes.
std::vector<State> prune(std::vector<State> states, int64_t limit) {
  std::ranges::sort(states, [](const State& a, const State& b) {
    return std::pair(a.bytes, a.cost) < std::pair(b.bytes, b.cost);
  });
  std::vector<State> kept;
  for (const State& one : states) {
    if (kept.empty() || one.cost < kept.back().cost) kept.push_back(one);
  }
  if (kept.size() <= kMostStates) return kept;
  const int64_t step = std::max<int64_t>(1, std::min(limit, kept.back().bytes) /
                                                static_cast<int64_t>(kMostStates));
  std::vector<State> thin;
  for (const State& one : kept) {
    if (!thin.empty() && one.bytes / step == thin.back().bytes / step) {
      thin.back() = one;  // it costs less
    } else {
      thin.push_back(one);
    }
  }
  return thin;
}

double all_rates(const LogChain& chain) {
  double sum = 0;
  for (const double rate : chain.rate) sum += rate;
  return sum;
}

// The groups of a plan, as (first, last).
std::vector<std::pair<size_t, size_t>> groups_of(const std::vector<bool>& logged) {
  std::vector<std::pair<size_t, size_t>> groups{{0, 0}};
  for (size_t border = 0; border < logged.size(); ++border) {
    if (logged[border]) {
      groups.emplace_back(border + 1, border + 1);
    } else {
      groups.back().second = border + 1;
    }
  }
  return groups;
}

LogPlan plan_of(const LogChain& chain, std::vector<bool> logged) {
  LogPlan plan;
  double cost = 0;
  for (const auto& [first, last] : groups_of(logged)) {
    cost += group_cost(chain, first, last);
  }
  for (size_t border = 0; border < logged.size(); ++border) {
    if (logged[border]) plan.bytes += border_bytes(chain, border);
  }
  plan.seconds = cost / all_rates(chain);
  plan.logged = std::move(logged);
  return plan;
}

Error no_plan(const LogLimits& limits) {
  return not_found("log: no plan keeps {} bytes in all and {} a host; expected more, or groups of more than {} "
                   "hosts",
                   limits.total, limits.host, limits.group);
}

// Seconds in which SWIFT has a group make a step again.
double seconds_by_swift(const LogChain& chain, size_t first, size_t last) {
  double seconds = chain.replay[first];
  for (size_t k = first; k < last; ++k) {
    seconds += chain.replay[k + 1] + static_cast<double>(chain.right[k]) / chain.bandwidth;
  }
  return seconds;
}

// The logged border that SWIFT's rule gives up first. At least one is logged.
size_t cheapest_border(const LogChain& chain, const std::vector<bool>& logged) {
  const auto groups = groups_of(logged);
  size_t best = 0;
  double least = 0;
  for (size_t k = 0; k + 1 < groups.size(); ++k) {
    const auto [first, border] = groups[k];
    const size_t last = groups[k + 1].second;
    const double more = 2 * seconds_by_swift(chain, first, last) -
                        seconds_by_swift(chain, first, border) -
                        seconds_by_swift(chain, border + 1, last);
    const double price = more / static_cast<double>(std::max<int64_t>(1, chain.right[border]));
    if (k == 0 || price < least) {
      least = price;
      best = border;
    }
  }
  return best;
}

}  // namespace

Result<LogPlan> cost_of_log(const LogChain& chain, const std::vector<bool>& logged) {
  HOLDFAST_TRY(check(chain));
  if (logged.size() + 1 != chain.replay.size()) {
    return invalid("log: {} borders; expected {}", logged.size(), chain.replay.size() - 1);
  }
  return plan_of(chain, logged);
}

bool keeps_limits(const LogChain& chain, const LogLimits& limits, const LogPlan& plan) {
  const auto groups = groups_of(plan.logged);
  return plan.bytes <= limits.total && std::ranges::all_of(groups, [&](const auto& group) {
           return group_fits(chain, limits, group.first, group.second);
         });
}

Result<LogPlan> plan_log(const LogChain& chain, const LogLimits& limits) {
  HOLDFAST_TRY(check(chain));
  const size_t hosts = chain.replay.size();
  std::vector<std::vector<State>> states(hosts + 1);
  states[0].push_back({});
  for (size_t at = 1; at <= hosts; ++at) {
    std::vector<State> found;
    const int64_t more = at < hosts ? border_bytes(chain, at - 1) : 0;
    for (size_t from = 0; from < at; ++from) {
      if (!group_fits(chain, limits, from, at - 1)) continue;
      const double cost = group_cost(chain, from, at - 1);
      for (size_t before = 0; before < states[from].size(); ++before) {
        const State& old = states[from][before];
        if (old.bytes + more > limits.total) break;  // they are sorted by bytes
        found.push_back({old.bytes + more, old.cost + cost, from, before});
      }
    }
    states[at] = prune(std::move(found), limits.total);
  }
  if (states[hosts].empty()) return no_plan(limits);
  std::vector<bool> logged(hosts - 1);
  size_t at = hosts, place = states[hosts].size() - 1;  // the last one costs least
  while (at > 0) {
    const State& state = states[at][place];
    if (state.from > 0) logged[state.from - 1] = true;
    at = state.from;
    place = state.before;
  }
  return plan_of(chain, std::move(logged));
}

Result<LogPlan> plan_log_greedily(const LogChain& chain, const LogLimits& limits) {
  HOLDFAST_TRY(check(chain));
  LogPlan plan = plan_of(chain, std::vector<bool>(chain.replay.size() - 1, true));
  while (!keeps_limits(chain, limits, plan)) {
    if (groups_of(plan.logged).size() == 1) return no_plan(limits);
    plan.logged[cheapest_border(chain, plan.logged)] = false;
    plan = plan_of(chain, std::move(plan.logged));
  }
  return plan;
}

}  // namespace holdfast
