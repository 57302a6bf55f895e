// Decides, step by step, when a running job saves.
//
// The caller reports what happens. The scheduler measures what saves cost, how often
// the checkpoint is needed and how the loss falls. After every step it answers one
// question: save now?
//
//   Scheduler scheduler = HOLDFAST_TRY(Scheduler::create({.every = cadence}));
//   scheduler.start(first_step, env.now());
//   for each step:
//     if (scheduler.step(step, env.now())) {       // < 2 us when nothing is due
//       log(scheduler.reason());                   // one line
//       ... save; then:
//       scheduler.captured(step, stall);           // training continues
//       scheduler.durable(step, persist, bytes);   // later; or dropped(step)
//     }
//     scheduler.loss(step, value);                 // every k-th step, if there is a
//     loss
//
// One process (rank 0) decides for all and sends the answer to the others, because
// clocks and losses differ between ranks. "N steps" saves after the steps N-1, 2N-1,
// ... whatever else was saved. A time is counted from the start of the last save.
// Policies count work and not wall time. They fix only the next save, which is one
// interval after the last one.
//
// The policy auto (the default) takes the interval of least expected cost if a failure
// rate is known: stated as `mtbf`, or learned from three failures. While none is known,
// it takes at most 5 minutes, and early in training a quarter of the work done so far,
// but at least 10 s. This protection costs at most 0.2 % of the time more than the best
// interval for a guessed rate, which falls in time without failures: where a stall is so
// long that it would cost more, saves are rarer. A save is in flight at most 20 % of the
// time (duty). reason() says which of these rules decided, and what protection costs.
//
// The scheduler uses no clock, file or thread. It is not thread safe. Bad values (a
// loss that is not a number, a time that runs back) are ignored and never cause a
// failure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "holdfast/schedule/cadence.h"
#include "holdfast/schedule/estimates.h"
#include "holdfast/schedule/loss_fit.h"
#include "holdfast/schedule/problem.h"

namespace holdfast {

// What is known after a process has ended, for start() of the next process.
struct Learned {
  double failures = 0;  // after which the job went back to a checkpoint
  double worker_seconds = 0;
  double stall = 0, persist = 0;  // 0 if none was measured
  double recovered = 0;  // deaths after which the other ranks went on; they set no interval
};

class Scheduler {
 public:
  // Fails with kInvalid for negative rates, NaN, and options that contradict each
  // other.
  static Result<Scheduler> create(SchedulerOptions options);

  // Starts the clocks. `step` is the next step to be run. `resumed` says that the state
  // before it is durable. Call it again after each restart in the same process.
  void start(int64_t step, Instant now, bool resumed = false,
             const Learned& learned = {});

  // Reports that the step is done. Returns true if its state must be saved now.
  bool step(int64_t step, Instant now);
  // Whether the last call of step() returned true for a durable step or the deadline,
  // and not for the cadence.
  bool is_obliged() const { return obliged_; }
  // Why the last call of step() returned true: one line for the log.
  const std::string& reason() const { return reason_; }
  // The interval, why it was chosen, and what was measured: one line.
  std::string explain() const;

  void loss(int64_t step, double loss);
  void captured(int64_t step, Duration stall);
  void durable(int64_t step, Duration persist, int64_t bytes = 0);
  // Reports that a save was skipped or has failed. It is tried again after an eighth of
  // the interval.
  void dropped(int64_t step);
  // Reports that a save begins which the scheduler did not ask for. captured(),
  // durable() or dropped() follow.
  void saved_elsewhere(int64_t step);
  // Reports a failure. `needed_checkpoint` is false if the state was repaired from
  // memory, or if there was notice enough to save: such failures do not count.
  void failed(bool needed_checkpoint = true);
  void set_workers(int64_t workers);

  // The work between two saves in seconds. Infinity for "N steps".
  double interval() const { return interval_; }
  Learned learned() const;

 private:
  explicit Scheduler(SchedulerOptions options);

  // scheduler.cpp: clocks, and what makes a save due.
  void tick(int64_t step, Instant now);
  bool due(int64_t step, Instant now);
  bool due_by_cadence(int64_t step, Instant now);
  bool due_by_obligation(int64_t step, Instant now);
  void begin_save(int64_t step, Instant now);
  // The seconds since start().
  double since(Instant now) const;

  // scheduler_interval.cpp: chooses the interval.
  void update_interval();
  struct Choice {
    double interval;
    std::string why;
  };
  Choice choose();
  Choice choose_auto();
  Choice choose_best();
  Choice choose_safe() const;
  Choice choose_delay(std::string_view why, double danger) const;
  std::optional<Choice> choose_by_curve(Objective objective);
  Choice choose_coci();
  Choice limit_interval(Choice choice) const;
  Choice limit_writing(Choice choice) const;
  Choice lengthen(Choice choice, double least, double longest,
                  const std::string& limit) const;
  Choice longest_safe() const;
  Choice shortest_affordable() const;
  std::string price_text(double interval) const;
  // The interval that is at least `least` when it ends with the nearest step.
  double at_least(double least) const { return least + steps_.step() / 2; }
  Problem problem(const FittedCurve& fit, Objective objective) const;
  double remaining_work() const;
  double stall() const;
  double persist() const;
  double mtbf() const;
  // The mean time between failures and, if a stop without notice costs as much as a
  // failure, such stops.
  double danger() const;
  Objective objective() const;
  // Whether the interval depends on the curve of the loss, which takes time to fit.
  bool uses_curve() const;
  // Whether the failure rate is stated or was learned from enough failures.
  bool knows_rate() const;
  // Whether auto protects the job because no failure rate is known.
  bool protects() const;

  SchedulerOptions options_;
  SaveCosts costs_;
  StepTimes steps_;
  FailureRate failures_;
  LossFit losses_;
  std::optional<FittedCurve> fit_;
  // What earlier processes have measured.
  Learned before_;

  Instant started_{}, last_{};
  Duration pending_stall_{};
  double work_ = 0;           // the work clock
  double anchor_ = 0;         // the work clock at the last save
  double anchor_before_ = 0;  // the work clock at the save before the last
  double not_before_ = 0;  // after a dropped save, the earliest work clock for a save
  Instant anchor_time_{};
  double next_ = 0;         // the work clock at which the next save is due
  double next_update_ = 0;  // the work clock at which the interval is chosen again
  double interval_ = 0;
  // Stall and persist time for which the interval was chosen.
  double chosen_for_stall_ = 0, chosen_for_persist_ = 0;
  int64_t first_step_ = 0, last_step_ = -1, highest_loss_step_ = -1;
  size_t next_must_ = 0, next_milestone_ = 0;
  int64_t saves_ = 0, bytes_ = 0;
  bool running_ = false;
  bool has_durable_ = false, in_flight_ = false, deadline_met_ = false;
  bool uneven_ = false;  // whether the last schedule from the curve was uneven
  bool stale_ = true;    // new facts are known: choose the interval at the next step
  std::string why_, reason_;
  bool obliged_ = false;
};

}  // namespace holdfast
