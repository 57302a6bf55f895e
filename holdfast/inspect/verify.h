// Checks every digest of what a path names: a step, all steps of a run, or a file of a
// known format.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "holdfast/env/env.h"
#include "holdfast/store/records.h"

namespace holdfast {

// The result for one step or file.
struct Verified {
  Path path{};
  // "step", "run", or the name of the format.
  std::string kind{};
  std::vector<Damage> damage{};
  // Files in a step's folder that its manifest does not name.
  std::vector<std::string> extra{};
  int64_t bytes_read = 0;
  // Whether digests were checked. If not, only names, sizes and headers were checked:
  // because the depth did not ask for more, because the format has no digests
  // (safetensors), or because some were left out (torch can do that).
  bool digests = false;
  // Whether the tensors were compared with seals beside the file ((seal_file.h)).
  bool sealed = false;

  bool whole() const { return damage.empty(); }
};

struct VerifyOptions {
  Depth depth = Depth::kFull;
  // Whether the tensors of a step are compared with its seals, too, if its digests are
  // right. That shows damage that happened between the seal and the file, and reads
  // everything a second time.
  bool seals = false;
  // Called when the verification of a step or file begins. Returns the function that
  // gets its progress.
  std::function<Progress(const Path&)> progress{};
};

// `path` is as in open_any.h, except that a run means all of its steps: newest first,
// then the steps whose manifest cannot be read, then the run's own files if they are
// damaged.
//
// Damage is a result and not a failure. Failures:
//   kNotFound     nothing is there, or the run has no step
//   kUnsupported  the file has no known format, or this build cannot read it
//   others        no damage was found, but it cannot be told whether a step is whole
//                 (cannot_tell() in step_check.h)
// A file counts as damaged if it is called .safetensors and is not such a file, or if
// it has the name of a known format and is empty.
Result<std::vector<Verified>> verify(Env& env, const Path& path,
                                     const VerifyOptions& options = {});

}  // namespace holdfast
