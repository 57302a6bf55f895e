#include "holdfast/inspect/gc.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "holdfast/env/collecting_sink.h"
#include "holdfast/inspect/list_runs.h"
#include "holdfast/store/events.h"

namespace holdfast {
namespace {

// Names of attempts and of half-removed steps, which a sweep would remove.
Result<std::vector<std::string>> leftovers(const Run& run) {
  std::vector<std::string> left;
  const std::vector<std::string> names = HOLDFAST_TRY(run.env().list(run.path()));
  for (const std::string& name : names) {
    if (parse_attempt_name(name) || parse_trash_name(name)) left.push_back(name);
  }
  return left;
}

// Sizes and link counts of the files of all steps, read before any step is removed.
class Sizes {
 public:
  Sizes(Env& env, const StepList& list) {
    for (const Step& step : list.steps) {
      std::vector<FileInfo>& files = files_[step.name];
      for (const ManifestFile& file : step.manifest.files) {
        files.push_back(read_info(env, step.folder / file.name));
      }
      files.push_back(read_info(env, step.folder / kManifestName));
    }
  }

  // How many bytes are freed if this step is removed after those for which remove() was
  // called before.
  int64_t remove(const StepName& step) {
    int64_t freed = 0;
    for (const FileInfo& file : files_[step]) {
      const auto [left, first] =
          left_.try_emplace({file.device, file.inode}, file.links);
      if (--left->second == 0) freed += file.size;
    }
    return freed;
  }

 private:
  // A file that cannot be looked at counts as freeing nothing.
  static FileInfo read_info(Env& env, const Path& path) {
    const Result<FileInfo> info = env.info(path);
    return info.ok() ? *info : FileInfo();
  }

  std::map<StepName, std::vector<FileInfo>> files_;
  // How many names a file still has, by its device and inode.
  std::map<std::pair<uint64_t, uint64_t>, int64_t> left_;
};

void note_removed(const StepList& before, Sizes& sizes,
                  const std::vector<StepName>& names, GcResult& done) {
  for (const StepName& name : names) done.removed.push_back({name, sizes.remove(name)});
  for (const Step& step : before.steps) {
    if (std::ranges::find(names, step.name) == names.end()) {
      done.kept.push_back(step.name);
    }
  }
}

// Fails if no step has the metric. A misspelt metric would keep other steps than
// intended.
Result<void> check_metric(const Run& run, const Keep& keep) {
  if (keep.best <= 0) return {};
  const StepList list = HOLDFAST_TRY(run.steps());
  std::set<std::string> known;
  for (const Step& step : list.steps) {
    for (const auto& [name, value] : step.manifest.metrics) known.insert(name);
  }
  if (list.steps.empty() || known.contains(keep.metric)) return {};
  if (known.empty()) {
    return invalid(
        "metric \"{}\": no step has a metric; expected steps with this metric",
        keep.metric);
  }
  return invalid("metric \"{}\": no step has it; expected one of: {}", keep.metric,
                 fmt::join(known, ", "));
}

Result<GcResult> sweep_and_remove(const Run& run, const Owner& owner,
                                  const Keep& keep) {
  GcResult done;
  CollectingSink events;
  const std::vector<std::string> left = HOLDFAST_TRY(leftovers(run));
  HOLDFAST_TRY(run.sweep(owner, {}));
  const std::vector<std::string> still = HOLDFAST_TRY(leftovers(run));
  for (const std::string& name : left) {
    const bool gone = std::ranges::find(still, name) == still.end();
    (gone ? done.swept : done.failed).push_back(name);
  }
  const StepList before = HOLDFAST_TRY(run.steps());
  Sizes sizes(run.env(), before);
  note_removed(before, sizes, HOLDFAST_TRY(Retention(run, owner, keep, &events).run()),
               done);
  for (const EventRecord& record : events.records()) {
    const Result<RemovalFailed> failed = event_as<RemovalFailed>(record);
    if (failed.ok()) done.failed.push_back(failed->folder + ": " + failed->reason);
  }
  return done;
}

// Removes the place of this run in memory if all its steps are older than the newest on
// disk, and the places of runs and boots that are gone. Returns their folders.
std::vector<std::string> collect_memory(const Run& run, const Path& memory,
                                        bool dry_run) {
  const SharedPlace place(run.env(), memory, run.path(), run.id());
  std::vector<std::string> gone =
      remove_old_places(run.env(), memory, place.path(), dry_run);
  const Result<std::vector<Step>> left = place.steps();
  if (!left.ok() || !run.env().info(place.path()).ok()) return gone;
  std::pair<int64_t, int64_t> newest_age;
  if (!left->empty()) {
    const Result<NewestWhole> newest = run.newest_whole(Depth::kFast);
    if (!newest.ok()) return gone;
    newest_age = age_of(newest->step.manifest);
    if (age_of(left->front().manifest) >= newest_age) return gone;
  }
  if (!dry_run && !(place.remove_older(newest_age).ok() &&
                    place.remove_attempts().ok() && place.remove_if_empty().ok())) {
    return gone;
  }
  gone.push_back(place.path().native());
  return gone;
}

Result<GcResult> plan_only(const Run& run, const Keep& keep) {
  GcResult planned;
  const std::optional<OwnerView> owner = view_owner(run.env(), run.path());
  if (owner && !owner->dead) {
    const Identity& who = owner->record.who;
    planned.in_use_by = fmt::format("{} (process {})", who.host, who.pid);
  } else {
    planned.swept = HOLDFAST_TRY(leftovers(run));
  }
  const StepList before = HOLDFAST_TRY(run.steps());
  Sizes sizes(run.env(), before);
  note_removed(before, sizes, HOLDFAST_TRY(plan_retention(run, keep)), planned);
  return planned;
}

}  // namespace

Result<GcResult> collect_garbage(Env& env, const Path& path, const Keep& keep,
                                 const GcOptions& options) {
  const Run run = HOLDFAST_TRY(Run::open(env, path));
  HOLDFAST_TRY(check_metric(run, keep));
  if (options.dry_run) {
    GcResult planned = HOLDFAST_TRY(plan_only(run, keep));
    planned.memory = collect_memory(run, options.memory, true);
    return planned;
  }
  const Identity self =
      options.identity ? *options.identity : HOLDFAST_TRY(this_process(env));
  Owner owner = HOLDFAST_TRY(run.acquire(self, {.fences = false}));
  Result<GcResult> done = sweep_and_remove(run, owner, keep);
  if (done.ok()) done->memory = collect_memory(run, options.memory, false);
  const Result<void> released = std::move(owner).release();
  if (done.ok() && !released.ok()) return released.error();
  return done;
}

}  // namespace holdfast
