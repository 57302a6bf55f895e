#include "holdfast/store/run.h"

#include <algorithm>
#include <set>

#include "holdfast/store/claim_internal.h"
#include "holdfast/store/events.h"
#include "holdfast/store/location.h"
#include "holdfast/store/object_store_run.h"
#include "holdfast/store/run_file_internal.h"

namespace holdfast {
namespace {

constexpr int64_t kRunFileLimit = int64_t{1} << 20;

Result<RunFile> read_run_file(Env& env, const Path& path) {
  const Path file = path / kRunFile;
  const Bytes bytes = HOLDFAST_TRY(env.read_file(file, kRunFileLimit));
  return decode_run_file(bytes, file.native());
}

// The ids of the runs that the readable manifests name.
Result<std::set<std::string>> runs_of_steps(Env& env, const Path& path) {
  std::set<std::string> runs;
  const std::vector<std::string> names = HOLDFAST_TRY(env.list(path));
  for (const std::string& name : names) {
    if (!parse_step_name(name)) continue;
    const Result<Manifest> manifest = read_manifest(env, path / name);
    if (manifest.ok()) runs.insert(manifest->run);
  }
  return runs;
}

// Finds the id of a run whose holdfast.json is damaged: the id that the manifests of
// its steps name, if all of them name the same one. Manifests carry digests, so they
// can be trusted.
Result<std::string> id_of_steps(Env& env, const Path& path, const Error& damage) {
  const std::set<std::string> runs = HOLDFAST_TRY(runs_of_steps(env, path));
  if (runs.size() == 1) return *runs.begin();
  if (runs.empty()) {
    return corrupt(
        "{}; no step tells the id of the run: if nothing in the folder is needed, "
        "remove "
        "{}, and the next job begins a new run",
        damage.message(), kRunFile);
  }
  return corrupt(
      "{}; its steps belong to {} runs: move the steps of the other runs away",
      damage.message(), runs.size());
}

// Checks the id in a holdfast.json of version 1, which has no digest. If there are
// steps and none of them belongs to that run, either the file is damaged or the steps
// belong to another run. In both cases no new step may be written under that id.
Result<void> check_id(Env& env, const Path& path, const std::string& id) {
  const std::set<std::string> runs = HOLDFAST_TRY(runs_of_steps(env, path));
  if (runs.empty() || runs.contains(id)) return {};
  return corrupt(
      "{}: {} names the run {}, but the steps belong to {}; put that id into the file "
      "if "
      "the steps are of this run, otherwise move them away",
      path.native(), kRunFile, id, *runs.begin());
}

// Checks that a folder without holdfast.json has no steps. If the file was lost, the
// run must not get a new id, because then its steps would no longer belong to it.
Result<void> check_no_steps(Env& env, const Path& path) {
  const std::vector<std::string> names = HOLDFAST_TRY(env.list(path));
  for (const std::string& name : names) {
    if (!parse_step_name(name)) continue;
    return corrupt(
        "{}: {} is missing, but there is {}; put it back: "
        "{{\"holdfast\":\"run\",\"version\":1,\"run\":\"ID\"}}, where ID is the run in "
        "the manifest of each step",
        path.native(), kRunFile, name);
  }
  return {};
}

// Writes holdfast.json, replacing nothing. If two processes do this at once, both use
// the id of the first.
Result<void> write_run_file(Env& env, const Path& path, std::string id) {
  const RunFile file{.id = std::move(id)};
  const std::string beside = fmt::format("{}.{}.tmp", kRunFile, hex64(env.random64()));
  HOLDFAST_TRY(env.write_file(path / beside, encode_run_file(file)));
  const Result<void> named = env.rename_new(path / beside, path / kRunFile);
  if (!named.ok()) (void)env.remove_file(path / beside);
  if (!named.ok() && named.error().code() != ErrorCode::kConflict) return named;
  return sync_names(env, path);
}

Result<void> make_run_file(Env& env, const Path& path, std::string id) {
  HOLDFAST_TRY(check_no_steps(env, path));
  if (id.empty()) id = hex64(env.random64()) + hex64(env.random64());
  return write_run_file(env, path, std::move(id));
}

// Whether the file is a temporary file that a crash left beside a file of the run. A
// temporary claim on an epoch after `epoch` may belong to a process that is taking the
// run now.
bool is_leftover_file(std::string_view name, int64_t epoch) {
  constexpr std::string_view kEnd = ".tmp";
  constexpr size_t kTail = 1 + 16 + kEnd.size();
  if (!name.ends_with(kEnd) || name.size() <= kTail) return false;
  const std::string_view of = name.substr(0, name.size() - kTail);
  if (!parse_hex64(name.substr(of.size() + 1, 16))) return false;
  if (of == kRunFile || of == kOwnerFile || of == kLatestFile) return true;
  const auto claim = parse_claim_name(of);
  return claim && *claim <= epoch;
}

// Whether the step was committed before its epoch ended, as far as the owner's fence
// tells.
bool passes_fence(const std::optional<OwnerRecord>& owner, const Manifest& manifest) {
  if (!owner || !owner->fence || manifest.epoch >= owner->epoch) return true;
  const auto reached = owner->fence->find(manifest.epoch);
  return reached != owner->fence->end() && manifest.sequence <= reached->second;
}

// How often the steps are listed again, if other processes remove steps meanwhile.
constexpr int kTries = 100;

Error steps_keep_vanishing(const Path& run) {
  return unavailable("{}: steps vanished while they were listed, {} times in a row",
                     run.native(), kTries);
}

// The error for a step in an object store whose manifest is damaged, so that its number
// is unknown. ObjectStoreEnv shows such a step as a folder with the name of the
// manifest's key.
Error step_without_number(Env& env, const Path& folder) {
  const Result<Manifest> manifest = read_manifest(env, folder);
  if (!manifest.ok()) return manifest.error();
  return corrupt("{}: holds the manifest of another step; expected its own",
                 folder.native());
}

// How far each epoch got. Returns nullopt if a step cannot be read: it may be the
// newest of its epoch, and the fence must not shut it out if it becomes readable later.
std::optional<Fence> fence_of(const StepList& list) {
  for (const SkippedStep& skipped : list.skipped) {
    if (skipped.error.code() != ErrorCode::kConflict) return std::nullopt;
  }
  Fence fence;
  for (const Step& step : list.steps) {
    int64_t& reached = fence[step.manifest.epoch];
    reached = std::max(reached, step.manifest.sequence);
  }
  return fence;
}

void tell_skipped(Env& env, const std::vector<SkippedStep>& list, EventSink* events) {
  if (events == nullptr) return;
  for (const SkippedStep& skipped : list) {
    emit(*events, env,
         StepSkipped{.folder = skipped.folder, .reason = skipped.error.message()});
  }
}

}  // namespace

std::optional<StepName> greatest_step(Env& env, const Path& run) {
  std::optional<StepName> greatest;
  const auto names = env.list(run);
  if (!names.ok()) return greatest;
  for (const std::string& name : *names) {
    greatest = std::max(greatest, parse_step_name(name));
  }
  return greatest;
}

struct Run::State {
  Mutex mutex{};
  std::optional<int64_t> last_sequence HOLDFAST_GUARDED_BY(mutex){};

