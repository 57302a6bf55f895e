#include "holdfast/job/job.h"

#include <fmt/format.h>

#include <algorithm>

#include "holdfast/base/event_log.h"

namespace holdfast {
namespace {

constexpr Tag kLookTag = 0x480c;
// A save that failed is made again after this time, if none is due before.
constexpr Duration kRetry = std::chrono::seconds(30);
// Until the scheduler has learned something.
constexpr Duration kUnlearned = std::chrono::minutes(10);

Result<Path> newest_whole(Env& env, const Path& path) {
  const Run run = HOLDFAST_TRY(Run::open(env, path));
  return HOLDFAST_TRY(run.newest_whole(Depth::kFast)).step.folder;
}

// The job goes on without one if need be; a directory that cannot be written to fails when
// the saver opens it.
std::unique_ptr<EventSink> open_log(Env& env, const Path& run, int rank,
                                    const JobOptions& options) {
  const Path folder = run / "events";
  if (options.saver.events != nullptr || !env.create_folders(folder).ok())
    return nullptr;
  auto log = JsonLinesSink::open(env, folder / fmt::format("rank-{:04}.jsonl", rank));
  return log.ok() ? *std::move(log) : nullptr;
}

JobOptions with_log(JobOptions options, EventSink* log) {
  if (options.saver.events == nullptr) options.saver.events = log;
  return options;
}

Duration interval_of(const Cadence& every) {
  const auto* const time = std::get_if<EveryTime>(&every);
  return time != nullptr ? time->time : kUnlearned;
}

}  // namespace

Job::Job(Env& env, const Path& run, Transport* transport, JobOptions options)
    : env_(env),
      transport_(transport),
      log_(open_log(env, run, transport == nullptr ? 0 : transport->rank(), options)),
      options_(with_log(std::move(options), log_.get())),
      gatherer_(env, transport, options_.saver.agree_within),
      agenda_(
          env, transport,
          [this](int64_t first, int64_t last) { return decide(first, last); },
          options_.saver.agree_within + options_.saver.write_within),
      look_(env, transport, kLookTag),
      saved_at_(env.now()) {}

Job::~Job() = default;

Result<std::unique_ptr<Job>> Job::open(Env& env, const Path& run, Transport* transport,
                                       JobOptions options) {
  std::unique_ptr<Job> job(new Job(env, run, transport, std::move(options)));
  job->saver_ = HOLDFAST_TRY(Saver::open(env, run, transport, job->options_.saver));
  if (job->options_.signals) job->signals_ = std::make_unique<StopSignals>();
  return job;
}

Result<void> Job::attach(const std::vector<HeldPiece>& pieces) {
  const LocalState state = HOLDFAST_TRY(gatherer_.gather(pieces, true));
  return saver_->prepare(state);
}

Result<StepFiles> Job::look() {
  Message found{.serial = ++looks_, .kind = "look"};
  if (look_.coordinator()) {
    const Result<Path> newest = newest_whole(env_, saver_->run());
    if (newest.ok()) found.text = newest->filename().native();
    if (!newest.ok()) found.error = newest.error();
    HOLDFAST_TRY(look_.tell_all(found, options_.saver.agree_within));
  } else {
    found = HOLDFAST_TRY(look_.hear(looks_, options_.saver.agree_within));
  }
  if (found.error.has_value()) return *found.error;
  return open_step(env_, saver_->run() / found.text);
}

Result<RestoredState> Job::resume(const std::vector<HeldPiece>& pieces,
                                  const RestoreOptions& options) {
  saver_->settle();
  // Values are about to be overwritten: replicas need not be equal yet.
  const LocalState state = HOLDFAST_TRY(gatherer_.gather(pieces, false));
  RestoredState restored =
      HOLDFAST_TRY(restore(env_, saver_->run(), state, transport_, options));
  parent_ = restored.folder.filename().native();
  saved_step_ = restored.step;
  saved_at_ = env_.now();
  HOLDFAST_TRY(saver_->prepare(state));
  return restored;
}

Result<Due> Job::due(int64_t step) {
  if (signals_ != nullptr && !asked_) {
    if (const std::optional<int> signal = signals_->caught()) {
      asked_ = true;
      HOLDFAST_TRY(agenda_.ask_to_stop(fmt::format("signal {}", *signal)));
    }
  }
  return agenda_.at(step);
}

// Why a save that was made does not count, if so.
std::optional<std::string> Job::wanted_again() {
  if (!newest_.has_value() || !newest_->is_done() || newest_->durable().ok()) {
    return std::nullopt;
  }
  if (newest_->is_torn()) return "the last one was torn";
  if (env_.now() - saved_at_ < kRetry) return std::nullopt;
  return "the last one failed";
}

std::optional<Appointment> Job::decide(int64_t first, int64_t last) {
  std::optional<Appointment> found;
  if (const std::optional<std::string> why = wanted_again()) {
    found = {.step = first, .due = {.save = true, .why = *why}};
    newest_.reset();
  } else if (const auto* const steps = std::get_if<EverySteps>(&options_.every)) {
    // After step n - 1, n steps are done.
    const int64_t next = (std::max(saved_step_, first - 1) + 1) / steps->steps + 1;
    const int64_t step = next * steps->steps - 1;
    if (step <= last) {
      found = {.step = step, .due = {.save = true, .why = to_string(options_.every)}};
    }
  } else if (env_.now() - saved_at_ >= interval_of(options_.every)) {
    found = {.step = first, .due = {.save = true, .why = to_string(options_.every)}};
  }
  if (found.has_value()) {
    saved_step_ = found->step;
    saved_at_ = env_.now();
  }
  return found;
}

Result<SaveHandle> Job::save(const JobState& job) {
  static_cast<void>(settle());
  const LocalState state = HOLDFAST_TRY(gatherer_.gather(job.pieces, false));
  SaveHandle handle = HOLDFAST_TRY(saver_->save({.step = job.step,
                                                 .state = &state,
                                                 .objects = job.objects,
                                                 .rank_objects = job.rank_objects,
                                                 .metrics = job.metrics,
                                                 .parallel = job.parallel,
                                                 .parent = parent_}));
  saved_step_ = std::max(saved_step_, job.step);
  saved_at_ = env_.now();
  newest_ = handle;
  return handle;
}

Result<Durable> Job::wait_stopped(const SaveHandle& handle) {
  saver_->settle();
  return handle.durable(env_.now() + options_.grace);
}

Settled Job::settle(const std::vector<std::string>& changed) {
  if (options_.saver.guard != Guard::kOff || !newest_.has_value()) {
    return saver_->settle(changed);
  }
  const Instant start = env_.now();  // nothing is compared, but the copy must be there
  static_cast<void>(newest_->captured());
  return {.waited = std::chrono::duration<double>(env_.now() - start).count()};
}

Result<void> Job::close(Instant deadline) {
  signals_ = nullptr;
  return saver_->close(deadline);
}

}  // namespace holdfast
