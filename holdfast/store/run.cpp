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

bool is_missing(const Error& error) { return error.code() == ErrorCode::kNotFound; }

// The runs that the readable manifests name.
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

// The id of a run whose own file is damaged: that of its steps, whose manifests carry
// digests, if they agree.
Result<std::string> id_of_steps(Env& env, const Path& path, const Error& damage) {
  const std::set<std::string> runs = HOLDFAST_TRY(runs_of_steps(env, path));
  if (runs.size() == 1) return *runs.begin();
  if (runs.empty()) {
    return corrupt(
        "{}; no step says which run it is: if nothing in the folder is needed, remove "
        "{}, and the next job begins a new run",
        damage.message(), kRunFile);
  }
  return corrupt("{}; its steps are of {} runs: move those of other runs away",
                 damage.message(), runs.size());
}

// A file of version 1 has no digest. If no step is of the run that it names, it is damaged
// or the steps are foreign: a new step must not be written under that id.
Result<void> check_id(Env& env, const Path& path, const std::string& id) {
  const std::set<std::string> runs = HOLDFAST_TRY(runs_of_steps(env, path));
  if (runs.empty() || runs.contains(id)) return {};
  return corrupt(
      "{}: {} names the run {}, but the steps are of {}; put that id into the file if "
      "the steps are this run's, else move them away",
      path.native(), kRunFile, id, *runs.begin());
}

// A run whose own file is lost must not get a new id: its steps would become foreign.
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

// Replaces nothing, so that of two makers both get the id of the first.
Result<void> make_run_file(Env& env, const Path& path, std::string id) {
  HOLDFAST_TRY(check_no_steps(env, path));
  if (id.empty()) id = hex64(env.random64()) + hex64(env.random64());
  const RunFile file{.id = std::move(id)};
  const std::string beside = fmt::format("{}.{}.tmp", kRunFile, hex64(env.random64()));
  HOLDFAST_TRY(env.write_file(path / beside, encode_run_file(file)));
  const Result<void> named = env.rename_new(path / beside, path / kRunFile);
  if (!named.ok()) (void)env.remove_file(path / beside);
  if (!named.ok() && named.error().code() != ErrorCode::kConflict) return named;
  return sync_names(env, path);
}

// Temporary files of this library beside those that it replaces.
bool is_left_file(std::string_view name, int64_t epoch) {
  constexpr std::string_view kEnd = ".tmp";
  constexpr size_t kTail = 1 + 16 + kEnd.size();
  if (!name.ends_with(kEnd) || name.size() <= kTail) return false;
  const std::string_view of = name.substr(0, name.size() - kTail);
  if (!parse_hex64(name.substr(of.size() + 1, 16))) return false;
  if (of == kRunFile || of == kOwnerFile || of == kLatestFile) return true;
  const auto claim = parse_claim_name(of);
  return claim && *claim <= epoch;
}

bool passes(const std::optional<OwnerRecord>& owner, const Manifest& manifest) {
  if (!owner || !owner->fence || manifest.epoch >= owner->epoch) return true;
  const auto reached = owner->fence->find(manifest.epoch);
  return reached != owner->fence->end() && manifest.sequence <= reached->second;
}

// Of listing again, where somebody removes steps meanwhile.
constexpr int kTries = 100;

Error vanishing(const Path& run) {
  return unavailable("{}: steps vanish faster than they are listed, {} times",
                     run.native(), kTries);
}

// A step of an object store whose manifest is damaged: ObjectStoreEnv shows it as a folder with
// the name of the manifest's key.
Error step_without_number(Env& env, const Path& folder) {
  const Result<Manifest> manifest = read_manifest(env, folder);
  if (!manifest.ok()) return manifest.error();
  return corrupt("{}: is a manifest under another's name", folder.native());
}

// How far each epoch got. Nullopt if a step cannot be read: it may be the newest of its
// epoch, and must not be shut out should it be readable tomorrow.
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

struct Run::State {
  Mutex mutex{};
  std::optional<int64_t> last_sequence HOLDFAST_GUARDED_BY(mutex){};
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
  return not_found("{}: no run directory, want one with {}", path.native(), kRunFile);
}

Result<Run> Run::create_or_open(Env& env, const Path& path, std::string id) {
  Result<Run> run = open(env, path);
  if (run.ok()) {
    if (!id.empty() && id != run->id()) {
      return conflict("{}: is run {}, want {}", path.native(), run->id(), id);
    }
    if (run->damage()) {
      HOLDFAST_TRY(run->names().replace(kRunFile, encode_run_file({.id = run->id()})));
    }
    // Its maker may have been killed before the name was durable.
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
    return corrupt("{}: manifest is for step {}", folder.native(), manifest.step);
  }
  if (manifest.run != id_) {
    return corrupt("{}: belongs to the run {}, want {}", folder.native(), manifest.run,
                   id_);
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
    } else if (owner.ok() && !passes(*owner, found->manifest)) {
      list.skipped.push_back(
          {text, conflict("{}: committed in epoch {} after that had ended, sequence {}",
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
  return vanishing(path_);
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
  if (newest.skipped.empty()) return not_found("{}: no steps", path_.native());
  return corrupt("{}: none of {} steps is whole; {}", path_.native(),
                 newest.skipped.size(), newest.skipped.front().error.message());
}

Result<NewestWhole> Run::newest_whole(Depth depth, EventSink* events) const {
  for (int i = 0; i < kTries; ++i) {
    std::optional<NewestWhole> newest = HOLDFAST_TRY(walk_back(depth, events));
    if (newest) return *std::move(newest);
  }
  return vanishing(path_);
}

Result<Owner> Run::acquire(const Identity& self, OwnerOptions options) const {
  const StepList before = HOLDFAST_TRY(steps());
  if (before.steps.empty() && !checked_) HOLDFAST_TRY(check_id(*env_, path_, id_));
  for (const Step& step : before.steps) {
    options.above = std::max(options.above, step.manifest.epoch);
  }
  options.fence = [this]() -> Result<std::optional<Fence>> {
    return fence_of(HOLDFAST_TRY(steps()));
  };
  options.names = names_;
  return Owner::acquire(*env_, path_, self, options);
}

Result<int64_t> Run::next_sequence() const {
  MutexLock lock(state_->mutex);
  // Read once: in an owner's epoch nobody else counts.
  if (!state_->last_sequence) {
    const StepList list = HOLDFAST_TRY(steps());
    state_->last_sequence = 0;
    for (const Step& step : list.steps) {
      state_->last_sequence = std::max(*state_->last_sequence, step.manifest.sequence);
    }
  }
  return ++*state_->last_sequence;
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

Result<int64_t> Run::sweep(const Owner& owner,
                           const std::set<uint64_t>& in_flight) const {
  HOLDFAST_TRY(owner.check());
  const std::vector<std::string> names = HOLDFAST_TRY(env_->list(path_));
  int64_t removed = 0;
  for (const std::string& name : names) {
    const auto attempt = parse_attempt_name(name);
    const bool dead = attempt && !in_flight.contains(attempt->attempt);
    if (!dead && !is_trash_name(name) && !is_left_file(name, owner.epoch())) continue;
    removed += env_->remove_all(path_ / name).ok() ? 1 : 0;
  }
  return removed;
}

}  // namespace holdfast