  // Reads the steps once: while this process owns the run, nobody else commits.
  Result<int64_t> read_last(const Run& run) HOLDFAST_REQUIRES(mutex) {
    if (last_sequence) return *last_sequence;
    int64_t last = 0;
    for (const Step& step : HOLDFAST_TRY(run.steps()).steps) {
      last = std::max(last, step.manifest.sequence);
    }
    last_sequence = last;
    return last;
  }
};

Run::Run(Env& env, Path path, std::string id, bool checked, std::optional<Error> damage)
    : env_(&env),
      path_(std::move(path)),
      id_(std::move(id)),
      checked_(checked),
      damage_(std::move(damage)),
      names_(std::make_shared<RunNames>(env, path_)),
      state_(std::make_shared<State>()) {}

Result<Run> Run::open(Env& env, const Path& path) {
  HOLDFAST_TRY(check_place(path));
  Result<RunFile> file = read_run_file(env, path);
  if (file.ok()) return Run(env, path, file->id, file->checked);
  if (file.error().code() == ErrorCode::kCorrupt) {
    std::string id = HOLDFAST_TRY(id_of_steps(env, path, file.error()));
    return Run(env, path, std::move(id), true, file.error());
  }
  if (!is_missing(file.error())) return file.error();
  return not_found("{}: no run directory; expected a folder with {}", path.native(),
                   kRunFile);
}

Result<Run> Run::create_or_open(Env& env, const Path& path, std::string id) {
  Result<Run> run = open(env, path);
  if (run.ok()) {
    if (!id.empty() && id != run->id()) {
      return conflict("{}: is the run {}; expected {}", path.native(), run->id(), id);
    }
    if (run->damage()) {
      HOLDFAST_TRY(run->names().replace(kRunFile, encode_run_file({.id = run->id()})));
    }
    // The process that made holdfast.json may have been killed before the name was
    // durable.
    HOLDFAST_TRY(run->names().sync());
    return run;
  }
  if (!is_missing(run.error())) return run;
  HOLDFAST_TRY(env.create_folders(path));
  HOLDFAST_TRY(make_run_file(env, path, std::move(id)));
  return open(env, path);
}

Result<Step> Run::step(const StepName& name) const {
  const Path folder = path_ / name.text();
  Manifest manifest = HOLDFAST_TRY(read_manifest(*env_, folder));
  if (manifest.step != name.step) {
    return corrupt("{}: manifest is for step {}; expected {}", folder.native(),
                   manifest.step, name.step);
  }
  if (manifest.run != id_) {
    return corrupt("{}: belongs to the run {}; expected {}", folder.native(),
                   manifest.run, id_);
  }
  return Step{.name = name, .folder = folder, .manifest = std::move(manifest)};
}

Result<StepList> Run::list_once(bool& vanished) const {
  const Result<std::optional<OwnerRecord>> owner = read_owner(*env_, path_);
  const std::vector<std::string> names = HOLDFAST_TRY(env_->list(path_));
  StepList list;
  for (const std::string& text : names) {
    const auto name = parse_step_name(text);
    if (!name && !is_manifest_name(text)) continue;
    Result<Step> found = name ? step(*name) : step_without_number(*env_, path_ / text);
    if (!found.ok()) {
      const Result<FileInfo> folder = env_->info(path_ / text);
      vanished = vanished || (!folder.ok() && is_missing(folder.error()));
      Error error = is_missing(found.error()) ? found.error().as(ErrorCode::kCorrupt)
                                              : found.error();
      list.skipped.push_back({text, std::move(error)});
    } else if (owner.ok() && !passes_fence(*owner, found->manifest)) {
      list.skipped.push_back(
          {text,
           conflict("{}: committed in epoch {} after that epoch had ended, sequence {}",
                    text, found->manifest.epoch, found->manifest.sequence)});
    } else {
      list.steps.push_back(*std::move(found));
    }
  }
  std::sort(list.steps.begin(), list.steps.end(), [](const Step& a, const Step& b) {
    return std::pair(age_of(a.manifest), a.name) >
           std::pair(age_of(b.manifest), b.name);
  });
  return list;
}

Result<StepList> Run::steps() const {
  for (int i = 0; i < kTries; ++i) {
    bool vanished = false;
    StepList list = HOLDFAST_TRY(list_once(vanished));
    if (!vanished) return list;
  }
  return steps_keep_vanishing(path_);
}

Result<std::optional<NewestWhole>> Run::walk_back(Depth depth,
                                                  EventSink* events) const {
  StepList list = HOLDFAST_TRY(steps());
  NewestWhole newest{.step = {}, .skipped = std::move(list.skipped)};
  for (const SkippedStep& skipped : newest.skipped) {
    if (cannot_tell(skipped.error)) return skipped.error;
  }
  for (Step& step : list.steps) {
    const Result<StepReport> report = check_step(*env_, step.folder, depth);
    if (!report.ok() && is_missing(report.error())) return std::optional<NewestWhole>();
    if (!report.ok() && cannot_tell(report.error())) return report.error();
    if (report.ok() && report->whole()) {
      newest.step = std::move(step);
      tell_skipped(*env_, newest.skipped, events);
      return std::optional(std::move(newest));
    }
    newest.skipped.push_back(
        {step.name.text(),
         (report.ok() ? report->error() : report.error()).within(step.name.text())});
  }
  tell_skipped(*env_, newest.skipped, events);
  if (newest.skipped.empty()) return not_found("{}: has no steps", path_.native());
  return corrupt("{}: none of {} steps is whole; {}", path_.native(),
                 newest.skipped.size(), newest.skipped.front().error.message());
}

Result<NewestWhole> Run::newest_whole(Depth depth, EventSink* events) const {
  for (int i = 0; i < kTries; ++i) {
    std::optional<NewestWhole> newest = HOLDFAST_TRY(walk_back(depth, events));
    if (newest) return *std::move(newest);
  }
  return steps_keep_vanishing(path_);
}

Result<Owner> Run::acquire(const Identity& self, OwnerOptions options) const {
  const StepList before = HOLDFAST_TRY(steps());
  if (before.steps.empty() && !checked_) HOLDFAST_TRY(check_id(*env_, path_, id_));
  for (const Step& step : before.steps) {
    options.above = std::max(options.above, step.manifest.epoch);
  }
  if (options.fences) {
    options.fence = [this]() -> Result<std::optional<Fence>> {
      return fence_of(HOLDFAST_TRY(steps()));
    };
  }
  options.names = names_;
  return Owner::acquire(*env_, path_, self, options);
}

Result<int64_t> Run::next_sequence() const {
  MutexLock lock(state_->mutex);
  const int64_t last = HOLDFAST_TRY(state_->read_last(*this));
  state_->last_sequence = last + 1;
  return last + 1;
}

Result<int64_t> Run::sequence_after(int64_t commits) const {
  MutexLock lock(state_->mutex);
  return HOLDFAST_TRY(state_->read_last(*this)) + commits + 1;
}

Result<Step> Run::committed(int64_t step_number, uint64_t attempt) const {
  const std::vector<std::string> names = HOLDFAST_TRY(env_->list(path_));
  for (const std::string& text : names) {
    const auto name = parse_step_name(text);
    if (!name || name->step != step_number) continue;
    Result<Step> found = step(*name);
    if (found.ok() && found->manifest.attempt == attempt) return found;
  }
  return not_found("{}: no step {} of attempt {}", path_.native(), step_number,
                   hex64(attempt));
}

Result<bool> Run::claim_if_gone(Owner& owner, bool has_run_file) const {
  if (owner.check().ok()) return false;
  HOLDFAST_TRY(env_->create_folders(path_));
  // A claim of another process stays, and the next look at the owner reports it.
  if (!HOLDFAST_TRY(list_claims(*env_, path_)).empty()) return false;
  // Steps here may be those of this run, which somebody is removing at this moment.
  if (!has_run_file) {
    const Result<void> empty = check_no_steps(*env_, path_);
    if (!empty.ok()) return empty.error().as(ErrorCode::kUnavailable);
  }
  HOLDFAST_TRY(owner.claim_again());
  return true;
}

Result<void> Run::remake_if_gone(Owner& owner, EventSink* events) const {
  const Result<RunFile> file = read_run_file(*env_, path_);
  if (file.ok() && file->id != id_) {
    return conflict(
        "{}: another training has begun the run {} here; expected the run {}, which was "
        "removed or moved away",
        path_.native(), file->id, id_);
  }
  const bool is_lost = !file.ok() && is_missing(file.error());
  const bool claimed = HOLDFAST_TRY(claim_if_gone(owner, !is_lost));
  if (is_lost) HOLDFAST_TRY(write_run_file(*env_, path_, id_));
  if (events == nullptr || !(is_lost || claimed)) return {};
  emit(*events, *env_,
       RunFileDamaged{.reason = fmt::format("{}: {} of the run that this training saves "
                                            "to was removed or moved away",
                                            path_.native(),
                                            claimed ? "the directory" : kRunFile),
                      .remedy = "it is made anew, and training goes on saving there"});
  return {};
}

// A step may have been pinned while retention renamed it, by somebody who was told that
// pinning succeeded. If retention was killed then, the step is whole, and stays.
Result<bool> Run::bring_back(const std::string& trash, const StepName& step) const {
  const Result<FileInfo> pin = env_->info(path_ / pin_name(step));
  if (!pin.ok() && is_missing(pin.error())) return false;
  if (!pin.ok()) return pin.error();
  const Result<StepReport> report = check_step(*env_, path_ / trash, Depth::kFast);
  if (!report.ok() && cannot_tell(report.error())) return report.error();
  if (!report.ok() || !report->whole()) return false;
  const Result<void> back = env_->rename_new(path_ / trash, path_ / step.text());
  if (!back.ok() && back.error().code() == ErrorCode::kConflict) return false;
  if (!back.ok()) return back.error();
  HOLDFAST_TRY(names().sync());
  return true;
}

Result<int64_t> Run::sweep(const Owner& owner,
                           const std::set<uint64_t>& in_flight) const {
  HOLDFAST_TRY(owner.check());
  const std::vector<std::string> names = HOLDFAST_TRY(env_->list(path_));
  int64_t removed = 0;
  for (const std::string& name : names) {
    const auto attempt = parse_attempt_name(name);
    const bool dead = attempt && !in_flight.contains(attempt->attempt);
    const auto trash = parse_trash_name(name);
    if (!dead && !trash && !is_leftover_file(name, owner.epoch())) continue;
    if (trash) {
      const Result<bool> back = bring_back(name, *trash);
      if (!back.ok() || *back) continue;
    }
    removed += env_->remove_all(path_ / name).ok() ? 1 : 0;
  }
  return removed;
}

}  // namespace holdfast
