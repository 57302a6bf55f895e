// Runs a job many times on paper, with failures, under several plans at once.
//
// Every plan meets the same failures: run r of all of them draws from stream r of the
// seed. A failure can strike during work and stalls, not during a restart; the job goes on
// from the last durable save, with nothing in flight; a save waits until the previous one
// is durable. Same seed, same bits on any machine.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "holdfast/schedule/problem.h"

namespace holdfast {

struct FailureModel {
  enum class Kind {
    kExponential,  // the problem's rate, by the workers at work
    kWeibull,  // each worker renews after a failure; `shape` < 1: the young fail more
    kTrace,    // at these wall times; run 0 from the start, others from anywhere in it
    kEvery,    // one every `period`; runs begin at all its phases in turn
    kOnce,     // one in the first `share` of the work, evenly over the runs
    kNever,
  };
  Kind kind = Kind::kExponential;
  double shape = 0.7;
  double age = 0;  // kWeibull: of every worker at the start, in seconds
  std::vector<double> trace{};
  double trace_length = 0;  // 0: up to its last failure
  double period = 0;
  std::optional<double> phase{};  // kEvery: this share of the period, in every run
  double share = 1;
};

struct SimulateOptions {
  int64_t runs = 10000;
  uint64_t seed = 1;
  FailureModel failures{};
  // Stop every run at this wall time; without it by the problem's rate of stops, if any.
  std::optional<double> stop_at{};
};

struct Contestant {
  std::string name;
  Schedule schedule;
};

enum class Metric {
  kTime,           // wall time beyond the work: stalls, work done again, restarts
  kWorkerSeconds,  // the same, of all workers
  kProgress,       // loss not taken off: COCI's P_s + P_r
  kPriced,         // the same of rollbacks, and what saves cost as kPriced has it
  kProgressUntilStop,
  kInHand,   // at a stop: loss missing from the state in memory,
  kDurable,  // and from the newest durable one
};
inline constexpr size_t kMetrics = 7;
std::string_view name_of(Metric metric);

struct Summary {
  double mean = 0, half = 0;  // mean +- half is the 95 % confidence interval
  double median = 0;
};

struct Simulated {
  std::string name;
  int64_t planned_saves = 0;
  double saves = 0, failures = 0;  // a run, in the mean
  // What kTime is made of, in seconds a run; restarts are the rest.
  double stalled = 0, redone = 0;
  int64_t unfinished = 0;  // runs given up after 10,000 failures
  std::array<Summary, kMetrics> metrics{};
  // Of the differences to the first contestant, run by run.
  std::array<Summary, kMetrics> against_first{};

  const Summary& at(Metric metric) const {
    return metrics[static_cast<size_t>(metric)];
  }
  const Summary& difference(Metric metric) const {
    return against_first[static_cast<size_t>(metric)];
  }
};

// Fails with kInvalid on a bad problem, model or number of runs.
Result<std::vector<Simulated>> simulate(const Problem& problem,
                                        std::span<const Contestant> contestants,
                                        const SimulateOptions& options);

// The expected wall time for exponential failures, exactly; nothing if saves take time to
// persist or workers change.
std::optional<double> expected_time(const Problem& problem, const Schedule& schedule);

}  // namespace holdfast
