// From any format, step or run into a file of a format: opened as in open_any.h, written
// as in format.h, streaming.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "holdfast/checkpoint/open_any.h"
#include "holdfast/store/whole.h"

namespace holdfast {

struct ConvertOptions {
  std::string format{};  // by name; empty: as the target's name tells
  Progress progress{};   // bytes of tensors read, and all of them
};

struct Converted {
  Found from{};
  Path to{};
  const Format* format = nullptr;
  int64_t tensors = 0;
  int64_t bytes = 0;  // of tensors
  // What the source has and the target cannot keep, in words.
  std::vector<std::string> left_out{};
};

// The target is there whole or not at all. Tensors, ties and objects are carried along, and
// metadata where the format keeps it. kConflict if the target exists; kUnsupported, with
// nothing written, for what the format cannot keep and the values depend on (a dtype,
// objects, ties); kCorrupt if bytes of a step are not those that were saved.
Result<Converted> convert(Env& env, const Path& from, const Path& to,
                          const ConvertOptions& options = {});

}  // namespace holdfast
