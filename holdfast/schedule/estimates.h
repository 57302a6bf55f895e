// What a running job learns: what a save costs, how long a step takes, and how often
// the checkpoint is needed. These classes get values from outside and read no clock.
// All times are in seconds.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace holdfast {

inline constexpr double kSecondsPerDay = 86400;

// The last values of a measurement, at most 64. Ignores values that are negative or
// NaN.
class Window {
 public:
  void add(double value);
  bool empty() const { return count_ == 0; }
  size_t size() const { return count_; }
  double mean() const;

 private:
  std::array<double, 64> values_{};
  size_t count_ = 0, next_ = 0;
};

// Stall and persist time of saves. The first save of a process sets up things that
// later saves find ready, so it counts only until there is a second one.
class SaveCosts {
 public:
  void stalled(double seconds);
  void persisted(double seconds);

  // The means. Schedules are computed from means because their cost is linear in stall
  // and persist time.
  double stall() const;
  double persist() const;
  bool stall_known() const { return stalled_once_; }
  bool persist_known() const { return persisted_once_; }

 private:
  Window stalls_, persists_;
  double first_stall_ = 0, first_persist_ = 0;
  bool stalled_once_ = false, persisted_once_ = false;
};

// The time of a training step without stalls. Steps during which a save was in flight
// are measured separately.
class StepTimes {
 public:
  void add(double seconds, bool persisting);
  double step() const { return idle_.average; }
  // How much longer steps take while a save is in flight, as far as it is beyond doubt:
  // 0.05 is 5 %. It is 0 until both kinds of steps were measured. Steps that differ by
  // chance must not look like a slowdown, because it counts as a stall and makes
  // intervals longer.
  double slowdown() const;

 private:
  struct Average {
    double average = 0, variance = 0;
    int64_t count = 0;
    void add(double value);
    // The variance of the average itself.
    double doubt() const { return variance / static_cast<double>(count); }
  };
  Average idle_, busy_;
};

// The rate of failures that need the checkpoint, per worker and second. It combines a
// prior, one Gamma distribution or a mixture of several, with the failures and
// worker-seconds that were seen. rate() is the mean of the posterior, which is the best
// estimate to choose an interval with, because costs are linear in the rate.
class FailureRate {
 public:
  // The prior counts like `worth` failures.
  FailureRate(double mtbf_of_worker, double worth);
  // The prior for a job whose failure rate nobody has stated: in the mean one failure a
  // week, and one in 400 days for each worker. The true rate may be thousands of times
  // higher, so the prior is a mixture of ever higher and ever less likely rates, and two
  // failures in a short time outweigh it.
  static FailureRate unknown(int64_t workers);

  // Adds time during which failures could happen. Time in which the job was down must
  // not be added.
  void exposed(double worker_seconds);
  void failed(double count = 1) { failures_ += count; }

  double rate() const;
  double failures() const { return failures_; }
  double exposure() const { return exposure_; }

 private:
  // A Gamma distribution of the mixture: its shape is `worth_`.
  struct Part {
    double share;  // its weight; the weights need not add up to 1
    double time;   // in worker-seconds, as if `worth_` failures had been seen in them
  };

  double worth_;
  std::vector<Part> parts_;
  double failures_ = 0, exposure_ = 0;
};

}  // namespace holdfast
