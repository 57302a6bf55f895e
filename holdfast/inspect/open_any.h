// Opens anything that holds tensors by one path:
//
//   model.pt, model.safetensors, a folder of them   a format of format.h
//   runs/gpt/step-00000400                          a step of a run
//   runs/gpt                                        a run: its newest whole step
//   runs/gpt@400, runs/gpt@step-00000400.g2         a run: that step, as last saved
//
// A file or folder with the whole name comes first, so that a name with an '@' in it is
// found. Only if there is none, the text after the last '@' is a step.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "holdfast/env/env.h"
#include "holdfast/contents/contents.h"
#include "holdfast/store/records.h"

namespace holdfast {

struct Format;
class Run;
struct Step;

// What a path names.
struct Found {
  Path path{};                     // a step's folder, or a file or folder of a format
  const Format* format = nullptr;  // null if it is a step
  // Newer steps of the run that could not be used, and why.
  std::vector<SkippedStep> skipped{};

  bool step() const { return format == nullptr; }
  std::string_view kind() const;  // "step", or the name of the format
};

// is_run() is true for a folder with holdfast.json, is_step() for the folder of a
// committed step. Neither says that the contents are whole.
bool is_run(Env& env, const Path& path);
bool is_step(Env& env, const Path& path);

// Finds a step of a run by its number, "400", or by its name, "step-00000400.g2". If a
// step with this number was saved several times, the number means the last one. Fails
// with kNotFound if there is no such step, and with kInvalid for any other text.
Result<Step> find_step(const Run& run, std::string_view text);

// Finds what the path names. Fails with kNotFound if nothing is there or the run has no
// step, with kCorrupt if no step is whole, and with kUnsupported if the file has no
// known format. Reads that fail are repeated (env/patient_env.h).
Result<Found> find_any(Env& env, const Path& path);

// Calls `use` with what the path names, and returns what was used successfully. For a
// run that is the newest whole step. If `use` fails with kCorrupt, the step before it
// is tried; if retention removes the step meanwhile, the run is listed again. A step or
// file that the path names is tried only once. Other failures of `use` are returned.
using Use = std::function<Result<void>(const Found&)>;
Result<Found> use_any(Env& env, const Path& path, const Use& use);

// Opens what find_any() has found. Reads headers and indexes, but no tensors. The bytes
// of a step are checked against their digests when they are read. The Env must outlive
// the contents.
Result<Contents> open_found(Env& env, const Found& found);

struct OpenedAny {
  Found found{};
  Contents contents;
};
Result<OpenedAny> open_any(Env& env, const Path& path);

}  // namespace holdfast
