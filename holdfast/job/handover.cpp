// Leaves the state of the job in the memory of its hosts, and takes what an earlier
// process has left there.
#include <algorithm>
#include <chrono>
#include <set>

#include "holdfast/checkpoint/restore.h"
#include "holdfast/handover/adopt.h"
#include "holdfast/handover/leave.h"
#include "holdfast/job/events.h"
#include "holdfast/job/job_core_internal.h"
#include "holdfast/state/object_json.h"

namespace holdfast {
namespace {

// True for errors after which the state is restored from the run directory instead.
bool passes_over(const Error& error) {
  return error.code() == ErrorCode::kCorrupt || is_missing(error);
}

SkippedStep passed_over(const SharedPlace& place, const FoundStep& step,
                        const Error& why) {
  return {fmt::format("{}/{}", place.path().native(),
                      StepName{.step = step.manifest.step}.text()),
          why};
}

}  // namespace

Result<Path> Job::hand_over(JobState job) {
  core_->doing_ = {"the handover after step ", job.step};
  if (!core_->place_) {
    return invalid(
        "hand_over: the job has no place in memory; expected JobOptions::handover");
  }
  core_->saver_->settle({}, job.stream);
  LocalState state = HOLDFAST_TRY(core_->layouts_.agree(job.pieces, false));
  if (job.own != nullptr && core_->transport_ != nullptr) {
    const LocalPieces separated =
        HOLDFAST_TRY(core_->separate_replicas(job.pieces, state, job.own, job.stream));
    state = HOLDFAST_TRY(core_->layouts_.agree(separated, false));
  }
  LeaveRequest request{.state = &state, .stream = job.stream};
  request.objects =
      job.make_objects ? job.make_objects() : Result<SaveObjects>(job.objects);
  request.manifest = core_->ranks_.coordinator() ? core_->saver_->next_manifest()
                                                 : Result<Manifest>(Manifest{});
  if (request.manifest.ok()) {
    request.manifest->step = job.step;
    request.manifest->metrics = job.metrics;
    request.manifest->parallel = job.parallel;
    request.manifest->parent = core_->parent_;
  }
  request.check_owner = [this] { return core_->saver_->check_owner(); };
  const Instant start = core_->env_.now();
  const LeftStep left = HOLDFAST_TRY(
      leave_in_memory(core_->ranks(), *core_->place_, request,
                      {.reserve = core_->options_.saver.space_reserve,
                       .timeout = core_->options_.saver.timeout,
                       // Not the grace: a rank that no longer waits for the slowest one
                       // would save to disk what the others leave in memory.
                       .write_timeout = core_->options_.saver.write_timeout}));
  emit(core_->warnings_, core_->env_,
       LeftInMemory{.step = job.step,
                    .folder = left.folder.native(),
                    .bytes = left.bytes,
                    .hosts = left.places,
                    .seconds = core_->seconds_since(start)});
  // What was left stays, also if an earlier save becomes durable only now.
  core_->has_left_ = false;
  return left.folder;
}

// Restores the newest step on disk, or takes one from memory that is newer than it after
// all: the newest on disk may be damaged, which is seen only when it is read.
Result<RestoredState> Job::Core::restore_or_adopt(const StateFor& into,
                                                  const RestoreOptions& options) {
  Result<RestoredState> found =
      restore(env_, saver_->run(), into, transport_, options);
  if (!has_left_ || (!found.ok() && !passes_over(found.error()))) return found;
  const size_t tried = tried_left_.size();
  std::vector<SkippedStep> skipped;
  std::optional<RestoredState> left =
      HOLDFAST_TRY(adopt_left(into, options, skipped, &found));
  if (!left && tried_left_.size() > tried) {
    return restore(env_, saver_->run(), into, transport_, options);  // written over
  }
  if (!left) return found;
  if (found.ok()) left->skipped = found->skipped;
  if (!found.ok()) left->skipped.push_back({saver_->run().native(), found.error()});
  return *std::move(left);
}

// The newest step in memory that can be taken, if it is newer than those on disk, or
// than what was found there.
Result<std::optional<RestoredState>> Job::Core::adopt_left(
    const StateFor& into, const RestoreOptions& options,
    std::vector<SkippedStep>& skipped, const Result<RestoredState>* found) {
  if (!place_) return std::optional<RestoredState>();
  for (const std::string& name :
       remove_old_places(env_, *options_.handover, place_->path())) {
    emit(warnings_, env_, OldPlaceRemoved{.folder = name});
  }
  // A process that was killed while it left its state may have left a part of it. The
  // survey comes after this on all ranks, so none of them has begun a step here.
  static_cast<void>(place_->remove_attempts());
  const Survey survey = HOLDFAST_TRY(
      survey_memory(ranks(), *place_, options_.saver.timeout).within("handover"));
  for (const std::string& why : survey.refused) {
    skipped.push_back({place_->path().native(), denied("{}", why)});
  }
  for (const std::string& why : survey.damaged) {
    skipped.push_back({place_->path().native(), corrupt("{}", why)});
  }
  // What is not taken is older than the newest step on disk, or damaged. It goes when
  // the next save is durable; without one, the next process looks at it again.
  has_left_ = !survey.steps.empty() || !survey.damaged.empty();
  for (const FoundStep& left : survey.steps) {
    if (options.step && left.manifest.step != *options.step) continue;
    if (tried_left_.contains(left.manifest.attempt)) continue;
    if (HOLDFAST_TRY(agree_is_older(left, options.step, found))) break;
    Result<RestoredState> taken = take_left(survey, left, into, options);
    if (taken.ok()) return std::optional(*std::move(taken));
    if (!passes_over(taken.error())) return taken.error();
    tried_left_.insert(left.manifest.attempt);
    skipped.push_back(passed_over(*place_, left, taken.error()));
  }
  return std::optional<RestoredState>();
}

// Fails with kNotFound if a part of the step went with its host, and as adopt() does.
Result<RestoredState> Job::Core::take_left(const Survey& survey, const FoundStep& left,
                                           const StateFor& into,
                                           const RestoreOptions& options) {
  if (left.lost()) {
    const std::string why = HOLDFAST_TRY(
        name_lost_box(ranks(), *place_, left, options_.saver.timeout));
    return not_found("{}", why);
  }
  const Instant start = env_.now();
  RestoredState adopted =
      HOLDFAST_TRY(adopt(ranks(), *place_, survey, left, into, options));
  adopted.in_memory = true;
  static_cast<void>(place_->remove_older(age_of(left.manifest)));
  const std::set<std::string> hosts(survey.places.begin(), survey.places.end());
  emit(warnings_, env_,
       AdoptedFromMemory{.step = adopted.step,
                         .bytes = adopted.needed,
                         .hosts = std::ssize(hosts),
                         .seconds = seconds_since(start)});
  return adopted;
}

// True if the run directory has a whole step that is newer.
Result<bool> Job::Core::is_older(const Manifest& left,
                                 std::optional<int64_t> step) const {
  const Run run = HOLDFAST_TRY(Run::open(env_, saver_->run()));
  const StepList list = HOLDFAST_TRY(run.steps());
  for (const SkippedStep& one : list.skipped) {
    const std::optional<StepName> name = parse_step_name(one.folder);
    const bool counts = !step || (name && name->step == *step);
    if (counts && cannot_tell(one.error)) return one.error;
  }
  for (const Step& one : list.steps) {
    if (age_of(one.manifest) < age_of(left)) break;
    if (step && one.manifest.step != *step) continue;
    const Result<StepReport> report = check_step(env_, one.folder, Depth::kFast);
    if (!report.ok() && cannot_tell(report.error())) return report.error();
    if (report.ok() && report->whole()) return true;
  }
  return false;
}

// Rank 0 looks, and tells all ranks.
Result<bool> Job::Core::agree_is_older(const FoundStep& left,
                                       std::optional<int64_t> step,
                                       const Result<RestoredState>* found) {
  Message said{.kind = "newer"};
  if (ranks_.coordinator()) {
    const Result<bool> older =
        found == nullptr
            ? is_older(left.manifest, step)
            : found->ok() && age_of(left.manifest) < age_of((*found)->manifest);
    if (!older.ok()) said.error = older.error();
    if (older.ok() && *older) said.kind = "older";
  }
  const std::vector<Message> heard =
      HOLDFAST_TRY(say_and_hear(ranks(), said, options_.saver.timeout));
  return heard[0].kind == "older";
}

Result<std::optional<Object>> Job::left_objects() {
  const Result<StepList> left =
      core_->place_ ? core_->place_->list_steps() : StepList();
  if (!left.ok() || left->steps.empty()) return std::optional<Object>();
  const Step& newest = left->steps.front();
  if (HOLDFAST_TRY(core_->is_older(newest.manifest, std::nullopt))) {
    return std::optional<Object>();
  }
  const Path path = newest.folder / objects_name();
  const Bytes bytes = HOLDFAST_TRY(core_->env_.read_file(path));
  return std::optional(HOLDFAST_TRY(decode_object(bytes, path.native())));
}

// A job that was started without the option does not look for what it had left before.
void Job::Core::warn_of_left(const Result<RestoredState>& restored) {
  if (place_ || !ranks_.coordinator()) return;
  const SharedPlace place(env_, kSharedMemory, saver_->run(), saver_->run_id());
  const Result<StepList> left = place.list_steps();
  if (!left.ok() || left->steps.empty()) return;
  const Step& newest = left->steps.front();
  if (restored.ok() && age_of(newest.manifest) < age_of(restored->manifest)) return;
  emit(warnings_, env_,
       LeftNotTaken{.step = newest.manifest.step, .folder = newest.folder.native()});
}

// Removes what is in memory once a save of this process is durable, which is newer.
void Job::Core::forget_left() {
  if (!has_left_ || !replaces_left_ || !replaces_left_->is_done()) return;
  const Result<Durable> durable = replaces_left_->durable();
  if (durable.ok()) {
    const Result<Manifest> newer = read_manifest(env_, durable->folder);
    has_left_ = !newer.ok();
    if (newer.ok()) static_cast<void>(place_->remove_older(age_of(*newer), true));
  }
  replaces_left_.reset();
}

// Removes what is in memory and not needed any more. Called before this job lets go of
// the run, because the next job may leave its state there.
void Job::Core::clear_left(Instant deadline) {
  if (!place_) return;
  if (has_left_ && replaces_left_) {
    saver_->settle();
    static_cast<void>(replaces_left_->durable(deadline));
  }
  forget_left();
  static_cast<void>(place_->remove_if_empty());
}

// The greatest epoch of the steps in the memory of all hosts; 0 if there is none. The
// owner files of the run may be lost, or older than these steps if the run directory is
// a copy that was put back. With a smaller epoch, what this job saves would be older than
// what was left before. All ranks call it together, each with that of its own host.
Result<int64_t> Job::Core::greatest_left_epoch(int64_t of_host) const {
  const Message own{.serial = of_host, .kind = "epoch"};
  int64_t greatest = 0;
  for (const Message& said : HOLDFAST_TRY(
           say_and_hear(ranks(), own, options_.saver.timeout).within("open"))) {
    greatest = std::max(greatest, said.serial);
  }
  return greatest;
}

// The same of this rank's host. What cannot be read now may be read later, so its epoch
// counts as that of a run whose tiers cannot be read: the seconds since 1970. So does what
// belongs to a copy of this run, which may be taken for this run when one of them is moved.
int64_t Job::Core::left_epoch(const Path& run) const {
  const auto now = std::chrono::floor<std::chrono::seconds>(env_.wall_now());
  const int64_t unknown = now.time_since_epoch().count();
  const Result<Run> opened = Run::open(env_, run);
  if (!opened.ok()) return is_missing(opened.error()) ? 0 : unknown;
  const SharedPlace place(env_, options_.handover.value_or(Path(kSharedMemory)), run,
                          opened->id());
  const Result<std::vector<Step>> left = place.steps();
  if (!left.ok()) return unknown;
  return left->empty() ? 0 : left->front().manifest.epoch;
}

}  // namespace holdfast
