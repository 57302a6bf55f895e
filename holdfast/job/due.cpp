// What is due after a step: rank 0 asks its scheduler, and the agenda tells all ranks.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "holdfast/checkpoint/events.h"
#include "holdfast/job/events.h"
#include "holdfast/job/job_core_internal.h"

namespace holdfast {
namespace {

double seconds(Duration time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

void Job::loss(int64_t step, double value) { core_->scheduler_.loss(step, value); }

void Job::want(const std::string& why) {
  if (!core_->retries_.failing()) core_->wanted_ = why;
}

Result<void> Job::ask_to_save(const std::string& why) {
  return core_->agenda_.ask_to_save(why);
}

void Job::change(const std::string& what) { core_->change_ = what; }

void Job::ask_to_stop(const std::string& why) { core_->stop_why_ = why; }

std::string Job::explain() const { return core_->scheduler_.explain(); }

// Called in every step: formats nothing unless the job is to stop.
std::optional<std::string> Job::Core::why_to_stop() const {
  if (stop_why_.has_value() || signals_ == nullptr) return stop_why_;
  const std::optional<int> signal = signals_->caught();
  return signal ? std::optional(fmt::format("signal {}", *signal)) : std::nullopt;
}

Result<Due> Job::due(int64_t step, bool updated) {
  core_->doing_ = {"step ", step};
  core_->reached_ = std::max(core_->reached_, step);
  if (!core_->asked_) {
    if (const std::optional<std::string> why = core_->why_to_stop()) {
      core_->asked_ = true;
      HOLDFAST_TRY(core_->agenda_.ask_to_stop(*why));
    }
  }
  if (core_->ranks_.coordinator() && updated) core_->consult(step);
  Result<Due> due = core_->agenda_.at(step);
  // This runs in every step, so the context is made only for an error.
  if (!due.ok()) {
    return std::move(due).within(core_->doing_.text() + ": waiting for what is due");
  }
  core_->forget_left();
  core_->stopping_ |= due->stop;
  return due;
}

void Job::Core::consult(int64_t step) {
  if (!std::exchange(started_, true)) {
    scheduler_.start(step, env_.now(), resumed_.has_value(), learned_);
  }
  learn_outcome();
  // A cadence in steps is not handled here: decide() knows its steps ahead of time.
  const bool by_steps = std::holds_alternative<EverySteps>(options_.schedule.every);
  if (scheduler_.step(step, env_.now()) && (!by_steps || scheduler_.is_obliged())) {
    if (retries_.failing()) {
      scheduler_.dropped(step);
    } else {
      wanted_ = scheduler_.reason();
    }
  }
  // An error that must end training is reported by a save, because all ranks take part
  // in a save and so fail together.
  if (retries_.is_due(env_.now()) || saver_->has_to_raise()) {
    wanted_ = "the last one failed";
  }
}

// Tells the scheduler and the retries how the newest save ended, once it has ended.
void Job::Core::learn_outcome() {
  if (!newest_.has_value() || !newest_->handle.is_done()) return;
  const Newest save = *std::exchange(newest_, std::nullopt);
  const Result<Durable> outcome = save.handle.durable();
  if (outcome.ok()) {
    retries_.succeeded();
    const Duration persist = save.handle.done_at().value_or(env_.now()) - save.begun;
    emit(warnings_, env_,
         SaveCost{.step = save.step,
                  .stall = seconds(save.stall),
                  .persist = seconds(persist)});
    return scheduler_.durable(save.step, persist, save.bytes);
  }
  scheduler_.dropped(save.step);
  if (save.handle.is_torn()) {
    wanted_ = "the last one was torn, or its replicas differed";
  } else if (may_pass(outcome.error())) {
    retries_.failed(env_.now());
  }
}

std::optional<Appointment> Job::Core::decide(int64_t first, int64_t last) {
  if (change_.has_value()) {
    const std::string what = *std::exchange(change_, std::nullopt);
    return Appointment{.step = first, .due = {.change = true, .why = what}};
  }
  if (wanted_.has_value()) {
    const std::string why = *std::exchange(wanted_, std::nullopt);
    return Appointment{.step = first, .due = {.save = true, .why = why}};
  }
  const auto* const every = std::get_if<EverySteps>(&options_.schedule.every);
  if (every == nullptr || retries_.failing()) return std::nullopt;
  // Steps count from 0: after step n - 1, n steps are done.
  const int64_t done = std::max(appointed_, first - 1) + 1;
  const int64_t step = (done / every->steps + 1) * every->steps - 1;
  if (step > last) return std::nullopt;
  appointed_ = step;
  return Appointment{
      .step = step,
      .due = {.save = true, .why = "every " + to_string(options_.schedule.every)}};
}

}  // namespace holdfast
