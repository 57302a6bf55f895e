// From any format, step or run into a file of a format: opened as in open_any.h, written
// as in format.h, streaming.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "holdfast/inspect/open_any.h"
#include "holdfast/store/step_check.h"

namespace holdfast {

struct ConvertOptions {
  std::string format{};  // by name; empty: as the target's name tells
  Progress progress{};   // bytes of tensors read, and all of them
  // Asked at every read, from any thread: true ends the conversion with kUnavailable.
  std::function<bool()> stop{};
};

struct Converted {
  Found from{};  // with the newer steps of a run that were passed over
  Path to{};
  const Format* format = nullptr;
  int64_t tensors = 0;
  int64_t bytes = 0;  // of tensors
  // What the source has and the target cannot keep, in words.
  std::vector<std::string> left_out{};
};

// The target is there whole or not at all. A process that is killed leaves nothing else
// where the file system has files without a name; elsewhere, and for folders, it leaves a
// hidden ".NAME.*.tmp" beside the target, which the next conversion to it removes.
//
// If `from` is a run, its newest undamaged step is converted. Tensors, ties
// and objects are carried along, and metadata where the format keeps it. kConflict if the
// target exists; kUnsupported, with nothing written, for what the format cannot keep and
// the values depend on (a dtype, objects, ties); kCorrupt if bytes of a named step, or of a
// file with digests, are not those that were saved.
Result<Converted> convert(Env& env, const Path& from, const Path& to,
                          const ConvertOptions& options = {});

}  // namespace holdfast
