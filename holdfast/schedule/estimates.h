// What a running job teaches: what a save costs, how long a step takes, how often the
// checkpoint is needed. Plain values fed from outside; times are seconds.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace holdfast {

// The last values of something, at most 64. What is negative or no number is ignored.
class Window {
 public:
  void add(double value);
  bool empty() const { return count_ == 0; }
  size_t size() const { return count_; }
  double mean() const;
  // 0.5 is the median; of few values the greatest stand for the tail.
  double quantile(double share) const;

 private:
  std::array<double, 64> values_{};
  size_t count_ = 0, next_ = 0;
};

// Stall and persist time of saves. The first save of a process sets up what later ones
// find ready, so it counts only until there is another.
class SaveCosts {
 public:
  void stalled(double seconds);
  void persisted(double seconds);

  // Costs are linear in them, so that plans want the means.
  double stall() const;
  double persist() const;
  double stall_quantile(double share) const { return stalls_.quantile(share); }
  double persist_quantile(double share) const { return persists_.quantile(share); }
  bool stall_known() const { return stalled_once_; }
  bool persist_known() const { return persisted_once_; }

 private:
  Window stalls_, persists_;
  double first_stall_ = 0, first_persist_ = 0;
  bool stalled_once_ = false, persisted_once_ = false;
};

// The time of a step, with stalls taken off, apart for steps beside a save in flight.
class StepTimes {
 public:
  void add(double seconds, bool persisting);
  double step() const { return idle_.average; }
  // How much longer steps are beside a save in flight: 0.05 is 5 %. 0 until both are
  // known.
  double slowdown() const;

 private:
  struct Average {
    double average = 0;
    int64_t count = 0;
    void add(double value);
  };
  Average idle_, busy_;
};

// Failures that need the checkpoint, per worker and second: a Gamma prior, and the
// failures and worker-seconds seen. The posterior's mean is the best plug-in, since costs
// are linear in the rate.
class FailureRate {
 public:
  // The prior is worth so many failures; without knowledge a quarter of one.
  FailureRate(double mtbf_of_worker, double worth);
  // Of a job whose failures nobody has stated: one a week, and one in 400 days a worker.
  static FailureRate unknown(int64_t workers);

  // Downtime is no exposure.
  void exposed(double worker_seconds);
  void failed(double count = 1) { failures_ += count; }

  double rate() const { return (worth_ + failures_) / (prior_ + exposure_); }
  double failures() const { return failures_; }
  double exposure() const { return exposure_; }

 private:
  double worth_, prior_;
  double failures_ = 0, exposure_ = 0;
};

}  // namespace holdfast
