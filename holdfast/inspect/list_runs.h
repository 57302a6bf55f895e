// Lists the runs below a folder and their steps, for people and programs that choose
// one. Checks steps fast: names, sizes and small files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "holdfast/store/run.h"

namespace holdfast {

struct StepView {
  Step step{};
  // The size of its files. A file that several steps share counts in each of them.
  int64_t bytes = 0;
  bool pinned = false;
  // Whether this is the step that a restore would take.
  bool newest = false;
  // Why the step is not whole, as far as a fast check can tell.
  std::optional<Error> why_not{};
};

struct OwnerView {
  OwnerRecord record{};
  // Why the owner no longer writes. nullopt if it lives, or if that cannot be told from
  // here.
  std::optional<std::string> dead{};
};

// Returns nullopt if the run never had an owner, or if its record cannot be read.
std::optional<OwnerView> view_owner(Env& env, const Path& run);

struct RunView {
  Path path{};
  std::string id{};
  std::optional<OwnerView> owner{};
  std::vector<StepView> steps{};        // newest first
  std::vector<SkippedStep> skipped{};   // step folders that cannot be used
  std::vector<std::string> attempts{};  // being written now, or left by a crash
};

Result<RunView> view_run(Env& env, const Path& path);

// Lists the run at `path`, or all runs in the folder `path`, by name. Fails with
// kNotFound if there is none. If `path` is a folder of runs, a run that cannot be read
// is in `skipped` with its folder's name.
struct RunList {
  std::vector<RunView> runs{};
  std::vector<SkippedStep> skipped{};
};
Result<RunList> list_runs(Env& env, const Path& path);

}  // namespace holdfast
