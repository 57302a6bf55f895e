// What there is: the runs below a folder and their steps, for people and programs that
// choose one. Looks fast, by names, sizes and small files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "holdfast/store/run.h"

namespace holdfast {

struct StepView {
  Step step{};
  int64_t bytes = 0;  // of its files; those shared with other steps count in each
  bool pinned = false;
  bool newest = false;             // the one that a restore takes
  std::optional<Error> why_not{};  // not whole, as far as a fast look can tell
};

struct OwnerView {
  OwnerRecord record{};
  // Why it no longer writes; nullopt if it lives, or nobody can tell from here.
  std::optional<std::string> dead{};
};

// nullopt if the run never had one, or its record cannot be read.
std::optional<OwnerView> view_owner(Env& env, const Path& run);

struct RunView {
  Path path{};
  std::string id{};
  std::optional<OwnerView> owner{};
  std::vector<StepView> steps{};        // newest first
  std::vector<SkippedStep> skipped{};   // folders of steps that are no candidates
  std::vector<std::string> attempts{};  // in flight, or left by a crash
};

Result<RunView> view_run(Env& env, const Path& path);

// The run at `path`, or those in the folder `path`, by name. kNotFound if there is none.
// What cannot be read of several runs is in `skipped`, with its folder's name.
struct RunList {
  std::vector<RunView> runs{};
  std::vector<SkippedStep> skipped{};
};
Result<RunList> list_runs(Env& env, const Path& path);

}  // namespace holdfast
