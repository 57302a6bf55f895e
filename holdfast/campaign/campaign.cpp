#include "holdfast/campaign/campaign.h"

#include <algorithm>
#include <deque>

#include "holdfast/campaign/campaign_folder.h"
#include "holdfast/campaign/campaign_options.h"
#include "holdfast/campaign/state_distance.h"
#include "holdfast/env/unsynced_env.h"

namespace holdfast {
namespace {

constexpr double kDeadlineFactor = 10, kLeastDeadline = 10;
// The first golden run has no golden run to take a deadline from.
constexpr Duration kGoldenTime = std::chrono::hours(24);

Duration duration_of(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

struct GoldenRun {
  TrainingLog log{};
  double seconds = 0;
};

class Campaign {
 public:
  Campaign(Env& env, const CampaignOptions& options, const CampaignWatch& watch,
           Found base, Contents contents, std::shared_ptr<const Roles> roles)
      : env_(env),
        scratch_(env),
        options_(options),
        watch_(watch),
        base_(std::move(base)),
        contents_(std::move(contents)),
        roles_(std::move(roles)) {}

  // Fails, before anything is written, if the plans do not fit the base.
  Result<void> check_plans() {
    const int64_t count = std::max<int64_t>(1, std::ssize(options_.plans));
    for (int64_t trial = 0; trial < count; ++trial) {
      HOLDFAST_TRY(check_alteration(env_, base_, HOLDFAST_TRY(plan_of(trial)),
                                    options_.fixing));
    }
    return {};
  }

  Result<CampaignResult> run() {
    file_ = HOLDFAST_TRY(describe_campaign(env_, options_, base_));
    folder_ = HOLDFAST_TRY(CampaignFolder::enter(env_, options_.folder, file_));
    choose_files();
    HOLDFAST_TRY(find_golden());
    if (result_.stopped) return result_;
    TrialFile trials =
        HOLDFAST_TRY(TrialFile::open(env_, folder_->path() / kTrialsFile));
    list_trials(trials.records());
    HOLDFAST_TRY(tell_golden());
    HOLDFAST_TRY(run_trials(trials));
    return result_;
  }

 private:
  Result<FlipPlan> plan_of(int64_t trial) {
    if (!options_.plans.empty()) return options_.plans[static_cast<size_t>(trial)];
    if (options_.anywhere) {
      return make_byte_plan(env_, HOLDFAST_TRY(files_of(env_, base_)),
                            options_.request.count, options_.request.seed, trial);
    }
    PlanRequest request = options_.request;
    request.trial = trial;
    request.roles = roles_;
    return make_plan(contents_, request);
  }

  void choose_files() {
    const Path& work = folder_->work();
    Path checkpoint = work / "checkpoint";
    // Some programs tell a format by the ending of the name.
    if (!base_.step()) checkpoint += base_.path.extension();
    files_ = {.checkpoint = checkpoint, .log = work / "log.jsonl"};
    if (options_.state) files_.state = work / "state.pt";
    RunnerOptions runner{.command = options_.command, .work = work};
    runner_ = options_.serve ? make_served_runner(env_, std::move(runner))
                             : make_fresh_runner(env_, std::move(runner));
  }

  bool stopped() const { return watch_.stopped && watch_.stopped(); }

  // Removes what a trial has left in the work folder, except for what a serving process
  // prints.
  Result<void> clear_work() {
    for (const std::string& name : HOLDFAST_TRY(env_.list(folder_->work()))) {
      if (name == "output" || name == "errors" || name == kFirstState) continue;
      HOLDFAST_TRY(env_.remove_all(folder_->work() / name));
    }
    return {};
  }

  Result<TrainingLog> read_log(bool torn) {
    const Result<std::string> text = env_.read_text(files_.log);
    if (!text.ok() && text.error().code() == ErrorCode::kNotFound) return TrainingLog{};
    if (!text.ok()) return text.error();
    return parse_log(*text, "log", torn);
  }

  // The golden run, or nullopt if the campaign was asked to stop.
  Result<std::optional<GoldenRun>> run_golden(const Stopped& stopped) {
    HOLDFAST_TRY(clear_work());
    HOLDFAST_TRY(make_copy(scratch_, base_, files_.checkpoint,
                           [](const Found&) { return Result<void>(); }));
    const TrialEnd end = HOLDFAST_TRY(runner_->run(files_, golden_deadline(), stopped));
    if (end.kind == TrialEnd::Kind::kStopped) return std::optional<GoldenRun>();
    GoldenRun run{.seconds = end.seconds};
    if (end.kind != TrialEnd::Kind::kFinished) {
      const Judged judged = judge(end, {}, {}, true, {});
      return unavailable("the golden run failed: {}; expected a command that succeeds",
                         judged.why);
    }
    run.log = HOLDFAST_TRY(read_log(false).within("the golden run"));
    if (run.log.lines.empty()) {
      return unavailable(
          "the golden run has logged nothing; expected lines in {{log}}");
    }
    HOLDFAST_TRY(check_losses(run.log).within("the golden run"));
    if (files_.state) {
      HOLDFAST_TRY(open_any(env_, *files_.state).within("the golden run"));
    }
    return std::optional(std::move(run));
  }

  // Why a golden run is not as the first one; nullopt if every bit is equal.
  Result<std::optional<std::string>> golden_difference(const GoldenRun& run,
                                                       const Path& state) {
    if (auto found = first_difference(file_.golden, run.log)) return found;
    if (!files_.state) return std::optional<std::string>();
    const OpenedAny first = HOLDFAST_TRY(open_any(env_, state));
    const OpenedAny other = HOLDFAST_TRY(open_any(env_, *files_.state));
    return state_difference(first.contents, other.contents);
  }

  Result<void> find_golden() {
    if (folder_->found()) return repeat_golden();
    const auto first = HOLDFAST_TRY(run_golden(watch_stopped()));
    if (!first) return note_stop();
    file_.golden = first->log;
    const Path state = folder_->work() / kFirstState;
    if (files_.state) HOLDFAST_TRY(env_.rename_new(*files_.state, state));
    runner_->renew();
    const auto second = HOLDFAST_TRY(run_golden(watch_stopped()));
    if (!second) return note_stop();
    HOLDFAST_TRY(check_golden(*second, state));
    // The first run may have had to read the program from the disk.
    file_.golden_seconds = second->seconds;
    file_.deadline = options_.deadline.value_or(
        std::max(kLeastDeadline, kDeadlineFactor * second->seconds));
    result_.golden.runs = 2;
    if (files_.state) HOLDFAST_TRY(env_.rename_new(state, folder_->golden_state()));
    HOLDFAST_TRY(folder_->keep(file_));
    return open_golden_state();
  }

  // A campaign that is continued must still be able to repeat its golden run.
  Result<void> repeat_golden() {
    const CampaignFile& found = *folder_->found();
    file_.golden = found.golden;
    file_.golden_seconds = found.golden_seconds;
    file_.deadline = options_.deadline.value_or(found.deadline);
    const auto run = HOLDFAST_TRY(run_golden(watch_stopped()));
    if (!run) return note_stop();
    HOLDFAST_TRY(check_golden(*run, folder_->golden_state()));
    result_.golden.runs = 1;
    return open_golden_state();
  }

  Result<void> check_golden(const GoldenRun& run, const Path& state) {
    const auto why = HOLDFAST_TRY(golden_difference(run, state));
    if (!why) return {};
    return unavailable(
        "the golden runs differ: {}; expected equal bits (fixed seeds, deterministic "
        "functions, and no times in the log)",
        *why);
  }

  Result<void> open_golden_state() {
    if (!files_.state) return {};
    golden_state_.emplace(HOLDFAST_TRY(open_any(env_, folder_->golden_state())));
    return {};
  }

  Result<void> note_stop() {
    result_.stopped = true;
    return {};
  }

  Stopped watch_stopped() const {
    return [this] { return stopped(); };
  }

  // A stop waits for the trial or golden run under way if trials that shared its
  // process are unchecked: they would be lost with the process.
  Stopped watch_stopped_again() {
    return [this] {
      if (!told_wait_ && watch_.waits && stopped()) {
        told_wait_ = true;
        watch_.waits(std::ssize(pending_));
      }
      return watch_.stopped_again && watch_.stopped_again();
    };
  }

  void list_trials(const std::vector<TrialRecord>& records) {
    std::vector<bool> known(static_cast<size_t>(options_.trials));
    for (const TrialRecord& record : records) {
      if (record.trial >= options_.trials) continue;
      known[static_cast<size_t>(record.trial)] = true;
    }
    for (int64_t trial = 0; trial < options_.trials; ++trial) {
      if (!known[static_cast<size_t>(trial)]) todo_.push_back(trial);
    }
    total_ = std::ssize(todo_);
  }

  Result<void> tell_golden() {
    result_.golden.seconds = file_.golden_seconds;
    result_.golden.steps = file_.golden.last_step();
    result_.golden.trials = options_.trials;
    result_.golden.recorded = options_.trials - total_;
    result_.golden.deadline = file_.deadline;
    if (watch_.golden) watch_.golden(result_.golden);
    return {};
  }

  Duration deadline() const { return duration_of(file_.deadline); }

  Duration golden_deadline() const {
    if (file_.golden_seconds > 0) return deadline();
    return options_.deadline ? duration_of(*options_.deadline) : kGoldenTime;
  }

  Result<void> run_trials(TrialFile& trials) {
    while (!todo_.empty() && !result_.stopped) {
      const int64_t trial = todo_.front();
      auto record = HOLDFAST_TRY(run_trial(trial));
      if (!record) {
        result_.stopped = true;
        break;
      }
      todo_.pop_front();
      // Without the process nobody can find out whether something had leaked.
      const bool lost = runner_->is_shared() && !runner_->is_running();
      if (lost) HOLDFAST_TRY(start_anew(trial, record));
      if (!record) break;
      if (lost || !runner_->is_shared()) {
        HOLDFAST_TRY(write(trials, {*record}));
        continue;
      }
      pending_.push_back(std::move(*record));
      if (std::ssize(pending_) >= options_.golden_every) {
        HOLDFAST_TRY(confirm(trials));
      }
    }
    return confirm(trials);
  }

  // Repeats the trial in a process of its own, and puts the trials that the lost process
  // has served back.
  Result<void> start_anew(int64_t trial, std::optional<TrialRecord>& record) {
    for (auto one = pending_.rbegin(); one != pending_.rend(); ++one) {
      todo_.push_front(one->trial);
    }
    pending_.clear();
    runner_->renew();
    record = HOLDFAST_TRY(run_trial(trial));
    if (!record) result_.stopped = true;
    runner_->renew();
    return {};
  }

  // Writes the records that wait, if the golden run is as before. If it is not, the
  // trials are repeated first.
  Result<void> confirm(TrialFile& trials) {
    // A second stop within a trial has ended the process. A new process would be as
    // before whatever had leaked in the old one, so these trials stay to do.
    if (pending_.empty() || !runner_->is_running()) return {};
    const auto run = run_golden(watch_stopped_again());
    if (run.ok() && !*run) return note_stop();
    const std::vector<TrialRecord> records = std::exchange(pending_, {});
    bool same = run.ok();
    if (same) {
      const auto why = golden_difference(**run, folder_->golden_state());
      same = why.ok() && !*why;
    }
    if (same) return write(trials, records);
    for (const TrialRecord& record : records) {
      if (result_.stopped) break;
      runner_->renew();
      auto again = HOLDFAST_TRY(run_trial(record.trial));
      result_.stopped = !again;
      if (!again) break;
      result_.repeated += 1;
      HOLDFAST_TRY(write(trials, {*again}));
    }
    runner_->renew();
    return {};
  }

  Result<void> write(TrialFile& trials, const std::vector<TrialRecord>& records) {
    HOLDFAST_TRY(trials.add(records));
    result_.done += std::ssize(records);
    if (watch_.progress) watch_.progress(result_.done, total_);
    return {};
  }

  // The record, or nullopt if the campaign was asked to stop.
  Result<std::optional<TrialRecord>> run_trial(int64_t trial) {
    if (stopped()) return std::optional<TrialRecord>();
    const FlipPlan plan = HOLDFAST_TRY(plan_of(trial));
    result_.unwritten += plan.unwritten;
    HOLDFAST_TRY(clear_work());
    HOLDFAST_TRY(
        alter_copy(scratch_, base_, plan, options_.fixing, files_.checkpoint));
    const Stopped stop = pending_.empty() ? watch_stopped() : watch_stopped_again();
    const TrialEnd end = HOLDFAST_TRY(runner_->run(files_, deadline(), stop));
    if (end.kind == TrialEnd::Kind::kStopped) return std::optional<TrialRecord>();
    if (watch_.progress) {
      watch_.progress(result_.done + std::ssize(pending_), total_);
    }
    return std::optional(make_record(trial, plan, end));
  }

  TrialRecord make_record(int64_t trial, const FlipPlan& plan, const TrialEnd& end) {
    TrialRecord record{.trial = trial, .seed = plan.seed, .seconds = end.seconds};
    for (const PlannedFlip& flip : plan.flips) record.flips.push_back(known_flip(flip));
    record.bytes = plan.bytes;
    const bool finished = end.kind == TrialEnd::Kind::kFinished;
    const Result<TrainingLog> log = read_log(!finished);
    const auto distance = finished ? state_distance() : StateDistance();
    if (finished && (!log.ok() || !distance.ok())) {
      record.outcome = Outcome::kCrashed;
      record.why = without_paths(
          log.ok() ? distance.error().message() : log.error().message(), files_);
      return record;
    }
    const TrainingLog seen = log.ok() ? *log : TrainingLog{};
    const Judged judged =
        judge(end, seen, file_.golden, distance->equal, options_.thresholds);
    record.outcome = judged.outcome;
    record.why = judged.why;
    record.steps = seen.last_step();
    record.final_loss = seen.last("loss");
    record.final_accuracy = seen.last("accuracy");
    record.first_accuracy = seen.after_loading("accuracy");
    if (files_.state && finished) record.distance = distance->relative;
    return record;
  }

  Result<StateDistance> state_distance() {
    if (!files_.state) return StateDistance{};
    const OpenedAny state = HOLDFAST_TRY(open_any(env_, *files_.state));
    return distance_between(golden_state_->contents, state.contents);
  }

  RecordedFlip known_flip(const PlannedFlip& flip) const {
    RecordedFlip known{.flip = flip};
    const auto found = contents_.collection.find(flip.tensor);
    if (!found) return known;
    const TensorRole& role = (*roles_)[*found];
    known.role = role.role;
    known.guessed = role.origin == RoleOrigin::kGuessed;
    known.layer = role.layer;
    return known;
  }

  static constexpr const char* kFirstState = "first-state";

  Env& env_;
  UnsyncedEnv scratch_;  // for the copies
  const CampaignOptions& options_;
  const CampaignWatch& watch_;
  const Found base_;
  const Contents contents_;
  const std::shared_ptr<const Roles> roles_;  // shared with the requests of all trials
  CampaignFile file_{};
  std::unique_ptr<CampaignFolder> folder_;
  TrialFiles files_{};
  // Destroyed before the folder, because its process uses the files in it.
  std::unique_ptr<TrialRunner> runner_;
  std::optional<OpenedAny> golden_state_;
  std::deque<int64_t> todo_;
  int64_t total_ = 0;  // trials of this call
  // Records that wait for the golden run which shows that nothing has leaked.
  std::vector<TrialRecord> pending_;
  bool told_wait_ = false;  // whether CampaignWatch::waits was called
  CampaignResult result_{};
};

}  // namespace

Result<CampaignResult> run_campaign(Env& env, const CampaignOptions& options,
                                    const CampaignWatch& watch) {
  HOLDFAST_TRY(check_options(options));
  Found base = HOLDFAST_TRY(find_any(env, options.base));
  Contents contents = HOLDFAST_TRY(open_to_alter(env, base));
  auto roles = HOLDFAST_TRY(roles_in(contents, base, options.roles));
  Campaign campaign(env, options, watch, std::move(base), std::move(contents),
                    std::move(roles));
  HOLDFAST_TRY(campaign.check_plans());
  return campaign.run();
}

}  // namespace holdfast
