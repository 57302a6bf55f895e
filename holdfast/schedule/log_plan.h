// Which messages of a pipeline to log, if there is no room for all of them.
//
// Hosts stand in a row, and each sends to its neighbours. A border between two hosts is logged or
// not. Hosts between two logged borders are a group: if one of them is lost, all of its
// group make the steps since the newest checkpoint again, one after the other, and tell each other
// what crosses the borders inside. So fewer logged borders need less room, and a loss costs more.
//
//   minimise  sum over groups [i..j] of (rate_i + ... + rate_j) * R(i..j),
//             R(i..j) = replay_i + ... + replay_j + bytes of the borders inside / bandwidth
//   such that the logs of all hosts, and of each host, keep their limits
//
// With micro-batches, hosts of a group work at the same time, as in the pipeline: instead of the sum of their
// replay times, the longest one counts, times 1 + (hosts - 1) / micro-batches.
//
// plan_log() solves this with a table by host of the best cost for each number of bytes. plan_log_greedily()
// is the rule of SWIFT, to be compared: at first all borders are logged, and as long as that is too much, the two
// neighbouring groups with the least price are joined,
//
//   price = (2 R(both) - R(left one) - R(right one)) / bytes that go right over the border between them.
//
// The price above is the rule of SWIFT's public code: it counts each group as one host,
// hosts as equally often lost, and only the bytes that go right. So the sums are wrong for
// groups of several hosts. The plan that is returned has the true cost and bytes, and
// keeps the limits.
//
// Pure functions: the same input gives the same plan everywhere.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "holdfast/base/result.h"

namespace holdfast {

// A row of hosts. A message is logged by its sender until the next checkpoint.
struct LogChain {
  std::vector<double> replay{};  // seconds in which a host makes a step again, by host
  std::vector<double> rate{};    // how often a host is lost; only their ratios count
  std::vector<int64_t> right{};  // bytes a step from host k to host k + 1, by border
  std::vector<int64_t> left{};   // bytes a step from host k + 1 to host k
  double bandwidth = 0;          // bytes a second between two hosts
  int64_t steps = 1;             // between two checkpoints
  int64_t micro_batches = 0;     // of a step; 0 if hosts of a group work one after the other
};

struct LogLimits {
  int64_t total = std::numeric_limits<int64_t>::max();  // bytes of all logs
  int64_t host = std::numeric_limits<int64_t>::max();   // bytes of the log of one host
  int64_t group = std::numeric_limits<int64_t>::max();  // hosts of one group
};

struct LogPlan {
  std::vector<bool> logged{};  // by border
  int64_t bytes = 0;           // of all logs, at most
  double seconds = 0;          // to make one step again after a loss, on average

  friend bool operator==(const LogPlan&, const LogPlan&) = default;
};

// kInvalid if the numbers of hosts and borders do not fit, or one is not a number of its
// kind. Logging nothing keeps the limits of bytes, so there is always a plan, unless there is a limit to
// groups: then kNotFound.
Result<LogPlan> plan_log(const LogChain& chain, const LogLimits& limits = {});
Result<LogPlan> plan_log_greedily(const LogChain& chain, const LogLimits& limits = {});

// What the plan costs that logs these borders; kInvalid as above. Does not look at limits.
Result<LogPlan> cost_of_log(const LogChain& chain, const std::vector<bool>& logged);
// Whether the plan keeps the limits.
bool keeps_limits(const LogChain& chain, const LogLimits& limits, const LogPlan& plan);

}  // namespace holdfast
