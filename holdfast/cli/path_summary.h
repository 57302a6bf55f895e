// What `holdfast show` has found out about a path.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "holdfast/checkpoint/step_files.h"
#include "holdfast/inspect/open_any.h"

namespace holdfast {

struct PathSummary {
  Found found;
  Collection collection;
  Object objects{};
  std::map<int, Object> rank_objects{};  // of a step: those of single ranks
  std::map<std::string, std::string> metadata{};
  std::optional<Manifest> manifest{};  // of a step
  std::vector<Seal> seals{};           // of a step, one a tensor
};

// Shards of a step are not opened, so that it can be shown without them.
Result<PathSummary> summarize_path(Env& env, const Path& path);

// "94106359264b9ad0674d59ded7a2bd3a", or nullopt if the whole tensor was not sealed.
std::optional<std::string> seal_text(const PathSummary& shown, TensorId tensor);

}  // namespace holdfast
