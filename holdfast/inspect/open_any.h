// Anything that holds tensors, by one path:
//
//   model.pt, model.safetensors, a folder of them   a format of format.h
//   runs/gpt/step-00000400                          a step of a run
//   runs/gpt                                        a run: its newest whole step
//   runs/gpt@400, runs/gpt@step-00000400.g2         a run: that step, as last saved
//
// What is there under the whole name comes first, so that a name with an '@' in it means
// itself; only then is the text after the last '@' a step.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "holdfast/formats/format.h"
#include "holdfast/store/run.h"

namespace holdfast {

// What a path stands for.
struct Found {
  Path path{};                     // a step's folder, or a file or folder of a format
  const Format* format = nullptr;  // null: a step
  std::vector<SkippedStep> skipped{};  // newer steps of the run, and why not they

  bool step() const { return format == nullptr; }
  std::string_view kind() const { return step() ? "step" : format->name; }
};

// True for a folder with the mark of a run, and for one of a committed step. Neither says
// that it is whole.
bool is_run(Env& env, const Path& path);
bool is_step(Env& env, const Path& path);

// The step of a run that "400", as last saved, or "step-00000400.g2" names. kNotFound if
// it has none, kInvalid for other text.
Result<Step> find_step(const Run& run, std::string_view text);

// kNotFound if nothing is there, or no step in the run; kCorrupt if no step is whole;
// kUnsupported for a file of no known format. Reads are patient, as those of restore.h.
Result<Found> find_any(Env& env, const Path& path);

// Calls `use` with what the path stands for, and gives back what did in the end. Of a run
// that is its newest whole step: should `use` find it damaged (kCorrupt), the step before
// it, and where retention removes it meanwhile, the run is looked at again. A step or file
// that is named is used once. Other failures of `use` are passed on.
using Use = std::function<Result<void>(const Found&)>;
Result<Found> use_any(Env& env, const Path& path, const Use& use);

// Opens it: headers and indexes are read, not tensors. Bytes of a step are checked as they
// are read. The Env must outlive the contents.
Result<Contents> open_found(Env& env, const Found& found);

struct OpenedAny {
  Found found{};
  Contents contents;
};
Result<OpenedAny> open_any(Env& env, const Path& path);

}  // namespace holdfast
