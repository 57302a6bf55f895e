// Checks every digest of whatever a path stands for: a step, all steps of a run, or a file
// of a format.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "holdfast/inspect/open_any.h"
#include "holdfast/store/step_check.h"

namespace holdfast {

// One step or file that was looked at.
struct Verified {
  Path path{};
  std::string kind{};  // "step", or the format's name
  std::vector<Damage> damage{};
  std::vector<std::string> extra{};  // files in a step's folder that are nobody's
  int64_t bytes_read = 0;
  // False where there are none to check (safetensors has no digests, and torch can be
  // told to leave some out) or none were asked for: then only names, sizes and headers
  // were.
  bool digests = false;

  bool whole() const { return damage.empty(); }
};

struct VerifyOptions {
  Depth depth = Depth::kFull;
  // The progress of one step or file, asked for as its turn comes.
  std::function<Progress(const Path&)> progress{};
};

// `path` is as in open_any.h, but a run means all of its steps, newest first, with those
// whose manifest cannot be read last, and then its own files if they are damaged. Damage is
// a result, not a failure; where there is none, a step that cannot be told whole from damaged
// (cannot_tell in step_check.h) is one. kNotFound if
// nothing is there or the run has no step; kUnsupported for a file of no known format or
// of a kind that this build does not read. A file that is called .safetensors and is none,
// or has the name of a format and is empty, is damaged.
Result<std::vector<Verified>> verify(Env& env, const Path& path,
                                     const VerifyOptions& options = {});

}  // namespace holdfast
