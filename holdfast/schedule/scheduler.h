// Decides, step by step, when a running job saves.
//
// The caller tells it what happens; it measures what saves cost, how often the checkpoint
// is needed and how the loss falls, and answers one question after every step: save now?
//
//   Scheduler scheduler = HOLDFAST_TRY(Scheduler::create({.every = cadence}));
//   scheduler.start(first_step, env.now());
//   for each step:
//     if (scheduler.step(step, env.now())) {       // < 2 us when nothing is due
//       log(scheduler.reason());                   // one line
//       ... save; then:
//       scheduler.captured(step, stall);           // training went on
//       scheduler.durable(step, persist, bytes);   // later; or dropped(step)
//     }
//     scheduler.loss(step, value);                 // every k-th step, where there is one
//
// One process decides for all (rank 0), and sends the answer: clocks and losses of others
// differ. "N steps" saves after steps N-1, 2N-1, ... whatever else was saved; a time runs
// from the start of the last save. Policies measure work, not wall time: the next save
// stands one interval after the last one, and only this next one is ever fixed.
//
// Pure: knows no clock, file or thread. Not thread safe. Bad values (a loss that is no
// number, a time that runs back) are left out, never fatal.
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

struct SchedulerOptions {
  Cadence every = Policy::kAuto;
  // By default explore if something may stop the job (a deadline, a stop rate, steps that
  // must be durable), else delay.
  std::optional<Objective> objective{};
  // Seconds between failures of the whole job with `workers`; without it a prior. Either
  // gives way to what is seen.
  std::optional<double> mtbf{};
  int64_t workers = 1;
  std::optional<int64_t> total_steps{};
  // So many saves in all until total_steps.
  std::optional<int64_t> budget{};
  // The interval is the longest that costs this share of wall time more than the best.
  double slack = 0.001;
  // Limits of auto: the share of time in which a save may be under way, and what may be
  // written a day, as durable() counts bytes.
  double duty = 0.5;
  double bytes_a_day = 4e12;

  // What may stop the job: a rate per second, the share of such stops without notice,
  // seconds after start() at which it ends for good.
  double stop_rate = 0;
  double hard = 1;
  std::optional<double> deadline{};
  // These steps are durable before the next one begins (a tuner decides then); if there is
  // notice, they are saved when reached.
  std::vector<int64_t> durable_steps{};
  bool durable_steps_hard = true;
  // The learning rate drops after these.
  std::vector<int64_t> milestones{};
};

// What outlives a process, for start() of the next.
struct Learned {
  double failures = 0;
  double worker_seconds = 0;
  double stall = 0, persist = 0;  // 0 if none was measured
};

class Scheduler {
 public:
  // Fails with kInvalid on negative rates, NaN, and options that contradict each other.
  static Result<Scheduler> create(SchedulerOptions options);

  // `step` is the next to be run. `resumed`: the state before it is durable. Again after
  // each restart in the same process.
  void start(int64_t step, Instant now, bool resumed = false,
             const Learned& learned = {});

  // The step is done. True if its state is to be saved now.
  bool step(int64_t step, Instant now);
  // Why the last step() said yes: one line for the log.
  const std::string& reason() const { return reason_; }
  // The interval, what it follows from and what was measured: one line.
  std::string explain() const;

  void loss(int64_t step, double loss);
  void captured(int64_t step, Duration stall);
  void durable(int64_t step, Duration persist, int64_t bytes = 0);
  // It was skipped or failed. Tried again after an eighth of the interval.
  void dropped(int64_t step);
  // A save that it did not ask for begins; captured(), durable() or dropped() follow.
  void saved_elsewhere(int64_t step);
  // Mended from memory or with notice enough to save is no failure to the disk.
  void failed(bool needed_checkpoint = true);
  void set_workers(int64_t workers);

  // Work between two saves, in seconds; infinity for "N steps".
  double interval() const { return interval_; }
  Learned learned() const;

 private:
  explicit Scheduler(SchedulerOptions options);

  // scheduler.cpp: clocks and triggers.
  void tick(int64_t step, Instant now);
  bool due(int64_t step, Instant now);
  bool due_by_cadence(int64_t step, Instant now);
  bool due_by_must(int64_t step, Instant now);
  void begin_save(int64_t step, Instant now);
  double since(Instant now) const;  // seconds since start()

  // scheduler_plan.cpp: the interval.
  void replan();
  struct Choice {
    double interval;
    std::string why;
  };
  Choice choose();
  Choice choose_auto();
  Choice choose_delay(std::string_view why, double stops);
  std::optional<Choice> choose_by_curve(Objective objective);
  Choice choose_coci();
  Choice limited(Choice choice) const;
  Problem problem(const FittedCurve& fit, Objective objective) const;
  double remaining_work() const;
  double stall() const;
  double persist() const;
  double mtbf() const;
  Objective objective() const;

  SchedulerOptions options_;
  SaveCosts costs_;
  StepTimes steps_;
  FailureRate failures_;
  LossFit losses_;
  std::optional<FittedCurve> fit_;
  Learned before_;  // what an earlier process measured

  Instant started_{}, last_{};
  Duration pending_stall_{};
  double work_ = 0;           // the work clock
  double anchor_ = 0;         // of the last save
  double anchor_before_ = 0;  // of the one before
  double not_before_ = 0;     // after one was dropped
  Instant anchor_time_{};
  double next_ = 0;        // save when the work clock gets here
  double plan_again_ = 0;  // or at the latest look at the plan then
  double interval_ = 0;
  double planned_stall_ = 0, planned_persist_ = 0;  // what the plan was made with
  int64_t first_step_ = 0, last_step_ = -1, highest_loss_step_ = -1;
  size_t next_must_ = 0, next_milestone_ = 0;
  int64_t saves_ = 0, bytes_ = 0;
  bool running_ = false;
  bool has_durable_ = false, in_flight_ = false, deadline_met_ = false;
  bool uneven_ = false;  // the last plan by the curve was
  bool stale_ = true;    // something was learned: plan at the next step
  std::string why_, reason_;
};

}  // namespace holdfast
