// Converts any file, step or run into a file of another format. The source is opened as
// open_any.h describes, and the target is written as format.h describes. Tensors are
// streamed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "holdfast/formats/format.h"
#include "holdfast/inspect/metered_sources.h"
#include "holdfast/inspect/open_any.h"

namespace holdfast {

struct ConvertOptions {
  std::string format{};  // name of the format; if empty, the target's name decides
  Reading reading{};
};

// What convert() and export_state() have written.
struct Written {
  // The source, with the newer steps of the run that were skipped because they are
  // damaged.
  Found from{};
  Path to{};
  std::string format{};
  int64_t tensors = 0;
  int64_t bytes = 0;  // of all tensors
  // In words: what the source has and the target cannot keep, and what export_state() has
  // chosen.
  std::vector<std::string> notes{};
};

// Afterwards the whole target is there, or nothing of it. A killed process leaves
// nothing behind if the file system supports files without a name. On other file
// systems, and for a target that is a folder, it leaves a hidden ".NAME.*.tmp" beside
// the target, which the next conversion to the same target removes.
//
// If `from` is a run, its newest undamaged step is converted. Tensors, aliases and the
// objects that all ranks share are always kept, and metadata if the format can store it.
// Objects of single ranks (rank-NNNN.objects.json) are left out. Failures:
//   kConflict     the target exists
//   kUnsupported  the format cannot store something that the values depend on (a dtype,
//                 objects, aliases); nothing is written
//   kCorrupt      the source is a named step or a file with digests, and its bytes are
//                 not those that were saved
Result<Written> convert(Env& env, const Path& from, const Path& to,
                        const ConvertOptions& options = {});

}  // namespace holdfast
