#include "holdfast/job/job.h"

#include <fmt/format.h>

#include <algorithm>

#include "holdfast/checkpoint/events.h"
#include "holdfast/checkpoint/step_files.h"
#include "holdfast/checkpoint/wire_tags.h"
#include "holdfast/env/event_log.h"
#include "holdfast/job/events.h"
#include "holdfast/job/job_core_internal.h"
#include "holdfast/schedule/learn.h"
#include "holdfast/store/location.h"
#include "holdfast/store/run.h"
#include "holdfast/transport/late_ranks.h"

namespace holdfast {
namespace {

// Rank 0 sends this word instead of a decision when all ranks must compare replicas
// first.
const char* const kCompare = "compare";
// After so many false alarms saves no longer compare replicas.
constexpr int kFalseAlarms = 3;
// Late ranks are named after this time, long before the ranks that wait give up.
constexpr Duration kLate = std::chrono::seconds(8);

// Learns from the event log of earlier processes. A log that is missing or cannot be
// read is no error: the schedule then starts without experience.
Learned learn_from(Env& env, const Path& run, const Transport* transport) {
  if (transport != nullptr && transport->rank() != 0) return {};
  const Result<EventLog> log = read_events(env, run / event_log_name(0));
  if (!log.ok()) return {};
  return learn(log->events, transport == nullptr ? 1 : transport->size());
}

// Returns null if the log cannot be opened: the job runs without one. If the run
// directory cannot be written to at all, opening the saver fails and reports that.
std::unique_ptr<EventSink> open_log(Env& env, const Path& run, int rank,
                                    const JobOptions& options) {
  const Path path = run / event_log_name(rank);
  if (options.saver.events != nullptr || !env.create_folders(path.parent_path()).ok()) {
    return nullptr;
  }
  auto log = JsonLinesSink::open(env, path);
  return log.ok() ? *std::move(log) : nullptr;
}

JobOptions with_events(JobOptions options, EventSink* events) {
  options.saver.events = events;
  return options;
}

JobOptions with_workers(JobOptions options, const Transport* transport) {
  options.schedule.workers = transport == nullptr ? 1 : transport->size();
  // The policy auto bounds what is written, to each tier.
  if (options.schedule.every == Cadence(Policy::kAuto)) {
    options.saver.tier_duty = options.schedule.duty;
  }
  return options;
}

// What was left in memory is all that the run had, and none of it can be taken. kNotFound
// would let a training begin anew, with tensors that were read in part.
Error none_is_whole(const Path& run, const SkippedStep& newest) {
  return corrupt(
      "{}: no step is whole; the newest, {}: {} (the tensors are undefined now)",
      run.native(), newest.folder, newest.error.message());
}

}  // namespace

Job::Core::Core(Env& env, const Path& run, Transport* transport, JobOptions options,
                Scheduler scheduler)
    : env_(env),
      transport_(transport),
      log_(open_log(env, run, transport == nullptr ? 0 : transport->rank(), options)),
      warnings_(env,
                options.saver.events != nullptr ? options.saver.events : log_.get()),
      options_(with_events(std::move(options), &warnings_)),
      layouts_(env, transport, options_.saver.timeout),
      agenda_(
          env, transport,
          [this](int64_t first, int64_t last) { return decide(first, last); },
          options_.saver.timeout + options_.saver.write_timeout),
      ranks_(env, transport, kFetchTag),
      end_(env, transport, kEndTag, true),
      scheduler_(std::move(scheduler)) {
  if (transport_ == nullptr) return;
  transport_->set_late_watch(
      {.after = std::min(kLate, options_.saver.timeout / 4),
       .tell = [this](const std::vector<int>& missing) { tell_late(missing); }});
}

std::string Job::Core::Doing::text() const {
  return step.has_value() ? fmt::format("{}{}", words, *step) : std::string(words);
}

Job::Core::~Core() {
  if (transport_ != nullptr) transport_->set_late_watch({});
}

void Job::Core::tell_late(const std::vector<int>& missing) {
  const Duration waited = transport_->late_watch().after;
  emit(warnings_, env_,
       RanksLate{.rank = transport_->rank(),
                 .missing = name_ranks(missing),
                 .what = doing_.text(),
                 .seconds = std::chrono::duration<double>(waited).count()});
}

Result<std::unique_ptr<Job>> Job::open(Env& env, const Path& run, Transport* transport,
                                       JobOptions options) {
  HOLDFAST_TRY(check_place(run));
  options = with_workers(std::move(options), transport);
  Scheduler scheduler =
      HOLDFAST_TRY(Scheduler::create(options.schedule).within("schedule"));
  auto core = std::make_unique<Core>(env, run, transport, std::move(options),
                                     std::move(scheduler));
  HOLDFAST_TRY(core->open_run(run));
  return std::unique_ptr<Job>(new Job(std::move(core)));
}

Job::Job(std::unique_ptr<Core> core) : core_(std::move(core)) {}

Job::~Job() = default;

Result<void> Job::Core::open_run(const Path& run) {
  HOLDFAST_TRY(fetch(run));
  SaverOptions options = options_.saver;
  options.known_epoch = HOLDFAST_TRY(greatest_left_epoch(left_epoch(run)));
  saver_ = HOLDFAST_TRY(Saver::open(env_, run, transport_, std::move(options)));
  if (options_.handover) place_.emplace(env_, *options_.handover, run, saver_->run_id());
  const bool joined = HOLDFAST_TRY(meet_ranks(false));
  // A process that replaces another one does not look for a state to adopt.
  if (joined && place_) {
    const Result<std::vector<Step>> left = place_->steps();
    has_left_ = !left.ok() || !left->empty();
  }
  emit(warnings_, env_, JobOpened{.joined = joined});
  // Opening the saver adds an event that says who owned the run before and how that
  // process ended, so the log is read only now.
  learned_ = learn_from(env_, run, transport_);
  if (options_.signals) signals_ = std::make_unique<StopSignals>();
  return {};
}

// Rank 0 copies the newest step from the tiers. The other ranks wait for its result for
// as long as writing a step may take.
Result<void> Job::Core::fetch(const Path& run) {
  const std::vector<std::shared_ptr<StorageTier>> tiers =
      tiers_of(options_.saver.tiers);
  if (tiers.empty()) return {};
  if (!ranks_.coordinator()) return hear_fetched();
  Message message{.serial = kFetchSerial, .kind = "fetch"};
  const FetchOptions how{
      .allow_unreachable_tiers = options_.saver.allow_unreachable_tiers,
      .events = &warnings_};
  Result<Fetched> fetched = fetch_newest(env_, run, tiers, how);
  if (!fetched.ok()) message.error = fetched.error();
  HOLDFAST_TRY(ranks_.tell_all(message, options_.saver.timeout));
  fetched_ = HOLDFAST_TRY(std::move(fetched));
  return {};
}

Result<void> Job::check_new(std::string_view expected) {
  std::string newest;
  const auto step = core_->ranks_.coordinator()
                        ? greatest_step(core_->env_, core_->saver_->run())
                        : std::nullopt;
  if (step) newest = step->text();
  // Each host has a memory of its own. What cannot be read there may be a step.
  const auto left = core_->place_ ? core_->place_->steps() : std::vector<Step>();
  if (newest.empty() && !left.ok()) newest = core_->place_->path();
  if (newest.empty() && left.ok() && !left->empty()) newest = left->front().folder;
  const std::vector<Bytes> all = HOLDFAST_TRY(gather(std::as_bytes(std::span(newest))));
  const auto said =
      std::ranges::find_if(all, [](const Bytes& one) { return !one.empty(); });
  if (said == all.end()) return {};
  return invalid("{}: {} is there already; expected {}", core_->saver_->run().native(),
                 text_of(*said), expected);
}

Result<void> Job::attach(const LocalPieces& pieces, CudaStream stream,
                         const OwnPieces& own) {
  core_->doing_ = {"the first look at the state"};
  static_cast<void>(settle({}, stream));
  LocalState state =
      HOLDFAST_TRY(core_->layouts_.agree(pieces, own == nullptr, stream));
  if (own != nullptr && core_->transport_ != nullptr) {
    const LocalPieces separated =
        HOLDFAST_TRY(core_->separate_replicas(pieces, state, own, stream));
    state = HOLDFAST_TRY(core_->layouts_.agree(separated, false));
  }
  return core_->saver_->prepare(state);
}

// Compares all replicas. Returns the pieces as they are if the replicas are equal, and
// what `own` makes of them otherwise.
Result<LocalPieces> Job::Core::separate_replicas(const LocalPieces& pieces,
                                                 const LocalState& state,
                                                 const OwnPieces& own,
                                                 CudaStream stream) {
  const std::vector<Differing> found = HOLDFAST_TRY(layouts_.differing(state, stream));
  if (found.empty()) return pieces;
  emit(*options_.saver.events, env_,
       ReplicasDiffer{.tensors = std::ssize(found),
                      .first = found[0].tensor,
                      .rank = found[0].rank,
                      .other = found[0].other});
  Result<LocalPieces> separated = own(found);
  if (!separated.ok()) return layouts_.agree(separated, false).error();
  return separated;
}

Result<RestoredState> Job::resume(const LocalPieces& pieces,
                                  const RestoreOptions& options) {
  return resume([&](const StepFiles&) { return Result<LocalPieces>(pieces); }, options);
}

Result<RestoredState> Job::resume(const PiecesFor& pieces_for,
                                  const RestoreOptions& options) {
  core_->doing_ = {"resume()"};
  core_->saver_->settle({}, options.stream);
  LocalState state;
  const auto state_for = [&](const StepFiles& step) -> Result<const LocalState*> {
    // Replicas need not be equal here: their values are about to be overwritten.
    state = HOLDFAST_TRY(core_->layouts_.agree(pieces_for(step), false));
    return &state;
  };
  RestoreOptions told = options;
  if (told.events == nullptr) told.events = core_->options_.saver.events;
  if (told.tiers.empty()) told.tiers = tiers_of(core_->options_.saver.tiers);
  told.allow_unreachable_tiers |= core_->options_.saver.allow_unreachable_tiers;
  std::vector<SkippedStep> passed;
  core_->tried_left_.clear();
  std::optional<RestoredState> left =
      HOLDFAST_TRY(core_->adopt_left(state_for, told, passed, nullptr));
  Result<RestoredState> found = left ? Result<RestoredState>(*std::move(left))
                                     : core_->restore_or_adopt(state_for, told);
  core_->warn_of_left(found);
  if (!found.ok() && is_missing(found.error()) && !passed.empty()) {
    return none_is_whole(core_->saver_->run(), passed.front());
  }
  RestoredState restored = HOLDFAST_TRY(std::move(found));
  if (core_->ranks_.coordinator()) {
    restored.skipped.insert(restored.skipped.begin(), passed.begin(), passed.end());
  }
  if (restored.folder == core_->fetched_.folder) restored.tier = core_->fetched_.tier;
  core_->parent_ = restored.folder.filename().native();
  core_->resumed_ = core_->appointed_ = restored.step;
  HOLDFAST_TRY(core_->saver_->prepare(state));
  return restored;
}

Result<std::vector<Bytes>> Job::gather(ByteView own) {
  const SaverOptions& saver = core_->options_.saver;
  return holdfast::agree(core_->ranks(), copy_of(own),
                         saver.timeout + saver.write_timeout);
}

Result<bool> Job::any(bool own) {
  const Bytes said(own ? 1 : 0);
  const std::vector<Bytes> all = HOLDFAST_TRY(
      holdfast::agree(core_->ranks(), said, core_->options_.saver.timeout));
  return !std::ranges::all_of(all, &Bytes::empty);
}

bool Job::all_agree(bool own, Duration at_most) {
  core_->doing_ = {"close()"};
  if (core_->transport_ == nullptr) return own;
  const Result<void> word = own ? Result<void>() : unavailable("a rank does not agree");
  return core_->end_.agree(word, at_most).ok();
}

std::vector<std::string> Job::take_warnings() { return core_->warnings_.take(); }

std::vector<std::string> Job::take_notes() { return core_->warnings_.take_notes(); }

bool Job::may_tear() const { return core_->saver_->may_tear(); }

EventSink& Job::events() { return core_->warnings_; }

Result<SaveHandle> Job::save(JobState job) {
  core_->doing_ = {"the save after step ", job.step};
  std::optional<Message> decision;
  LocalState state = HOLDFAST_TRY(core_->agree(job, decision));
  if (decision->kind == kCompare) {
    HOLDFAST_TRY(core_->separate_replicas_of(job, state));
    state = HOLDFAST_TRY(core_->agree(job, decision));
  }
  const Instant start = core_->env_.now();
  const bool compare = job.own != nullptr && core_->false_alarms_ < kFalseAlarms;
  SaveHandle handle =
      HOLDFAST_TRY(core_->saver_->save({.step = job.step,
                                        .state = &state,
                                        .objects = std::move(job.objects),
                                        .make_objects = std::move(job.make_objects),
                                        .metrics = job.metrics,
                                        .parallel = job.parallel,
                                        .parent = core_->parent_,
                                        .why = job.why,
                                        .automatic = job.automatic,
                                        .stream = job.stream,
                                        .compare = compare,
                                        .decision = &*decision}));
  if (core_->has_left_) core_->forget_left();
  // The first save stays the one that is waited for, as later ones may be skipped.
  if (core_->has_left_ && !core_->replaces_left_) core_->replaces_left_ = handle;
  const Instant begun = core_->env_.now();
  core_->newest_ = {.handle = handle,
                    .step = job.step,
                    .begun = begun,
                    .bytes = state.collection->bytes(),
                    .stall = begun - start};
  return handle;
}

// Compares all replicas, because the last save found some that differ. If they are
// equal now, the program wrote to them while the save compared them. After kFalseAlarms
// such false alarms, saves no longer compare replicas and are no longer dropped for it.
Result<void> Job::Core::separate_replicas_of(JobState& job, const LocalState& state) {
  LocalPieces separated =
      HOLDFAST_TRY(separate_replicas(job.pieces, state, job.own, job.stream));
  if (separated == job.pieces && ++false_alarms_ == kFalseAlarms) {
    emit(*options_.saver.events, env_,
         ReplicaChecksEnded{.false_alarms = kFalseAlarms});
  }
  job.pieces = std::move(separated);
  saver_->trust_replicas();
  return {};
}

// Agrees with all ranks on the layout. The same messages carry rank 0's decision about
// the save, which is put into `decision`.
Result<LocalState> Job::Core::agree(const JobState& job,
                                    std::optional<Message>& decision) {
  Bytes word;
  decision.reset();
  if (ranks_.coordinator()) {
    decision = job.own != nullptr && saver_->replicas_differ()
                   ? Message{.kind = kCompare}
                   : saver_->propose(job.step, stopping_);
    if (transport_ != nullptr) word = encode_message(*decision);
  }
  LocalState state = HOLDFAST_TRY(
      layouts_.agree(job.pieces, false, word, options_.saver.write_timeout));
  if (!decision.has_value()) decision = HOLDFAST_TRY(decode_message(word));
  return state;
}

Result<Durable> Job::wait_stopped(const SaveHandle& handle) {
  core_->saver_->settle();
  return handle.durable(core_->env_.now() + core_->options_.grace);
}

Result<Settled> Job::settle(const std::vector<std::string>& changed, CudaStream stream,
                            Instant deadline) {
  const Instant start = core_->env_.now();
  Result<Settled> settled = core_->saver_->settle(changed, stream, deadline);
  if (!core_->newest_.has_value() || core_->newest_->settled) return settled;
  core_->newest_->stall += core_->env_.now() - start;
  core_->newest_->settled = settled.ok();
  if (settled.ok()) core_->scheduler_.captured(core_->newest_->step, core_->newest_->stall);
  return settled;
}

Result<void> Job::close(Instant deadline) {
  core_->doing_ = {"close()"};
  core_->clear_left(deadline);
  return core_->let_go(core_->saver_->close(deadline), true);
}

Result<void> Job::close_alone(Instant deadline, bool orderly) {
  core_->clear_left(deadline);
  return core_->let_go(core_->saver_->close_alone(deadline), orderly);
}

// Restores the previous signal handlers after the last save has finished. If a signal
// came too late for a step to stop at, it now does what it does by default. After a
// timeout saves are still under way, so the handlers stay.
Result<void> Job::Core::let_go(Result<void> closed, bool orderly) {
  if (closed.ok() && orderly) emit(warnings_, env_, JobClosed{});
  if (!closed.ok() && closed.error().code() == ErrorCode::kTimeout) return closed;
  const std::optional<int> late =
      signals_ == nullptr || stopping_ ? std::nullopt : signals_->caught();
  signals_ = nullptr;
  if (late.has_value()) StopSignals::give_way(*late);
  return closed;
}

}  // namespace holdfast
