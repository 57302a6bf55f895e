// Simulates a job many times, with failures, under several schedules.
//
// Every schedule meets the same failures: run r of all schedules uses stream r of the
// seed. A failure can happen during work and stalls, but not during a restart. After a
// failure the job continues from the last durable save, with nothing in flight. A save
// waits until the previous one is durable. The same seed gives the same bits on any
// machine.
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
    kExponential,  // at the problem's rate, in proportion to the workers
    kWeibull,      // each worker is renewed by a failure; shape < 1: new ones fail more
    kTrace,  // at given wall times; runs after the first begin anywhere in the trace
    kEvery,  // one every `period` of work; runs begin at different phases of it
    kOnce,   // one in the first `share` of the work, evenly over the runs
    kNever,
  };
  Kind kind = Kind::kExponential;
  double shape = 0.7;
  // For kWeibull: the age of every worker at the start, in seconds.
  double age = 0;
  std::vector<double> trace{};
  // 0 means that the trace ends with its last failure.
  double trace_length = 0;
  double period = 0;
  // For kEvery: a fixed share of the period at which the first failure happens, in
  // every run.
  std::optional<double> phase{};
  double share = 1;
};

struct SimulateOptions {
  int64_t runs = 10000;
  uint64_t seed = 1;
  FailureModel failures{};
  // If set, every run is stopped at this wall time. Otherwise runs are stopped at the
  // problem's rate of stops, if it has one.
  std::optional<double> stop_at{};
};

// A schedule that takes part in a simulation, under the name that the report shows.
struct NamedSchedule {
  std::string name;
  Schedule schedule;
};

enum class Metric {
  kTime,           // wall time beyond the work: stalls, repeated work and restarts
  kWorkerSeconds,  // the same in worker-seconds
  kProgress,  // progress of the loss that stalls and rollbacks cost: COCI's P_s + P_r
  kPriced,    // progress that rollbacks cost, and the price of saves (kPriced)
  kProgressUntilStop,
  kInHand,   // at a stop: the progress that is missing from the state in memory
  kDurable,  // at a stop: the progress that is missing from the newest durable state
};
inline constexpr size_t kMetrics = 7;
std::string_view name_of(Metric metric);

struct Summary {
  double mean = 0, half = 0;  // mean +- half is the 95 % confidence interval
  double median = 0;
};

// What a schedule cost the job in all runs of a simulation.
struct SimulatedSchedule {
  std::string name;
  // The saves of a run without failures. Repeated work repeats its saves.
  int64_t scheduled_saves = 0;
  // The mean number of saves and failures of a run.
  double saves = 0, failures = 0;
  // The mean seconds of a run that are stalls and repeated work. The rest of kTime is
  // restarts.
  double stalled = 0, redone = 0;
  // How many runs were given up after 10,000 failures.
  int64_t unfinished = 0;
  std::array<Summary, kMetrics> metrics{};
  // Summaries of the differences to the first schedule, taken run by run.
  std::array<Summary, kMetrics> against_first{};

  const Summary& at(Metric metric) const {
    return metrics[static_cast<size_t>(metric)];
  }
  const Summary& difference(Metric metric) const {
    return against_first[static_cast<size_t>(metric)];
  }
};

// Fails with kInvalid if the problem, the failure model or the number of runs is bad.
Result<std::vector<SimulatedSchedule>> simulate(
    const Problem& problem, std::span<const NamedSchedule> schedules,
    const SimulateOptions& options);

// The exact expected wall time for exponential failures. Returns nullopt if a save
// begins before the previous one is durable, or if the number of workers changes.
std::optional<double> expected_time(const Problem& problem, const Schedule& schedule);

}  // namespace holdfast
